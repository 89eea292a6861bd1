"""What a consumer takes of an offer that others have overtaken: nothing that is not to be had, and no unit out of order.

C9 (competing consumers), C12 (units of order), T12 (units of work).
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.ordering.units_of_order import NO_UNITS, UnitMessages
from spark_jms.core.records.endings import Stamp
from spark_jms.core.records.journal import PlannedChange, replayed
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import Claim
from spark_jms.core.records.refusal import NO_RULE, MessageRefusal
from spark_jms.core.records.take import Offer, take
from spark_jms.core.transactions.transaction import Pledge
from spark_jms.core.transactions.transfer import Ticket

LIMIT = 3  # redelivery limit


def claim(name: str = "c1", consumer: str = "me", *, replayable: bool = True) -> Claim:
    return Claim(name, consumer, "session", EMPTY, 0, replayable)


def units(**members: list[int]) -> UnitMessages:
    pairs = sorted((number, unit) for unit, numbers in members.items() for number in numbers)
    return UnitMessages.of(pa.array([n for n, _ in pairs], pa.int64()), pa.array([u for _, u in pairs], pa.string()))


def picked(state: RecordSet, offer: Offer, count: int = 100, *, sole: bool = True, replayable: bool = True) -> Ranges:
    return take(state, offer, count, claim(replayable=replayable), LIMIT, leads=True, sole=sole)[1]


def of(*numbers: int) -> Ranges:
    return Ranges.from_numbers(numbers)


def with_claim(state: RecordSet, *numbers: int, name: str = "other") -> RecordSet:
    return state.claim(replace(claim(name, "other"), picks=of(*numbers)))


def test_the_first_that_are_still_to_be_had_are_claimed() -> None:
    """C9: what others have claimed or finished since is passed over."""
    state = with_claim(RecordSet(), 1, 2).skip(of(4))
    after, picks = take(state, Offer(Ranges.of((1, 10))), 3, claim(), LIMIT, leads=True, sole=True)
    assert picks == of(3, 5, 6) == after.claims["c1"].picks
    assert after.claims["other"] is state.claims["other"]


def test_nothing_is_claimed_of_an_offer_that_is_gone() -> None:
    state = with_claim(RecordSet(), 1, 2, 3)
    assert take(state, Offer(of(1, 2, 3)), 3, claim(), LIMIT, leads=True, sole=True) == (state, EMPTY)
    assert take(state, Offer(of(4)), 0, claim(), LIMIT, leads=True, sole=True) == (state, EMPTY)


@pytest.mark.parametrize("how", ["claimed", "delayed", "beyond the limit", "refused", "pledged"])
def test_a_message_that_is_not_to_be_had_holds_back_what_is_behind_it_in_its_unit(how: str) -> None:
    """C12."""
    offer = Offer(Ranges.of((1, 8)), units=units(a=[1, 3, 5], b=[2, 6]))
    state = with_claim(RecordSet(), 3)
    if how == "delayed":
        state = state.release("other", delivered=True, until_ms=1000)
    elif how == "beyond the limit":
        for _ in range(LIMIT + 1):
            state = with_claim(state.release("other", delivered=True), 3)
        state = state.release("other", delivered=True)
    elif how == "pledged":
        state = replace(state, consumers={"other": "session"})
        state = state.pledge("session", Pledge(Ticket("t", 0, 1), "coordinator", of(3), "other", "other", 0))
    elif how == "refused":
        state = state.refuse("other", MessageRefusal(of(3), "jmsq", "", "errors", "", NO_RULE, 0), delivered=False)
    assert picked(state, replace(offer, returns=state.returns)) == of(1, 2, 4, 6, 7, 8)


def test_a_finished_message_holds_back_nothing() -> None:
    state = RecordSet().skip(of(3))
    assert picked(state, Offer(Ranges.of((1, 5)), units=units(a=[1, 3, 5]))) == of(1, 2, 4, 5)


def test_units_that_nobody_has_read_are_one() -> None:
    """C12: the first that is not to be had holds back all behind it."""
    assert picked(with_claim(RecordSet(), 3), Offer(Ranges.of((1, 5)), units=None)) == of(1, 2)
    assert picked(RecordSet().skip(of(1)), Offer(Ranges.of((1, 5)), units=None)) == of(2, 3, 4, 5)


def test_sorted_messages_overtake_none_that_units_hold_back() -> None:
    """C12: 4 to 6 may be of the unit of 3, and no message is delivered before one of them that it would follow."""

    def of_order(*order: int) -> Ranges:
        offer = Offer(Ranges.of((1, 6)), pa.array(order, pa.int64()), units=None)
        return picked(with_claim(RecordSet(), 3), offer)

    assert of_order(2, 3, 1, 6, 5, 4) == of(1, 2)
    assert of_order(3, 2, 6, 1, 5, 4) == of(2)
    assert of_order(6, 5, 4, 3, 2, 1) == EMPTY
    offer = Offer(Ranges.of((1, 3)), pa.array([3, 2, 1], pa.int64()), units=None)
    assert picked(with_claim(RecordSet(), 3), offer) == of(1, 2)


def test_an_offer_with_units_is_made_again_after_a_return() -> None:
    """C12: message 1 was this consumer's own when 2 was offered, and is available again: it comes first."""
    state = with_claim(RecordSet(), 1)
    for known in (None, units(a=[2])):
        offer = Offer(of(2, 3), units=known, returns=state.returns)
        returned = state.release("other", delivered=False)
        assert picked(returned, offer) == EMPTY
        assert picked(state, offer) == of(2, 3)
    assert picked(state.release("other", delivered=False), Offer(of(2, 3))) == of(2, 3)  # no unit, no order


