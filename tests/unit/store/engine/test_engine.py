"""The engine without a database: the wire, and engines that come and go."""

from __future__ import annotations

import socket
import threading
from collections.abc import Collection

import pytest

from spark_jms.store import OutcomeUnknownError, Put, SessionLostError, StoreBusyError, StoreError, StoreFullError
from spark_jms.store.engine import connections
from spark_jms.store.engine.access import Access, LocalAccess
from spark_jms.store.engine.backend import EngineBackend
from spark_jms.store.engine.connections import LinkLostError, TcpLink
from spark_jms.store.engine.entry_log import LedgerBatch, Loaded, OwnershipLostError
from spark_jms.store.errors import ProtocolError, ResourceAllocationException, error_of
from spark_jms.store.ledger.record import Written
from spark_jms.store.ledger.store import LedgerStore
from spark_jms.store.testing import MemoryFinder, SharedMemory
from spark_jms.testing.domain import wait_until

# ---- the wire


@pytest.mark.parametrize(
    "message",
    [
        connections.Hello("client"),
        connections.Append("i", 3, "t", 2, True, b"\x00\xff"),
        connections.Paged("i", "taken", 9, False, b""),
        connections.Beat(("s", "ü")),
        connections.Refusal("StaleEpochError", ("r", 1, 2)),
        connections.Done(),
    ],
)
def test_messages_come_out_as_they_went_in(message: connections.Any_) -> None:
    here, there = socket.socketpair()
    with here, there:
        sender, receiver = connections.engine_channel(here), connections.engine_channel(there)
        for _ in range(3):
            sender.send(message)
            assert receiver.receive() == message
    here, there = socket.socketpair()
    with here, there:
        connections.engine_channel(here).send(message)
        data = there.recv(1 << 16)
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        here, there = socket.socketpair()
        with here, there:
            here.sendall(flipped)
            with pytest.raises(ProtocolError):
                connections.engine_channel(there).receive()


def test_errors_keep_their_names_over_the_wire() -> None:
    for error in (StoreFullError("disk"), SessionLostError("session s"), StoreBusyError("x")):
        refusal = connections.refusal(error)
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
        patch.setattr("spark_jms.store.testing.Loaded", lambda p, e, o: Loaded(p, e, o, known_since=p))
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
    from spark_jms.store.engine.connections import Address

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
