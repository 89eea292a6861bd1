"""Offsets, limits, shares, sharing of members, durations (C5, C6, C9)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.batch import Batch, MemberPick, fair_shares, preferred
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
