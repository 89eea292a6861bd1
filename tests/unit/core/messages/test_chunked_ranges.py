"""Chunked sets against Python sets, and their stored form (C5, C18)."""

from __future__ import annotations

import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages import chunked_ranges
from spark_jms.core.messages.chunked_ranges import NONE, Chunk, ChunkedRanges
from spark_jms.core.messages.ranges import Ranges

LAST = 200
pairs = st.lists(st.tuples(st.integers(1, LAST), st.integers(0, 40)), max_size=10)


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> object:
    """Many chunks in small numbers, and bitmaps from three ranges on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked_ranges, "SPAN", 16)
        patch.setattr(chunked_ranges, "_BITMAP_FROM", 3)
        yield


def ranges(drawn: list[tuple[int, int]]) -> Ranges:
    return Ranges.of(*((low, min(low + more, LAST)) for low, more in drawn))


def members(of: Ranges) -> set[int]:
    return set(of.numbers().tolist())


def stored(given_set: ChunkedRanges) -> ChunkedRanges:
    """As read from a store."""
    chunks = {k: Chunk(k, data=chunk.data) for k, chunk in given_set.chunks.items()}
    for chunk in chunks.values():
        chunk.check()
    return ChunkedRanges(chunks)


@given(pairs, pairs, pairs)
def test_operations_match_sets(a: list[tuple[int, int]], b: list[tuple[int, int]], c: list[tuple[int, int]]) -> None:
    """C5: union, difference, intersection and complement are those of sets, before and after a store has had them."""
    x, y, z = ranges(a), ranges(b), ranges(c)
    changed = stored((ChunkedRanges.of(x) | y) - z)
    expected = (members(x) | members(y)) - members(z)
    assert members(changed.all()) == expected
    assert changed == ChunkedRanges.of(Ranges.from_numbers(sorted(expected)))
    assert bool(changed) == bool(expected)
    assert changed.count == len(expected)
    if expected:
        assert (changed.first, changed.last) == (min(expected), max(expected))
    assert members(changed & y) == expected & members(y)
    assert members(changed.missing(y)) == members(y) - expected


@given(pairs, st.integers(1, LAST), st.integers(1, LAST))
def test_windows_cover_everything_once(a: list[tuple[int, int]], first: int, last: int) -> None:
    """C5: windows are in order, cover first..last once, and touch one chunk each."""
    held = ChunkedRanges.of(ranges(a))
    windows = list(held.windows(first, last))
    assert [n for low, high in windows for n in range(low, high + 1)] == list(range(first, last + 1))
    assert all(len({k for k in held.chunks if k * 16 < high and low <= k * 16 + 16}) <= 1 for low, high in windows)


@given(pairs, st.integers(1, LAST))
def test_run_end_is_the_last_of_a_run(a: list[tuple[int, int]], start: int) -> None:
    """C5: the floor rises over the boundaries of chunks."""
    inside, end = members(ranges(a)), start - 1
    while end + 1 in inside:
        end += 1
    assert ChunkedRanges.of(ranges(a)).run_end(start) == end


def test_unchanged_chunks_are_shared() -> None:
    """C18: a change makes a new object only for the chunks it touches, so only those are written."""
    before = ChunkedRanges.of(Ranges.of((1, 3), (20, 22), (40, 42)))
    after = before | Ranges.of((24, 24))
    assert [k for k in after.chunks if after.chunks[k] is not before.chunks[k]] == [1]
    same = before | Ranges.of((21, 21))
    assert all(same.chunks[k] is before.chunks[k] for k in same.chunks)
    assert not (before - Ranges.of((1, 100))).chunks
    assert ChunkedRanges() == NONE


@pytest.mark.parametrize("position", [0, 4, 5, 9])
def test_damaged_chunk_is_refused(position: int) -> None:
    """C18: a byte that changed in the store is found before the chunk is used."""
    data = bytearray(Chunk(0, Ranges.of((1, 1), (3, 3), (5, 5), (7, 7))).data)
    data[position] ^= 1
    with pytest.raises(ValueError, match="checksum"):
        Chunk(0, data=bytes(data)).check()


def test_dense_scattered_chunk_is_a_bitmap() -> None:
    """C18: at any density a chunk takes at most 32 KiB and some bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked_ranges, "SPAN", 2**18)
        patch.setattr(chunked_ranges, "_BITMAP_FROM", 2_000)
        for density in (0.01, 0.3, 0.5, 0.7, 0.95):
            numbers = pc.add(pc.indices_nonzero(pc.less(pc.random(2**18, initializer=7), density)), 1)
            held = ChunkedRanges.of(Ranges.from_numbers(numbers))
            (chunk,) = held.chunks.values()
            assert len(chunk.data) <= 2**15 + 64
            assert stored(held) == held
