"""Two consumers on one queue: one of them dies, returns too late, or sleeps (C8, C9).

The tests share one pair of applications, because starting an application costs more than anything else here. Each test
begins with both of them running and the queue empty.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.harness.processes.apps import running, until
from tests.harness.processes.crash import Plan
from tests.harness.scenarios import account
from tests.harness.scenarios.pair import Consumer, OpenClaim, Pair

pytestmark = pytest.mark.spark  # applications of its own

TAKE_OVER_LIMIT_S = 10.0
SESSION_TIMEOUT_S = 10.0  # the file store's default
STRIKE_S, REVOKED_S = 90.0, 90.0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("pair"))
    with running(pair.a.app, pair.b.app):
        yield pair


def strike(pair: Pair, plan: Plan) -> None:
    """Send messages until A reaches the planned point."""
    pair.a.crash.arm(plan)

    def struck() -> bool:
        if pair.a.crash.fired():
            return True
        if pair.backlog() == 0:
            pair.send(120)
        return False

    until(f"{plan}", struck, STRIKE_S)
    if plan.target == "driver":
        pair.a.app.reap()


def check_revoked(pair: Pair, claim: OpenClaim, doubled_before: list[int], *, in_sink_of_a: bool) -> None:
    """B received the claim's messages, flagged; no other message is flagged or received twice."""
    b = [row for row in pair.b.rows if claim.holds(row)]
    assert len(b) == claim.count, f"B has {len(b)} of the {claim.count} messages of the revoked claim"
    assert all(row.redelivered and row.deliveries == 2 for row in b), f"not flagged: {b[:5]}"
    a = [row for row in pair.a.rows if claim.holds(row)]
    assert len(a) == (claim.count if in_sink_of_a else 0)
    assert not any(row.redelivered for row in a)
    fresh = set(pair.doubled()) - set(doubled_before)
    assert fresh == {row.n for row in a}, "a duplicate does not belong to the revoked claim"
    assert not pair.acknowledged_by(claim.claim), "a revoked claim was acknowledged"


def received(one: Consumer, claim: OpenClaim) -> bool:
    return one.count > 0 and sum(claim.holds(row) for row in one.rows) == claim.count


def flagged(pair: Pair) -> set[tuple[int, int]]:
    return {
        (row.member, row.sequence) for row in [*pair.a.rows, *pair.b.rows] if row.redelivered or row.deliveries != 1
    }


@pytest.mark.timeout(1_800)
def test_consumer_back_within_the_timeout_finishes_its_batch(pair: Pair) -> None:
    """C5, C9: A dies with an open claim while B lives. B leaves the claim alone; A returns and finishes it."""
    pair.in_doubt_timeout(300_000)
    pair.ready()
    doubled = pair.doubled()
    strike(pair, Plan("before-task-read", "driver", orphan="die"))
    claim = pair.a.open_claim()
    assert claim.batch == pair.a.newest("commits") + 1, "the claim does not belong to an unfinished batch"
    pair.a.app.start()
    until("A to finish its batch", lambda: received(pair.a, claim), REVOKED_S, or_fail=pair.a.app.check_alive)
    pair.drained()
    assert not any(claim.holds(row) for row in pair.b.rows), "B received messages in doubt"
    assert pair.doubled() == doubled
    pair.check_nothing_lost()
    assert not flagged(pair) & {(m, s) for m, picks in claim.picks.items() for s in picks.numbers()}


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(
    ("point", "nth", "in_sink"),
    [("before-claim-write", 3, True), ("before-task-read", 2, False)],
    ids=["sunk", "unsunk"],
)
def test_claim_past_the_timeout_is_redelivered(pair: Pair, point: str, nth: int, in_sink: bool) -> None:
    """C8, C9: A dies with an open claim, before or after its batch reached the sink. Past the timeout B receives the
    messages, flagged as redelivered."""
    pair.in_doubt_timeout(300_000)
    pair.ready()
    doubled, before = pair.doubled(), flagged(pair)
    strike(pair, Plan(point, "driver", nth=nth, orphan="die"))
    claim = pair.a.open_claim()
    assert (claim.batch == pair.a.newest("commits")) == in_sink, "the crash came at the wrong moment"
    pair.in_doubt_timeout(1000)
    until("B to receive the revoked claim", lambda: received(pair.b, claim), REVOKED_S, or_fail=pair.b.app.check_alive)
    pair.drained()
    check_revoked(pair, claim, doubled, in_sink_of_a=in_sink)
    assert flagged(pair) - before == {(m, int(s)) for m, picks in claim.picks.items() for s in picks.numbers()}
    failures = len(pair.a.failures())
    pair.ready()  # starts A again
    assert pair.a.newest("commits") > claim.batch, "A does not continue"
    assert not pair.a.failures(failures), "A's return failed"
    check_revoked(pair, claim, doubled, in_sink_of_a=in_sink)
    pair.check_nothing_lost()


