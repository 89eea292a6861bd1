"""Offsets, limits, shares, sharing of members, durations (C5, C6, C9)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.batch import Batch, MemberPick, fair_shares, preferred, wanted
from spark_jms.errors import FormatVersionError, OffsetError
from spark_jms.settings.types import parse_duration_ms

picks = st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)), min_size=1, max_size=30).map(
    lambda pairs: Ranges.of(*((min(p), max(p)) for p in pairs))
)


@given(
    st.dictionaries(st.integers(0, 20), st.tuples(st.integers(1, 99), picks, picks), max_size=5), st.text(), st.text()
)
def test_offset_round_trips_as_its_batch(
    members: dict[int, tuple[int, Ranges, Ranges]], consumer: str, claim: str
) -> None:
    """C5: an offset alone restores its batch, and equal batches make equal offsets."""
    batch = Batch(consumer, claim, {m: MemberPick(e, p, {2: r}) for m, (e, p, r) in members.items()})
    text = json.dumps(batch.to_json())
    assert Batch.from_json(json.loads(text)) == batch
    assert json.dumps(Batch(consumer, claim, dict(reversed(list(batch.members.items())))).to_json()) == text


@pytest.mark.parametrize(
    "bad",
    [
        None,
        [],
        {},
        {"v": 1},
        {"v": 1, "consumer": "c", "claim": "x", "members": {"0": {}}},
        {"v": 1, "consumer": 3, "claim": "x", "members": {}},
        {"v": 1, "consumer": "c", "claim": "x", "members": {"0": {"epoch": 1, "pick": "?"}}},
    ],
)
def test_corrupt_offset_raises_offset_error(bad: object) -> None:
    """C5: the error of a damaged or foreign offset tells what it is and what to do."""
    with pytest.raises(OffsetError, match="checkpoint"):
        Batch.from_json(bad)


def test_newer_offset_raises_format_version_error() -> None:
    """C16: a reader refuses the offset of a later version."""
    with pytest.raises(FormatVersionError, match="version 7"):
        Batch.from_json({"v": 7, "consumer": "c", "claim": "", "members": {}})


@given(st.integers(0, 200), st.dictionaries(st.integers(0, 9), st.integers(0, 60), max_size=8))
def test_shares_are_fair(limit: int, want: dict[int, int]) -> None:
    """C6: the limit is used up, no member gives more than it has, and a smaller share is all that its member has."""
    shares = fair_shares(limit, want)
    assert sum(shares.values()) == min(limit, sum(want.values()))
    assert all(0 <= shares[m] <= want[m] for m in want)
    largest = max(shares.values(), default=0)
    assert all(shares[m] == want[m] or shares[m] >= largest - 1 for m in want)


def test_consumer_asks_for_its_share_of_members() -> None:
    """C9: a consumer asks for free members and up to its fair share; with a selector it visits all members."""
    all_free = dict.fromkeys(range(4))
    assert wanted("a", all_free, {}, visits_all=False, needed=set()) == [0, 1, 2, 3]
    all_b: dict[int, str | None] = dict.fromkeys(range(4), "b")
    asked = wanted("a", all_b, {}, visits_all=False, needed=set())
    assert len(asked) == 2
    assert wanted("a", {0: "a", 1: "a", 2: "b", 3: "b"}, {}, visits_all=False, needed=set()) == []
    assert wanted("a", {0: "a", 1: "a", 2: "b", 3: "b"}, {}, visits_all=False, needed={3}) == [3]
    assert wanted("a", {0: "a", 1: "b", 2: "b", 3: "b"}, {}, visits_all=True, needed=set()) == [1, 2, 3]
    assert wanted("c", {0: "a", 1: "b"}, {0: ("d",)}, visits_all=False, needed=set()) == [1]
    waiting = wanted("c", {0: "a", 1: "b"}, {0: ("c",)}, visits_all=False, needed=set())
    assert waiting == [0]  # it keeps its place in the queue and asks nowhere else


@given(st.integers(1, 8), st.integers(1, 8), st.randoms(use_true_random=False))
def test_sharing_converges_on_fair_shares(members: int, consumers: int, random: object) -> None:
    """C9: with owners that hand over on request, every consumer soon has its floor share and no consumer asks for more."""
    names = [f"c{i}" for i in range(consumers)]
    holders: dict[int, str | None] = dict.fromkeys(range(members))
    waiters: dict[int, tuple[str, ...]] = {}
    asked = 0
    for _ in range(40):
        asked = 0
        for me in random.sample(names, len(names)):  # type: ignore[attr-defined]
            for m in list(holders):  # a boundary of `me`: hand over every requested member
                if holders[m] == me and waiters.get(m):
                    holders[m], *rest = waiters[m]
                    waiters[m] = tuple(rest)
            for m in wanted(me, holders, waiters, visits_all=False, needed=set()):
                if holders[m] is None:
                    holders[m] = me
                elif me not in waiters.get(m, ()):
                    waiters[m] = (*waiters.get(m, ()), me)
                    asked += 1
    counts = [list(holders.values()).count(me) for me in names]
    assert sum(counts) == members
    if members >= consumers:
        assert min(counts) >= members // consumers
        assert asked == 0


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("500ms", 500),
        ("30 s", 30_000),
        ("15 minutes", 900_000),
        ("1 day", 86_400_000),
        ("2h", 7_200_000),
        (0, 0),
        ("1.5 s", 1500),
        ("3 seconds", 3000),
        ("1m", 60_000),
    ],
)
def test_durations_are_parsed(text: object, ms: int) -> None:
    """C6: durations with and without units are read."""
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("bad", ["", "soon", "-1 s", "5 fortnights", True, None, 250, "250"])
def test_bad_durations_are_refused(bad: object) -> None:
    """C6: the error of any other text lists the accepted forms."""
    with pytest.raises(ValueError, match="duration|has no unit: write 250s"):
        parse_duration_ms(bad)


@given(
    st.sets(st.text("abcdef", min_size=1, max_size=2), min_size=1, max_size=6), st.sets(st.integers(0, 20), max_size=8)
)
def test_consumers_prefer_members_that_others_do_not(consumers: set[str], members: set[int]) -> None:
    """C9: every member has a consumer, and the consumers have as many members as they can have evenly."""
    chosen = {one: preferred(one, consumers - {one}, members) for one in consumers}
    assert set().union(*chosen.values()) == members or len(consumers) > len(members)
    counts = [sum(member in own for own in chosen.values()) for member in members]
    if len(consumers) <= len(members):
        assert counts == [1] * len(members)
        assert max(map(len, chosen.values())) - min(map(len, chosen.values())) <= 1
    elif members:
        assert all(len(own) == 1 for own in chosen.values())
        assert max(counts) - min(counts) <= 1