def test_units_of_work_are_taken_whole_or_not_at_all() -> None:
    """T12: of the units (1, 4) and (2, 5), and the single messages 3 and 6."""
    order, ends = pa.array([3, 1, 4, 2, 5, 6], pa.int64()), pa.array([1, 3, 5, 6], pa.int64())
    offer = Offer(Ranges.of((1, 6)), order, ends)
    assert picked(with_claim(RecordSet(), 4), offer) == of(2, 3, 5, 6)
    assert picked(RecordSet().skip(of(5)), offer, 3) == of(1, 3, 4)
    assert picked(with_claim(RecordSet(), 3, 6), offer, 1) == of(1, 4)  # at least one, however large
    assert picked(with_claim(RecordSet(), 3, 1, 2, 6), offer) == EMPTY


def test_a_sorted_offer_keeps_its_order() -> None:
    """C12: the first in the order of delivery, not the lowest."""
    offer = Offer(Ranges.of((1, 5)), pa.array([5, 3, 1, 2, 4], pa.int64()))
    state, picks = take(with_claim(RecordSet(), 5, 1), offer, 2, claim(replayable=False), LIMIT, leads=True, sole=True)
    assert picks == of(2, 3)
    assert state.claims["c1"].order == (of(3), of(2))


def test_messages_that_killed_their_consumer_are_claimed_alone() -> None:
    """C5: also when that happened after the offer was made."""
    offer = Offer(Ranges.of((1, 4)))
    dead = with_claim(RecordSet(), 2)
    dead = replace(dead, claims={"other": replace(dead.claims["other"], replayable=False)}).revoke("other")
    assert dead.deliveries.alone.all() == of(2)
    assert picked(dead, offer, replayable=False) == of(1)
    behind = Offer(Ranges.of((2, 4)))
    assert picked(dead, behind, replayable=False) == of(2)
    assert picked(dead, behind, replayable=False, sole=False) == EMPTY
    assert picked(dead, behind) == Ranges.of((2, 4))  # tasks get all messages of a query's batch at once


# -- properties --------------------------------------------------------------------------------------------------------

MESSAGES = 12
numbers = st.integers(1, MESSAGES)
picks_of = st.sets(numbers, min_size=1).map(Ranges.from_numbers)


@st.composite
def states(draw: st.DrawFn) -> RecordSet:
    """Some claimed, delayed, finished."""
    state = RecordSet()
    for number, kind in enumerate(draw(st.lists(st.sampled_from("acdr"), min_size=MESSAGES, max_size=MESSAGES)), 1):
        if kind == "d":
            state = state.skip(of(number))
        elif kind in "cr":
            state = with_claim(state, number, name=f"x{number}")
            if kind == "r":
                state = state.release(f"x{number}", delivered=True, until_ms=1000)
    return state


@given(states(), picks_of, st.integers(0, MESSAGES), st.booleans(), st.booleans())
def test_no_take_claims_what_is_not_available(
    state: RecordSet, candidates: Ranges, count: int, known: bool, sorted_: bool
) -> None:
    """C9: whatever was offered, `RecordSet.claim` itself finds nothing wrong, and everything else stays as it is."""
    order = pa.array(list(reversed(candidates.numbers().to_pylist())), pa.int64()) if sorted_ else None
    offer = Offer(candidates, order, units=NO_UNITS if known else None, returns=state.returns)
    after, picks = take(state, offer, count, claim(), LIMIT, leads=True, sole=True)
    assert picks.count <= count
    free = state.available(1, MESSAGES) - state.waiting
    assert picks - (candidates & free) == EMPTY
    assert replace(after, claims=state.claims) == state
    if known:
        assert picks.count == min(count, (candidates & free).count)


