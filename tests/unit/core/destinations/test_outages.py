"""What was sent while a server was down (D6): core/outages.py."""

from __future__ import annotations

import json
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.destinations.servers import NO_OUTAGES, Outages, Span
from spark_jms.core.messages.ranges import Ranges

SERVERS = ("a", "b", "c")
EVENTS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 3), st.integers(1, 3)),
    st.tuples(st.just("down"), st.sampled_from(SERVERS), st.none()),
    st.tuples(st.just("up"), st.sampled_from(SERVERS), st.none()),
    st.tuples(st.just("add member"), st.none(), st.none()),
    st.tuples(st.just("purge"), st.integers(0, 3), st.integers(1, 3)),
)


@given(st.lists(EVENTS, max_size=40))
def test_outage_has_exactly_the_messages_of_its_time(events: list[tuple[str, object, object]]) -> None:
    """D6: over any sends, stops, starts, new members and purges, a server has missed the messages that were sent while it was
    down, and no others; of those that were removed it may know nothing."""
    outages, down = NO_OUTAGES, set[str]()
    last, first = {0: 0, 1: 0}, {0: 1, 1: 1}
    missed: dict[tuple[str, int], set[int]] = defaultdict(set)
    for what, which, count in events:
        if what == "send" and which in last:
            for _ in range(int(str(count))):
                last[which] += 1
                for server in down:
                    missed[server, which].add(last[which])
        elif what == "purge" and which in last:
            first[which] = min(first[which] + int(str(count)), last[which] + 1)
        elif what == "add member":
            last[len(last)], first[len(first)] = 0, 1
        elif what in ("down", "up"):
            down = down | {str(which)} if what == "down" else down - {str(which)}
            outages = outages.following(down, SERVERS, {m: Span(first[m], last[m]) for m in last})
            outages = Outages.from_json(json.loads(json.dumps(outages.to_json())))
        for server in SERVERS:
            for member, end in last.items():
                found = outages.missed(server, member, end).between(first[member], max(end, 1))
                assert set(found.numbers().tolist()) == {n for n in missed[server, member] if n >= first[member]}


def test_outage_without_messages_leaves_nothing() -> None:
    """D6: servers that go up and down make the table's state grow only by what was sent meanwhile."""
    outages, members = NO_OUTAGES, {0: Span(1, 5)}
    for _ in range(3):
        outages = outages.following({"a"}, SERVERS, members)
        assert outages.to_json() == [["a", 0, 6, None]]
        outages = outages.following((), SERVERS, members)
        assert outages == NO_OUTAGES


def test_outages_end_with_their_messages_and_their_server() -> None:
    """D6: of what is not in the table any more, and of a removed server, nothing is kept."""
    outages = NO_OUTAGES.following({"a", "b"}, SERVERS, {0: Span(1, 5)}).following((), SERVERS, {0: Span(1, 9)})
    assert outages.missed("a", 0, 7) == Ranges.of((6, 7))
    kept = outages.following({"c"}, ("a", "c"), {0: Span(8, 9)})
    assert kept.to_json() == [["a", 0, 8, 9], ["c", 0, 10, None]]
