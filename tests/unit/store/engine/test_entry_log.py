"""The log of an engine: proposals, shared writes, pages and scratches, without a database and without a client."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.store import Put
from spark_jms.store.engine.entry_log import EntryLog, Loaded, Page, Proposal, Verdict
from spark_jms.store.ledger.ledger import Ledger, ScratchLedger
from spark_jms.store.ledger.record import Change, Closed, Connected, Ended, Entry, LedgerError, Opened, Waited, Written


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
