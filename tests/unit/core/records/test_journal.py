"""What one consumer has planned, done to a record set that others have changed since (C9)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.records.endings import SELECTOR_REFUSED, Stamp
from spark_jms.core.records.journal import METHODS, PlannedChange, StateChangedError, found_dead, replayed
from spark_jms.core.records.record_set import Noted, RecordSet
from spark_jms.core.records.redelivery import Claim
from spark_jms.core.records.refusal import NO_RULE, MessageRefusal
from spark_jms.core.records.take import Offer, take
from spark_jms.core.transactions.transfer import Intent, StagedFile, Ticket, TransferTarget
from spark_jms.errors import ConsumerClosedException

TICKET = Ticket("a" * 16, 0, 1)
TARGET = TransferTarget("failed", "id", (StagedFile("f.parquet", 0, 2, 10, 0, "{}"),))


def claim(name: str, consumer: str, picks: Ranges = EMPTY, *, replayable: bool = False) -> Claim:
    return Claim(name, consumer, f"session of {consumer}", picks, 0, replayable)


def attached(*consumers: str) -> RecordSet:
    state = RecordSet()
    for consumer in consumers:
        state = state.attach(consumer, f"session of {consumer}")
    return state


def planned(state: RecordSet) -> RecordSet:
    return replace(state, journal=())


def done_to(newest: RecordSet, plan: RecordSet, dead: set[str] | None = None) -> RecordSet:
    """As the rule does it, from bytes."""
    change = PlannedChange.from_bytes(PlannedChange({"r": plan.journal or ()}, dead or ()).to_bytes())
    sessions = {f"session of {name}" for name in "abcdef"}
    return replayed(newest, change.journals["r"], sessions, change.dead)


def taken(state: RecordSet, name: str, consumer: str, last: int, count: int) -> RecordSet:
    return take(state, Offer(Ranges.of((1, last))), count, claim(name, consumer), 5, leads=True, sole=True)[0]


def test_only_changes_of_a_record_set_are_done() -> None:
    """C9: a store that serves others does nothing else for them."""
    for name in METHODS:
        assert hasattr(getattr(RecordSet, name), "__wrapped__"), name  # it notes itself
    for strange in ("cleared", "ended", "__init__", "noting"):
        with pytest.raises(ValueError, match="no change of a record set"):
            replayed(RecordSet(), [Noted(strange, (), {})], set(), ())


def test_a_journal_has_the_calls_of_a_plan_alone() -> None:
    """C9: not those that they lead to, and none that changed nothing."""
    state = planned(attached("a")).claim(claim("c1", "a", Ranges.of((1, 3))))
    after = state.sweep(set(), 0, 0).release("no such claim", delivered=True)
    assert [noted.method for noted in after.journal or ()] == ["claim", "sweep"]
    assert attached("a").claim(claim("c1", "a", Ranges.of((1, 3)))).journal is None


def test_each_consumer_gets_what_the_others_have_left() -> None:
    """C9: three plans on one state; the offers have some for each."""
    before = attached("a", "b", "c")
    plans = {name: taken(planned(before), f"of {name}", name, 20, 2) for name in "abc"}
    state = before
    for plan in plans.values():
        state = done_to(state, plan)
    assert {name: state.claims[f"of {name}"].picks for name in "abc"} == {
        "a": Ranges.of((1, 2)),
        "b": Ranges.of((3, 4)),
        "c": Ranges.of((5, 6)),
    }


def test_nothing_is_claimed_when_others_have_all() -> None:
    before = attached("a", "b")
    plan = taken(planned(before), "late", "b", 4, 4)
    assert "late" not in done_to(taken(before, "first", "a", 4, 4), plan).claims


def test_acknowledgement_and_next_claim_are_one_change() -> None:
    """C8, C9: while another consumer has claimed what this one was shown as free."""
    before = taken(attached("a", "b"), "a1", "a", 9, 2)
    plan = planned(before).acknowledge("a", "session of a", "a1", 1, 0)
    plan = taken(plan, "a2", "a", 9, 2)
    state = done_to(taken(before, "b1", "b", 9, 3), plan)
    assert state.floor == 2
    assert state.claims["a2"].picks == Ranges.of((6, 7))


def test_acknowledgement_of_a_lost_claim_is_refused() -> None:
    """C8: and nothing else of the change is done, since `replayed` returns no state."""
    before = taken(attached("a", "b"), "a1", "a", 9, 2)
    plan = planned(before).acknowledge("a", "session of a", "a1", 1, 0, Ranges.of((1, 2)))
    with pytest.raises(ConsumerClosedException, match="revoked or taken over"):
        done_to(before.revoke("a1"), plan)
    assert done_to(done_to(before, plan), plan).floor == 2  # it is done already


def intent(ticket: Ticket = TICKET) -> Intent:
    return Intent(ticket, Ranges.of((1, 2)), (TARGET,), "redelivery limit", "a1", "why", 0)


def refusal() -> MessageRefusal:
    return MessageRefusal(Ranges.of((1, 2)), "redelivery limit", "why", "failed", "1/2", NO_RULE, 0)


@pytest.mark.parametrize(
    "step",
    [
        lambda state: state.move("a1", intent()),
        lambda state: state.refuse("a1", refusal(), delivered=True),
        lambda state: state.release("a1", delivered=False).discard(Ranges.of((1, 2)), "jmsq purge", "p", 1, 0),
        lambda state: state.release("a1", delivered=False).claim(claim("a2", "a", Ranges.of((1, 2)))),
    ],
    ids=["move", "refuse", "discard", "claim"],
)
def test_a_step_of_certain_messages_is_planned_again_when_they_are_not_as_planned(step: Any) -> None:
    """C8, C18: the claim was revoked, and another consumer has the messages."""
    before = taken(attached("a", "b"), "a1", "a", 9, 2)
    plan = step(planned(before))
    assert done_to(before, plan) == replace(plan, journal=None)
    with pytest.raises(StateChangedError):
        done_to(taken(before.revoke("a1"), "b1", "b", 9, 3), plan)


def test_the_end_of_a_transfer_is_done_once() -> None:
    """C18: two consumers finish the same transfer; another one may have its slot by then."""
    before = taken(attached("a", "b"), "a1", "a", 9, 2).move("a1", intent())
    for end in (lambda s: s.moved(TICKET, 1, 0), lambda s: s.returned(TICKET)):
        once = done_to(before, end(planned(before)))
        assert not once.intents
        assert done_to(once, end(planned(before))) == once
    again = once.claim(claim("a1", "a", Ranges.of((1, 2)))).move("a1", intent(replace(TICKET, number=2)))
    assert done_to(again, planned(before).returned(TICKET)) == again


def test_what_ends_by_itself_leaves_out_what_others_have() -> None:
    """T6, C12: expired and refused messages that another consumer has claimed meanwhile stay its own."""
    before, stamp = attached("a", "b"), Stamp(1, 0)
    plan = (
        planned(before)
        .expire(Ranges.of((1, 4)), "expired-discard", stamp)
        .skip(Ranges.of((5, 8)), SELECTOR_REFUSED, stamp)
    )
    state = done_to(before.claim(claim("b1", "b", Ranges.of((2, 2), (6, 6)))), plan)
    assert state.unfinished(1, 8) == Ranges.of((2, 2), (6, 6))
    assert state.expired == 3


def test_a_limit_that_two_apply_drops_once() -> None:
    """T4: the second finds that it is applied, or drops only what has arrived since."""
    before = attached("a", "b")
    first = planned(before).limited(6, Ranges.of((1, 2)), "limit-1", 1, 0)
    second = planned(before).limited(6, Ranges.of((1, 2)), "limit-2", 1, 0)
    later = planned(before).limited(8, Ranges.of((1, 4)), "limit-3", 1, 0)
    once = done_to(before, first)
    assert done_to(once, second) == once
    state = done_to(once, later)
    assert (state.limit.arrived, state.limit.dropped, state.floor) == (8, 4, 4)


def test_a_session_that_connects_meanwhile_is_alive() -> None:
    """C9: the plan has not seen it; whom the plan has found dead, loses its claims."""
    before = taken(attached("a", "b"), "b1", "b", 9, 2)
    plan = planned(before).sweep({"session of a"}, 0, 0)
    assert plan.journal is not None
    dead = found_dead(before, plan.journal)
    assert dead == {"session of b"}
    newest = taken(before.attach("c", "session of c"), "c1", "c", 9, 2)
    state = done_to(newest, plan, dead)
    assert state.claims.keys() == {"c1"}
    assert state.consumers.keys() == {"a", "c"}
    assert found_dead(before, planned(before).start_at(1).journal or ()) == set()
