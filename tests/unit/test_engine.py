"""The engine without a database: its log, the liveness of sessions, the wire, and engines that come and go."""

from __future__ import annotations

import socket
import threading
from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.store import OutcomeUnknownError, Put, SessionLostError, StoreBusyError, StoreError, StoreFullError
from spark_jms.store.engine import EngineBackend, LedgerBatch, Loaded, MemoryFinder, OwnershipLostError, wire
from spark_jms.store.engine.access import Access
from spark_jms.store.engine.entry_log import EntryLog, Page, Verdict
from spark_jms.store.engine.link import LinkLostError, TcpLink
from spark_jms.store.engine.local_access import LocalAccess
from spark_jms.store.engine.scratch_ledger import ScratchLedger
from spark_jms.store.engine.shared_write import Proposal
from spark_jms.store.engine.testing import SharedMemory
from spark_jms.store.errors import ProtocolError, ResourceAllocationException, error_of
from spark_jms.store.ledger.entries import Change, Closed, Connected, Ended, Entry, Opened, Waited, Written
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import LedgerError
from spark_jms.store.ledger.store import LedgerStore
from spark_jms.testing.waiting import wait_until


def written(name: str, epoch: int, key: str, value: bytes) -> Written:
    return Written((Change(name, epoch, (Put(key, value),)),))


START: tuple[Entry, ...] = (Connected("a", ""), Connected("b", ""), Opened("r", 1, "a"), Opened("q", 1, "b"))


def entry_log(**limits: int) -> EntryLog:
    return EntryLog("i1", Loaded(len(START), START), **limits)


def take(target: EntryLog, *proposals: Proposal) -> tuple[Verdict, ...]:
    shared = target.begin(f"w{target.position}")
    verdicts = tuple(target.propose(proposal, shared) for proposal in proposals)
    if shared.entries:
        target.keep(shared.batch())
    return verdicts


def follow(page: Page, ledger: Ledger) -> Ledger:
    ledger = Ledger() if page.snapshot else ledger
    for entry in page.entries:
        ledger.apply(entry)
    return ledger


def same(left: Ledger, right: Ledger) -> bool:
    return list(left.snapshot()) == list(right.snapshot())


# ---- the log


def test_entries_made_on_an_old_position_are_taken_when_they_fit() -> None:
    """S2: processes that use different record sets never disturb each other."""
    target = entry_log()
    assert take(target, Proposal("t1", 4, (written("r", 1, "k", b"1"),))) == (Verdict.TAKEN,)
    assert take(target, Proposal("t2", 4, (written("q", 1, "k", b"2"),))) == (Verdict.TAKEN,)
    assert target.position == 6


def test_entries_that_do_not_fit_are_refused_whole() -> None:
    """S2, C9: entries of an older owner change nothing, and the other proposals of the write are kept."""
    target = entry_log()
    half = Proposal("t2", 4, (written("q", 1, "k", b"half"), Closed("r", 1), written("r", 1, "k", b"late")))
    verdicts = take(
        target, Proposal("t1", 4, (written("r", 1, "k", b"1"),)), half, Proposal("t3", 4, (Waited("r", "b"),))
    )
    assert verdicts == (Verdict.TAKEN, Verdict.REFUSED, Verdict.TAKEN)
    assert target.ledger.records["q"].objects == {}
    assert (target.ledger.records["r"].holder, target.ledger.records["r"].waiters) == ("a", ["b"])