@pytest.mark.timeout(1_800)
def test_stale_instance_acknowledges_nothing(pair: Pair) -> None:
    """C9: A sleeps during a batch for longer than the session timeout. B takes over; A wakes and the store refuses it."""
    pair.in_doubt_timeout(1000)
    pair.ready()
    doubled = pair.doubled()
    failures = len(pair.a.failures())
    strike(pair, Plan("before-task-read", "pause"))
    pair.a.app.freeze()
    claim = pair.a.open_claim()
    frozen = time.monotonic()
    try:
        until("B to receive the revoked claim", lambda: received(pair.b, claim), REVOKED_S)
        assert time.monotonic() - frozen < SESSION_TIMEOUT_S + REVOKED_S / 2
    finally:
        pair.a.app.thaw()
    until("A's query to be refused", lambda: pair.a.failures(failures), REVOKED_S, or_fail=pair.a.app.check_alive)
    error = pair.a.failures(failures)[0]["error"]
    assert "SessionEndedException" in error, error  # a ConsumerClosedException
    pair.ready()  # A's application has restarted the query
    assert len(pair.a.failures(failures)) == 1, "A failed again"
    pair.drained()
    in_sink = any(claim.holds(row) for row in pair.a.rows)  # nothing can stop the sink's commit
    check_revoked(pair, claim, doubled, in_sink_of_a=in_sink)
    pair.check_nothing_lost()


@pytest.mark.timeout(1_800)
def test_unclaimed_messages_are_taken_over_quickly(pair: Pair) -> None:
    """C9: after kill -9 of A, B receives A's unclaimed messages within 10 s, long before the in-doubt timeout."""
    pair.in_doubt_timeout(300_000)
    pair.ready()
    before = pair.b.count
    pair.send(1600, units=False)
    until("A to receive", lambda: pair.a.count and pair.holds(pair.a), 60)
    members = pair.holds(pair.a)
    pair.a.app.kill()
    killed = time.monotonic()
    last = account.last_sequences(pair.root, "orders", 4)
    mine = {(row.member, row.sequence) for row in pair.a.rows}
    free = {(m, s) for m in members for s in range(1, last[m] + 1)} - mine
    # Ask the store, not A's newest offset: A may have died between the claim and the offset that names it.
    free -= {(m, int(s)) for m, state in pair.states().items() for s in state.claimed.numbers()}
    free -= {(row.member, row.sequence) for row in pair.b.rows}
    assert free, "A had no unclaimed messages left"

    def taken() -> bool:
        if pair.b.count == before:
            return False
        return bool(free & {(row.member, row.sequence) for row in pair.b.rows})

    until("B to receive from A's members", taken, 60, or_fail=pair.b.app.check_alive)
    took_s = time.monotonic() - killed
    print(f"take-over: first unclaimed message of A with B after {took_s:.1f} s (members {members}, {len(free)} free)")
    assert took_s <= TAKE_OVER_LIMIT_S

    def all_taken() -> bool:
        return free <= {(row.member, row.sequence) for row in pair.b.rows}

    until("B to receive all of A's unclaimed messages", all_taken, 60, or_fail=pair.b.app.check_alive)
    pair.a.app.start()
    pair.ready()
    pair.check_nothing_lost()
