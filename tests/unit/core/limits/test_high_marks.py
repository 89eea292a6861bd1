"""T17: the rule of high marks and of received bytes."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.limits.usage_history import (
    FORMAT_VERSION,
    NOTHING,
    DestinationLook,
    DomainMarks,
    HeldMessages,
    ReceivedBytes,
)

HELD = st.builds(HeldMessages, *[st.integers(0, 100)] * 3)


def look(held: HeldMessages, last: int = 0, came: int = 0, table: str = "t") -> DestinationLook:
    return DestinationLook(table, held, {0: held}, {"-": held}, {0: ReceivedBytes(last, came)})


@given(st.lists(HELD, min_size=1, max_size=10))
def test_marks_are_the_highest_of_all_looks(looks: list[HeldMessages]) -> None:
    """T17: each of messages, pending messages and bytes by itself; of destination, members, subscriptions and servers."""
    marks = DomainMarks()
    for now_ms, held in enumerate(looks):
        marks = marks.after({"orders": look(held)}, {"home": held}, now_ms)
    found = marks.destinations["orders"]
    highest = HeldMessages(*(max(getattr(one, of) for one in looks) for of in ("messages", "pending", "bytes")))
    assert found.high == found.members[0] == found.subscriptions["-"] == marks.servers["home"].high == highest
    assert found.since_ms == marks.servers["home"].since_ms == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 100)), max_size=10))
def test_received_bytes_count_from_the_first_look(arrivals: list[tuple[int, int]]) -> None:
    """T17: what was there before the first look is not counted."""
    marks, last = DomainMarks().after({"orders": look(NOTHING, 5, 1_000)}, {}, 0), 5
    for messages, size in arrivals:
        last += messages
        marks = marks.after({"orders": look(NOTHING, last, size)}, {}, 1)
    found = marks.destinations["orders"]
    assert found.received_bytes == sum(size for _, size in arrivals)
    assert found.received[0].last == last


def test_another_table_of_the_name_begins_again() -> None:
    """T17: a destination that was dropped and created."""
    marks = DomainMarks().after({"orders": look(HeldMessages(9, 9, 9))}, {}, 1)
    marks = marks.after({"orders": look(HeldMessages(2, 1, 0), table="other")}, {}, 2)
    assert (marks.destinations["orders"].high, marks.destinations["orders"].since_ms) == (HeldMessages(2, 1, 0), 2)


def test_members_and_subscriptions_that_are_no_more_lose_their_marks() -> None:
    """T17"""
    both = DestinationLook("t", NOTHING, {0: NOTHING, 1: NOTHING}, {"a": NOTHING, "b": NOTHING}, {})
    one = DestinationLook("t", NOTHING, {1: NOTHING}, {"b": NOTHING}, {})
    marks = DomainMarks().after({"orders": both}, {}, 1).after({"orders": one}, {}, 2)
    assert set(marks.destinations["orders"].members) == {1}
    assert set(marks.destinations["orders"].subscriptions) == {"b"}


def test_reset_marks_begin_with_the_next_look() -> None:
    """T17: of the named ones alone."""
    held = HeldMessages(9, 9, 9)
    marks = DomainMarks().after({"orders": look(held, 7), "prices": look(held)}, {"home": held, "east": held}, 1)
    marks = marks.reset(["orders"], ["east"])
    marks = marks.after(
        {"orders": look(NOTHING, 9, 50), "prices": look(NOTHING)}, {"home": NOTHING, "east": NOTHING}, 2
    )
    assert (marks.destinations["orders"].high, marks.destinations["orders"].since_ms) == (NOTHING, 2)
    assert marks.destinations["orders"].received_bytes == 0
    assert marks.destinations["prices"].high == marks.servers["home"].high == held
    assert marks.servers["east"].high == NOTHING


def test_dropped_destinations_and_servers_are_forgotten() -> None:
    """T17"""
    marks = DomainMarks().after({"a": look(NOTHING), "b": look(NOTHING)}, {"x": NOTHING, "y": NOTHING}, 1)
    left = marks.only(["a", "c"], ["x", "z"])
    assert (set(left.destinations), set(left.servers)) == ({"a"}, {"x"})


@given(HELD, HELD)
def test_marks_survive_their_file(one: HeldMessages, two: HeldMessages) -> None:
    """T17"""
    marks = DomainMarks().after({"orders": look(one, 3, 5)}, {"home": two}, 7)
    assert DomainMarks.from_json(json.loads(json.dumps(marks.to_json()))) == marks
    assert DomainMarks.from_json({"formatVersion": FORMAT_VERSION + 1}) is None