def test_a_shared_write_changes_nothing_until_it_is_kept() -> None:
    target = entry_log()
    before = list(target.ledger.snapshot())
    shared = target.begin("w")
    target.propose(Proposal("t", 4, (Waited("r", "b"), Ended(("a",)), written("r", 2, "k", b"1"))), shared)
    assert shared.batch().after.records["r"].holder == "b"
    assert list(target.ledger.snapshot()) == before
    assert target.position == 4


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.booleans()), min_size=1, max_size=12))
def test_a_plan_inside_a_write_makes_the_same_ledger_as_a_proposal(rounds: list[tuple[int, int, bool]]) -> None:
    """S2: the engine's own process runs plans inside the write, other processes send proposals; both share it."""
    fast, slow = entry_log(), entry_log()
    for number, (others, key, late) in enumerate(rounds):
        if late:
            for target in (fast, slow):
                take(target, Proposal(f"l{number}", 0, (written("q", 1, f"k{key}", b"late"),)))
        rest = [Proposal(f"{number}.{n}", 0, (written("rq"[n % 2], 1 + n // 3, f"k{n}", b"x"),)) for n in range(others)]
        shared = fast.begin(f"w{number}")
        made = [
            entry
            for entry in (written("r", 1, f"k{key}", b"%d" % number), Waited("r", "b"))
            if _fits(shared.ledger, entry)
        ]
        shared.entries.extend(made)
        share = shared.share(0).proposal()
        assert share.entries == tuple(made)
        verdicts = (Verdict.TAKEN, *(fast.propose(proposal, shared) for proposal in rest))
        assert verdicts == take(slow, Proposal(f"m{number}", slow.position, tuple(made)), *rest)
        batch = shared.batch()
        assert same(batch.after, slow.ledger)
        fast.keep(batch)
        assert same(fast.ledger, slow.ledger)


def _fits(ledger: Ledger, entry: Entry) -> bool:
    try:
        ledger.apply(entry)
    except LedgerError:
        return False
    return True


@pytest.mark.parametrize("kept", [True, False])
def test_shares_of_a_lost_write_count_once_each(kept: bool) -> None:
    """S2: plans of the engine's process shared a write and the engine was lost; each caller asks the next engine."""
    lost, following = entry_log(), entry_log()
    shared = lost.begin("w")
    shares = []
    for key in ("a", "b"):
        first = len(shared.entries)
        shared.do(written("r", 1, key, b"1"))
        shares.append(shared.share(first).proposal())
    if kept:
        following = EntryLog("i2", Loaded(6, (*START, *shared.entries), (("w", 6),)))
    for share in (*shares, *shares):
        assert take(following, share) == (Verdict.TAKEN,)
    assert following.position == 6
    assert following.ledger.records["r"].objects == {"a": b"1", "b": b"1"}


def test_undo_keeps_the_entries_before() -> None:
    target = entry_log()
    shared = target.begin("w")
    shared.do(written("r", 1, "a", b"1"))
    shared.do(Waited("r", "b"))
    shared.undo(1)
    record = shared.ledger.records["r"]
    assert (record.objects, record.waiters, len(shared.entries)) == ({"a": b"1"}, [], 1)


def test_an_append_sent_again_counts_once() -> None:
    """S2: the answer was lost, not the write."""
    target = entry_log()
    append = Proposal("t", 4, (written("r", 1, "k", b"1"),))
    again = Proposal("t", 4, append.entries, again=True)
    assert take(target, append) == take(target, again) == (Verdict.TAKEN,)
    assert target.position == 5


def test_an_append_sent_again_too_late_is_unknown() -> None:
    target = entry_log(outcomes=2)
    for number in range(4):
        take(target, Proposal(f"t{number}", 4 + number, (written("r", 1, "k", b"%d" % number),)))
    assert take(target, Proposal("t0", 4, (written("r", 1, "k", b"0"),), again=True)) == (Verdict.UNKNOWN,)
    assert take(target, Proposal("new", 7, (written("r", 1, "k", b"0"),), again=True)) == (Verdict.TAKEN,)
    assert take(target, Proposal("slow", 4, (written("r", 1, "k", b"0"),))) == (Verdict.TAKEN,)


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 6))
def test_a_replica_that_follows_by_pages_has_the_same_ledger(steps: list[int], history: int) -> None:
    """S2: entry by entry or by snapshots, at any distance."""
    target, replica, position, incarnation = entry_log(history_entries=history), Ledger(), 0, ""
    for number, step in enumerate(steps):
        name = "rq"[step % 2]
        if step < 2:
            take(target, Proposal(f"t{number}", 0, (written(name, 1, f"k{number % 5}", b"x" * step),)))
        if step == 3:
            page = target.page(incarnation, position)
            replica, position, incarnation = follow(page, replica), page.position, "i1"
            assert same(replica, target.ledger)
    page = target.page(incarnation, position)
    assert page.snapshot or len(page.entries) == target.position - position
    assert same(follow(page, replica), target.ledger)


def test_a_position_of_another_incarnation_gets_a_snapshot() -> None:
    """S4: even when the numbers are equal."""
    assert entry_log().page("i0", 4).snapshot
    assert entry_log().page("i1", 99).snapshot
    assert entry_log().page("i1", 4) == Page((), 4, False)


def test_a_scratch_leaves_its_base_alone() -> None:
    base = Ledger()
    for entry in START:
        base.apply(entry)
    before = list(base.snapshot())
    scratch = ScratchLedger(base)
    for entry in (Waited("r", "b"), Ended(("a",)), written("r", 2, "k", b"v"), Opened("new", 1, "b")):
        scratch.apply(entry)
    assert sorted(scratch.records) == ["new", "q", "r"]
    assert len(scratch.records) == 3
    assert {name: record.holder for name, record in scratch.records.items()} == {"new": "b", "q": "b", "r": "b"}
    assert list(base.snapshot()) == before
    with pytest.raises(LedgerError):
        base.apply(written("r", 2, "k", b"v"))


# ---- the wire


@pytest.mark.parametrize(
    "message",
    [
        wire.Hello("client"),
        wire.Append("i", 3, "t", 2, True, b"\x00\xff"),
        wire.Paged("i", "taken", 9, False, b""),
        wire.Beat(("s", "ü")),
        wire.Refusal("StaleEpochError", ("r", 1, 2)),
        wire.Done(),
    ],
)
def test_messages_come_out_as_they_went_in(message: wire.Any_) -> None:
    here, there = socket.socketpair()
    with here, there:
        sender, receiver = wire.channel(here), wire.channel(there)
        for _ in range(3):
            sender.send(message)
            assert receiver.receive() == message
    here, there = socket.socketpair()
    with here, there:
        wire.channel(here).send(message)
        data = there.recv(1 << 16)
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        here, there = socket.socketpair()
        with here, there:
            here.sendall(flipped)
            with pytest.raises(ProtocolError):
                wire.channel(there).receive()


def test_errors_keep_their_names_over_the_wire() -> None:
    for error in (StoreFullError("disk"), SessionLostError("session s"), StoreBusyError("x")):
        refusal = wire.refusal(error)
        again = error_of(refusal.name, refusal.facts)
        assert (type(again), str(again)) == (type(error), str(error))
    assert type(error_of("NoSuchError", ("x",))) is StoreError
    assert type(error_of("StaleEpochError", ("too few arguments",))) is StoreError


# ---- engines that come and go


class NoEngine(MemoryFinder):
    """There is no engine, and this process cannot become it."""

    def find(self, failed: object = None) -> None:
        return None


class Pair:
    """Two clients of one store; `place` knows where the engine is."""

    def __init__(self) -> None:
        self.place = SharedMemory()
        self.backends = [
            EngineBackend(
                MemoryFinder(self.place, session_timeout_ms=5_000, remote=remote),
                session_timeout_ms=5_000,
                limit_ms=10_000,
            )
            for remote in (False, True)
        ]
        self.stores = [LedgerStore(backend) for backend in self.backends]

    def clock(self, backend: EngineBackend) -> list[float]:
        """A clock for the backend, in milliseconds, that advances while the backend sleeps."""
        now_ms = [0.0]

        def sleep(duration_ms: float) -> None:
            now_ms[0] += duration_ms

        backend._route.clock_ms, backend._route.sleep_ms = (lambda: now_ms[0]), sleep
        return now_ms

    def reach(self, backend: EngineBackend, kind: type[MemoryFinder] = MemoryFinder) -> None:
        backend._route.finder = kind(self.place, session_timeout_ms=5_000)

    def close(self) -> None:
        for store in self.stores:
            store.close()


def test_sessions_and_records_survive_the_engine() -> None:
    """S6, S7: the engine is disabled; another takes over; sessions come back with their ids and handles."""
    pair = Pair()
    first, second = (store.connect() for store in pair.stores)
    handles = [first.open("one"), second.open("two")]
    for number in range(3):
        for handle in handles:
            handle.commit([Put("n", b"%d" % number)])
        assert pair.place.published is not None
        pair.place.published.disable("disabled by the test")
    assert [handle.read("n") for handle in handles] == [b"2", b"2"]
    assert [handle.epoch for handle in handles] == [1, 1]
    assert set(pair.stores[0].sessions()) == {first.session_id, second.session_id}
    assert pair.place.incarnation_count == 4
    pair.close()


def test_a_write_whose_answer_was_lost_is_kept_once() -> None:
    """S2: kept, then ownership lost before the answer; the new engine knows the token."""
    pair = Pair()
    handle = pair.stores[1].connect().open("r")
    lost: list[LedgerBatch] = []

    def crash(batch: LedgerBatch) -> StoreError | None:
        if any(isinstance(entry, Written) for entry in batch.entries) and not lost:
            lost.append(batch)
            return OwnershipLostError("disabled by the test")
        return None

    pair.place.crash = crash
    handle.commit([Put("n", b"1")])
    assert len(lost) == 1
    assert sum(isinstance(entry, Written) for entry in pair.place.entries) == 1
    pair.close()


def test_a_write_that_was_not_kept_is_done_again() -> None:
    """S2."""
    pair = Pair()
    handle = pair.stores[1].connect().open("r")
    errors: list[StoreError] = [OwnershipLostError("disabled by the test")]
    pair.place.fail = lambda batch: errors.pop() if errors else None
    handle.commit([Put("n", b"1")])
    assert sum(isinstance(entry, Written) for entry in pair.place.entries) == 1
    pair.close()


def test_a_forgotten_outcome_is_unknown() -> None:
    """S2: never a wrong answer."""
    pair = Pair()
    handle = pair.stores[1].connect().open("r")
    lost: list[LedgerBatch] = []

    def crash(batch: LedgerBatch) -> StoreError | None:
        if lost:
            return None
        lost.append(batch)
        pair.place.outcomes.clear()
        return OwnershipLostError("disabled by the test")

    pair.place.crash = crash
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_jms.store.engine.testing.Loaded", lambda p, e, o: Loaded(p, e, o, known_since=p))
        with pytest.raises(OutcomeUnknownError):
            handle.commit([Put("n", b"1")])
    pair.close()


def test_a_full_disk_refuses_only_the_appends_that_shared_the_write() -> None:
    """S9: nothing is acknowledged, and the engine continues."""
    pair = Pair()
    handle = pair.stores[1].connect().open("r")
    pair.place.fail = lambda batch: StoreFullError("the place")
    with pytest.raises(StoreFullError):
        handle.commit([Put("n", b"1")])
    assert handle.objects() == {}
    pair.place.fail = lambda batch: None
    handle.commit([Put("n", b"2")])
    assert handle.objects() == {"n": b"2"}
    assert pair.place.incarnation_count == 1
    pair.close()


def test_appends_that_arrive_during_a_write_share_the_next() -> None:
    """S9: the slower the disk, the more appends share a write, here of two clients."""
    pair = Pair()
    sessions = [store.connect() for store in pair.stores]
    handles = [sessions[number % 2].open(f"r{number}") for number in range(6)]
    slow, entered = threading.Event(), threading.Event()

    def wait(batch: LedgerBatch) -> StoreError | None:
        entered.set()
        slow.wait(20)
        return None

    engine = pair.place.published
    assert engine is not None
    before = engine.statistics().physical_write_count
    pair.place.fail = wait
    threads = [threading.Thread(target=handle.commit, args=([Put("k", b"v")],)) for handle in handles]
    threads[0].start()
    entered.wait(20)
    for thread in threads[1:]:
        thread.start()
    # r0's write is under way. The local requests and the leader of the remote ones queue up at the engine, the rest behind it.
    wait_until(lambda: len(pair.backends[1]._group._queue) + len(engine._group._queue) == 5)
    slow.set()
    for thread in threads:
        thread.join(20)
    assert engine.statistics().physical_write_count - before <= 4
    assert all(pair.stores[0].peek(f"r{number}") == {"k": b"v"} for number in range(6))
    pair.close()


def test_only_the_caller_of_a_refused_write_gets_the_error() -> None:
    """R13: the other requests of its physical write, or of its message to the engine, are kept."""
    pair = Pair()
    handles = [store.connect().open(f"r{n}") for n in range(4) for store in [pair.stores[n % 2]]]
    entered, go_on = threading.Event(), threading.Event()

    def fail(batch: LedgerBatch) -> StoreError | None:
        entered.set()
        go_on.wait(20)
        large = any(b"large" in repr(entry).encode() for entry in batch.entries)
        return ResourceAllocationException("disabled by the test") if large else None

    told: dict[int, str] = {}

    def commit(number: int) -> None:
        try:
            handles[number].commit([Put("k", b"large" if number >= 2 else b"small")])
        except StoreError as error:
            told[number] = type(error).__name__

    pair.place.fail = fail
    engine = pair.place.published
    assert engine is not None
    first = threading.Thread(target=lambda: pair.stores[0].connect().open("first"))
    first.start()
    entered.wait(20)  # all that arrive meanwhile share the next write
    threads = [threading.Thread(target=commit, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    waiting = [pair.backends[1]._group._queue, engine._group._queue]
    wait_until(lambda: sum(map(len, waiting)) == 4)
    go_on.set()
    for thread in [first, *threads]:
        thread.join(20)
    assert told == {2: "ResourceAllocationException", 3: "ResourceAllocationException"}
    assert [pair.stores[0].peek(f"r{number}") for number in range(4)] == [{"k": b"small"}] * 2 + [{}] * 2
    pair.close()


def test_an_interrupted_writer_leaves_no_caller_waiting() -> None:
    """S9: the leader is interrupted in the middle of a write. It is unknown what was kept, so that engine ends; the other
    callers ask the next engine, and nothing is done twice."""
    pair = Pair()
    handles = [store.connect().open(f"r{number}") for number, store in enumerate(pair.stores)]
    entered, go_on, interrupt = threading.Event(), threading.Event(), [KeyboardInterrupt()]

    def crash(batch: LedgerBatch) -> StoreError | None:
        entered.set()
        go_on.wait(20)
        if interrupt:
            raise interrupt.pop()
        return None

    ends: list[str] = []

    def commit(number: int) -> None:
        try:
            handles[number].commit([Put("k", b"v"), Put(f"k{pair.place.incarnation_count}", b"v")])
            ends.append("done")
        except KeyboardInterrupt:
            ends.append("interrupted")

    pair.place.crash = crash
    engine = pair.place.published
    assert engine is not None
    threads = [threading.Thread(target=commit, args=(number,)) for number in range(2)]
    threads[0].start()
    assert entered.wait(20)
    threads[1].start()
    wait_until(lambda: len(engine._group._queue) == 1)
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert sorted(ends) == ["done", "interrupted"]
    assert engine.gone
    assert pair.place.incarnation_count == 2
    assert pair.stores[0].peek("r0") == pair.stores[1].peek("r1") == {"k": b"v", "k1": b"v"}
    pair.close()


def test_a_plan_runs_again_when_its_engine_ends() -> None:
    """S6: a plan that asks for live sessions loses the engine; the client reconnects only after the plan has ended."""
    pair = Pair()
    first, second = (store.connect() for store in pair.stores)
    first.open("r")
    asked: list[str] = []
    backend = pair.backends[0]
    real = backend.alive

    def alive(session_ids: Collection[str]) -> frozenset[str]:
        engine = pair.place.published
        assert engine is not None
        asked.append(engine.incarnation)
        if len(asked) == 1:
            engine.disable("disabled by the test")
        return real(session_ids)

    backend.alive = alive  # type: ignore[method-assign]
    third = pair.stores[0].connect()  # looks for dead sessions
    assert len(set(asked)) == 2
    assert third.session_id in pair.stores[1].sessions()
    second.close()
    pair.close()


def test_a_client_without_the_secret_is_refused() -> None:
    """S3."""
    pair = Pair()
    engine = pair.place.published
    assert engine is not None
    from spark_jms.store.engine import Address

    for secret, incarnation in ((b"guess", engine.incarnation), (engine.secret, "another")):
        with pytest.raises(LinkLostError):
            TcpLink(Address(*engine.address, secret, incarnation), "stranger", 5.0, 5.0)
    assert engine.statistics().client_count == 2
    pair.close()


def test_the_wait_for_an_engine_is_bounded() -> None:
    """S5."""
    pair = Pair()
    handle = pair.stores[1].connect().open("r")
    backend = pair.backends[1]
    now_ms = pair.clock(backend)
    pair.reach(backend, NoEngine)
    assert pair.place.published is not None
    pair.place.published.disable("disabled by the test")
    with pytest.raises(OutcomeUnknownError, match="no other was found"):  # it may have arrived there
        handle.commit([Put("k", b"v")])
    assert 10_000 <= now_ms[0] < 11_000
    with pytest.raises(StoreBusyError):
        handle.commit([Put("k", b"v")])
    assert 20_000 <= now_ms[0] < 22_000
    pair.reach(backend)
    pair.close()


def test_an_append_that_ends_every_engine_fails_within_the_limit() -> None:
    """S6: when one engine after the other fails at a write, its caller gets an error within the limit."""
    place = SharedMemory()
    backend = EngineBackend(MemoryFinder(place, session_timeout_ms=10_000), session_timeout_ms=10_000, limit_ms=300)
    store = LedgerStore(backend)
    handle = store.connect().open("r")

    def fail(batch: LedgerBatch) -> StoreError | None:
        raise TypeError("a fault of ours")

    place.fail = fail
    with pytest.raises(OutcomeUnknownError):
        handle.commit([Put("k", b"v")])
    place.fail = lambda batch: None
    assert store.peek("r") == {}
    store.close()


def test_question_that_every_engine_leaves_unanswered_fails_within_the_limit() -> None:
    """S6: engines that are uncertain of their store answer no read, and are found again and again."""
    pair = Pair()
    for backend in pair.backends:
        now_ms, asked = pair.clock(backend), []

        def ask(access: Access, asked: list[Access] = asked) -> None:
            asked.append(access)
            raise LinkLostError("uncertain of its ownership")

        with pytest.raises(StoreBusyError, match="uncertain of its ownership"):
            backend._route.use(ask)
        assert 10_000 <= now_ms[0] < 11_000
        assert len(asked) < 100
    pair.close()


def test_write_that_every_engine_leaves_undone_fails_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """S6: no engine has kept it."""
    pair = Pair()
    with pair.stores[0].connect() as session, session.open("r") as handle:
        now_ms = pair.clock(pair.backends[0])
        with monkeypatch.context() as patch:
            patch.setattr(LocalAccess, "write", _lost)
            with pytest.raises(StoreBusyError, match="uncertain of its ownership"):
                handle.commit([Put("k", b"v")])
        assert 10_000 <= now_ms[0] < 11_000
        assert handle.read("k") is None
    pair.close()


def _lost(access: LocalAccess, calls: object) -> None:
    raise LinkLostError("uncertain of its ownership")
