"""Units of order: which messages wait for an earlier one of their unit, against plain Python (T10)."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.ordering.blocked_units import BlockedUnits
from spark_jms.core.ordering.units_of_order import NO_UNITS, UnitMessages

UNITS = st.sampled_from(["a", "b", "c", None])


def messages(units: list[str | None], first: int = 1) -> UnitMessages:
    return UnitMessages.of(pa.array(range(first, first + len(units)), pa.int64()), pa.array(units, pa.string()))


@given(st.lists(st.tuples(UNITS, st.booleans()), max_size=40), st.lists(st.integers(1, 9), max_size=6))
def test_message_waits_behind_the_first_one_of_its_unit_that_cannot_be_delivered(
    rows: list[tuple[str | None, bool]], cuts: list[int]
) -> None:
    """T10: whatever pieces the messages are looked at in."""
    expected: list[bool] = []
    stuck: set[str] = set()
    for unit, deliverable in rows:
        if unit is not None and not deliverable:
            stuck.add(unit)
        expected.append(unit in stuck)
    blocked, got = BlockedUnits(), []
    bounds = [0, *(cut for cut in accumulate(cuts) if cut < len(rows)), len(rows)]
    for begin, end in pairwise(bounds):
        units = pa.array([unit for unit, _ in rows[begin:end]], pa.string())
        sequences = pa.array(range(begin + 1, end + 1), pa.int64())
        stays = pa.array([not deliverable for _, deliverable in rows[begin:end]], pa.bool_())
        blocked.block_behind(UnitMessages.of(sequences, units, among=stays).first_of_units())
        waiting = blocked.waiting(sequences, units)
        got += [False] * (end - begin) if waiting is None else waiting.to_pylist()
    assert got == expected


@given(st.lists(UNITS, max_size=30), st.lists(UNITS, min_size=1, max_size=10), st.integers(1, 40))
def test_claim_of_another_consumer_blocks_the_whole_unit(
    units: list[str | None], claimed: list[str | None], first: int
) -> None:
    """T10: also the messages in front of the claimed one, and whatever blocks the unit besides."""
    blocked = BlockedUnits()
    blocked.block_behind({"a": 20})
    blocked.block_units(messages(claimed, first))
    blocked.block_behind({"b": 30})
    sequences = pa.array(range(1, len(units) + 1), pa.int64())
    waiting = blocked.waiting(sequences, pa.array(units, pa.string()))
    since = {"a": 20, "b": 30, **dict.fromkeys(filter(None, claimed), 0)}
    expected = [unit is not None and n >= since.get(unit, 99) for n, unit in enumerate(units, 1)]
    assert (waiting.to_pylist() if waiting is not None else [False] * len(units)) == expected


SETS = st.lists(
    st.tuples(st.dictionaries(st.sampled_from("abcde"), st.integers(0, 9), max_size=4), st.booleans()), max_size=14
)


@given(SETS, st.sets(st.sampled_from("abcdef")))
def test_large_sets_of_blocked_units_block_as_small_ones_do(
    sets: list[tuple[dict[str, int], bool]], asked: set[str]
) -> None:
    """T10: however many there are, and given again or not; a copy stays as it is."""
    blocked, since, before = BlockedUnits(), dict[str, int](), BlockedUnits()
    for some, is_large in sets:
        given_ = {**some, **{f"x{n}": 1 for n in range(100 * is_large)}}
        before, same = blocked.copy(), all(since.get(unit, 99) <= first for unit, first in given_.items())
        blocked.block_behind(given_)
        blocked.block_behind(given_)
        if blocked.is_like(before):
            assert same
        since |= {unit: min(first, since.get(unit, first)) for unit, first in given_.items()}
        assert blocked.among(dict.fromkeys(asked)) == {unit: since[unit] for unit in asked & since.keys()}
    assert blocked.is_like(blocked.copy())
    assert bool(blocked) == bool(since)


@given(st.lists(st.tuples(UNITS, st.integers(0, 5)), max_size=30), st.integers(0, 6))
def test_messages_of_units_know_their_first_and_their_end(rows: list[tuple[str | None, int]], now_ms: int) -> None:
    """T10: an expired message blocks nothing; `together` keeps every message."""
    parts = [
        UnitMessages.of(pa.array([n], pa.int64()), pa.array([unit], pa.string()), pa.array([end], pa.int64()))
        for n, (unit, end) in enumerate(rows, 1)
    ]
    every = UnitMessages.together(parts)
    members = [(n, unit, end) for n, (unit, end) in enumerate(rows, 1) if unit is not None]
    assert bool(every) == bool(members)
    assert Ranges.from_numbers(every.sequences) == Ranges.from_numbers([n for n, _, _ in members])
    firsts: dict[str, int] = {}
    for n, unit, _ in members:
        firsts.setdefault(unit, n)
    assert every.first_of_units() == firsts
    over = every.only(every.expired(now_ms))
    assert over.sequences.to_pylist() == [n for n, _, end in members if 0 < end <= now_ms]


def test_nothing_is_blocked_by_nothing() -> None:
    """T10"""
    blocked = BlockedUnits()
    blocked.block_units(NO_UNITS)
    blocked.block_behind(NO_UNITS.first_of_units())
    assert not blocked
    assert blocked.waiting(pa.array([1]), pa.array(["a"])) is None