class Consumers(RuleBasedStateMachine):
    """Consumers of one member who plan on states that get old, and take, acknowledge, give back and die in any order. Messages
    1, 4, 7 … are of unit a, 2, 5, 8 … of unit b, the others of none."""

    UNITS = "ab"

    @initialize(reads=st.booleans())
    def begin(self, reads: bool) -> None:
        """`reads`: plans tell which candidates belong to which unit."""
        self.reads, self.state, self.names = reads, RecordSet(), 0
        self.plans: dict[str, tuple[RecordSet, Offer]] = {}
        self.taken: list[tuple[str, Ranges]] = []

    def unit(self, number: int) -> str | None:
        return {1: "a", 2: "b"}.get(number % 3)

    @rule(consumer=st.sampled_from(["x", "y", "z"]), last=numbers)
    def plan(self, consumer: str, last: int) -> None:
        """As the planner does: nothing behind a message that another consumer has, or that is delayed, in its unit."""
        state = self.state
        others = Ranges.from_numbers(
            n for c in state.claims.values() if c.consumer != consumer for n in c.picks.numbers().to_pylist()
        )
        blocking: dict[str | None, int] = {}
        for number in sorted([*others.numbers().to_pylist(), *state.waiting.numbers().to_pylist()]):
            blocking.setdefault(self.unit(number), 0 if number in others else number)
        free = state.available(1, last) - state.waiting
        picks = [n for n in free.numbers().to_pylist() if (u := self.unit(n)) is None or n <= blocking.get(u, MESSAGES)]
        if not picks:
            return
        known = units(**{u: [n for n in picks if self.unit(n) == u] for u in self.UNITS}) if self.reads else None
        self.plans[consumer] = replace(state, journal=()), Offer(of(*picks), units=known, returns=state.returns)

    @precondition(lambda self: self.plans)
    @rule(data=st.data(), count=st.integers(1, 5))
    def take(self, data: st.DataObject, count: int) -> None:
        consumer = data.draw(st.sampled_from(sorted(self.plans)))
        (known, offer), before = self.plans.pop(consumer), self.state
        self.names += 1
        made = claim(f"c{self.names}", consumer)
        planned, _ = take(known, offer, count, made, LIMIT, leads=True, sole=True)
        change = PlannedChange.from_bytes(PlannedChange({"x": planned.journal or ()}).to_bytes())
        self.state = replayed(before, change.journals["x"], {"session"}, change.dead)
        taken = self.state.claims.get(made.id)
        picks = taken.picks if taken else EMPTY
        assert picks - (before.available(1, MESSAGES) - before.waiting) == EMPTY
        own = Ranges.from_numbers(
            n for c in self.state.claims.values() if c.consumer == consumer for n in c.picks.numbers().to_pylist()
        )
        for number in picks.numbers().to_pylist():
            unit = self.unit(number)
            for earlier in range(1, number):
                if unit is not None and self.unit(earlier) == unit:
                    assert self.state.is_done(of(earlier)) or earlier in own, (earlier, number)

    def _some_claim(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.state.claims)))

    @precondition(lambda self: self.state.claims)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        name = self._some_claim(data)
        consumer = self.state.claims[name].consumer
        self.state = replace(self.state, consumers={consumer: "session"}).acknowledge(consumer, "session", name, 1, 0)

    @precondition(lambda self: self.state.claims)
    @rule(data=st.data(), delivered=st.booleans(), until_ms=st.sampled_from([0, 1000]))
    def give_back(self, data: st.DataObject, delivered: bool, until_ms: int) -> None:
        self.state = self.state.release(self._some_claim(data), delivered=delivered, until_ms=until_ms)

    @precondition(lambda self: self.state.claims)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        self.state = self.state.revoke(self._some_claim(data))

    @precondition(lambda self: self.state.delays)
    @rule()
    def delays_end(self) -> None:
        self.state = replace(self.state, delays={})

    @rule(picks=picks_of)
    def expire(self, picks: Ranges) -> None:
        self.state = self.state.expire(picks, "expired-discard", Stamp(1, 0))

    @invariant()
    def each_message_is_in_one_state(self) -> None:
        claimed = [c.picks for c in self.state.claims.values()]
        assert sum(one.count for one in claimed) == self.state.claimed.count
        assert self.state.unfinished_of(self.state.claimed) == self.state.claimed


TestConsumers = Consumers.TestCase
TestConsumers.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
