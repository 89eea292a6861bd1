"""The limit of a subscription: what makes room for a new message, against a list that is worked off by hand (T4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.destinations.subscriptions import LIMIT, NOTHING_DROPPED, Arrivals, Droppable, LimitAccount, dropped
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.records.endings import Stamp
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.stored_form import changed_objects, from_objects, to_objects


@dataclass(frozen=True)
class Case:
    """Messages 1 to `last`; those up to `begun` were there before. `things` are the droppable ones in the order of delivery:
    single messages, and units of work as a whole."""

    begun: int
    last: int
    limit: int
    things: list[list[int]]

    @property
    def arrived(self) -> Ranges:
        return Ranges.of((self.begun + 1, self.last)) if self.last > self.begun else EMPTY

    @property
    def droppable(self) -> Droppable:
        order = [message for thing in self.things for message in thing]
        ends = [sum(len(thing) for thing in self.things[: n + 1]) for n in range(len(self.things))]
        return Droppable(Ranges.from_numbers(order), pa.array(order, pa.int64()), pa.array(ends, pa.int64()))


@st.composite
def cases(draw: st.DrawFn, *, whole: bool = True) -> Case:
    last = draw(st.integers(0, 14))
    begun = draw(st.integers(0, last))
    free = [message for message in range(1, last + 1) if draw(st.booleans())]
    things: list[list[int]] = []
    for message in free:
        if whole and things and draw(st.booleans()):
            draw(st.sampled_from(things)).append(message)
        else:
            things.append([message])
    return Case(begun, last, draw(st.integers(0, 8)), draw(st.permutations(things)))


def by_hand(case: Case) -> set[int]:
    """Message after message, with lists."""
    inside = list(range(1, case.begun + 1))
    out: list[int] = []
    for new in range(case.begun + 1, case.last + 1):
        while len(inside) >= case.limit:
            heads = [thing for thing in case.things if all(message in inside for message in thing)]
            if not heads:
                break
            out += heads[0]
            inside = [message for message in inside if message not in heads[0]]
        inside.append(new)
    return set(out)


@given(cases())
def test_heads_make_room_for_each_arrival(case: Case) -> None:
    """T4: the head by the order of delivery, units of work as a whole; a message of a unit stays until all of it is there."""
    picks = dropped(case.begun, case.arrived, case.droppable, case.limit)
    assert set(picks.numbers().tolist()) == by_hand(case)


@given(cases(whole=False))
def test_oldest_messages_make_room_in_fifo_order(case: Case) -> None:
    """T4: the short way for FIFO gives what the way for any order gives."""
    case = replace(case, things=sorted(case.things))
    fifo = Droppable(case.droppable.messages)
    picks = dropped(case.begun, case.arrived, fifo, case.limit)
    assert picks == dropped(case.begun, case.arrived, case.droppable, case.limit)
    assert set(picks.numbers().tolist()) == by_hand(case)


@given(cases())
def test_limit_holds_unless_messages_are_immune(case: Case) -> None:
    """T4: nothing is dropped without an arrival, or below the limit; the newest stays; and above the limit nothing is left
    to drop but the newest."""
    picks = dropped(case.begun, case.arrived, case.droppable, case.limit)
    left = case.last - picks.count
    assert not picks or case.arrived
    assert case.last not in picks
    longest = max([len(thing) for thing in case.things], default=1)
    assert not picks or left > case.limit - longest
    rest = [thing for thing in case.things if case.last not in thing and not set(thing) & set(picks.numbers().tolist())]
    if case.arrived and left > max(case.limit, 1):
        assert not rest


def test_text_example_of_fifo() -> None:
    """T4: a subscription of five that gets two more drops its two oldest; claimed messages stay."""
    everything = Ranges.of((1, 7))
    assert dropped(5, Ranges.of((6, 7)), Droppable(everything), 5) == Ranges.of((1, 2))
    assert dropped(5, Ranges.of((6, 7)), Droppable(everything - Ranges.of((1, 3))), 5) == Ranges.of((4, 5))
    assert dropped(5, Ranges.of((6, 7)), Droppable(EMPTY), 5) == EMPTY


def test_record_set_counts_what_it_drops() -> None:
    """T4, C5: dropped messages are done, stand in the outbox under the limit's name, and are counted; a store keeps it."""
    before = RecordSet()
    after = before.limited(10, Ranges.of((1, 4)), "limit-1", 7, 1000).limited(12, Ranges.of((5, 6)), "limit-2", 7, 2000)
    assert after.floor == 6
    assert after.limit == LimitAccount(12, 6)
    assert [(row.consumer, row.claim, row.picks) for row in after.outbox] == [
        (LIMIT, "limit-1", Ranges.of((1, 4))),
        (LIMIT, "limit-2", Ranges.of((5, 6))),
    ]
    assert from_objects(to_objects(after), "x") == after
    stored = to_objects(after)
    assert "limit" not in to_objects(before)
    assert changed_objects(after, after.cleared())["limit"] is None
    looked = after.limited(13, EMPTY, "limit-3", 7, 3000)
    assert list(changed_objects(after, looked)) == ["limit"]
    assert from_objects({**stored, "limit": b"[13,6]"}, "x").limit == looked.limit


def test_subscription_that_reuses_a_record_set_begins_its_counts() -> None:
    """T4, T6, C10: a server that was away has kept that of an earlier subscription of this name."""
    earlier = (
        RecordSet()
        .expire(Ranges.of((1, 2)), "expired-log", Stamp(7, 0))
        .limited(9, Ranges.of((3, 5)), "limit-1", 7, 1000)
    )
    assert (earlier.limit.dropped, earlier.expired) == (3, 2)
    begun = earlier.start_at(12)
    assert (begun.limit, begun.expired, begun.floor) == (NOTHING_DROPPED, 0, 12)
    assert begun.start_at(12) is begun


# -- the whole subscription of a replicated topic ----------------------------------------------------------------------
MEMBERS = st.dictionaries(
    st.integers(0, 3), st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=1, max_size=6), min_size=1, max_size=3
)


def as_arrivals(times: Mapping[int, list[int | None]], first: int = 5) -> Arrivals:
    """Of each member the messages `first` …, sent at these times."""
    return Arrivals.of(
        {m: (Ranges.of((first, first + len(sent) - 1)), pa.array(sent, pa.int64())) for m, sent in times.items()}
    )


@given(MEMBERS, st.integers(0, 20))
def test_oldest_messages_of_all_members_make_room(times: dict[int, list[int | None]], excess: int) -> None:
    """T4, D6: by the time of sending; within a member by the sequence, whatever clocks say; never the newest."""
    places = []
    for member, sent in times.items():
        latest = 0
        for number, ms in enumerate(sent, 5):
            latest = max(latest, ms or 0)
            places.append((latest, member, number))
    places.sort()
    expected: dict[int, list[int]] = {}
    for _, member, number in places[:-1][:excess]:
        expected.setdefault(member, []).append(number)
    arrivals = as_arrivals(times)
    found = arrivals.first(arrivals.order, excess)
    assert {member: each.numbers().tolist() for member, each in found.items()} == expected
    assert [places[rank] for rank in arrivals.ranks.to_pylist()] == [
        place for member in times for place in places if place[1] == member
    ]
