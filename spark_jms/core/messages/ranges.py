"""Sets of sequence numbers as sorted, disjoint, closed ranges.

The pick of a whole backlog is one range, whatever its size; the pick of a selector may be half a million single numbers.
Both must be cheap, so the bounds are two arrays of 64-bit integers. Most sets are few ranges, often one: Python combines
them faster than a call of Arrow would. Many ranges are combined by Arrow's kernels. Values are immutable.

Arrow's kernels work on whole arrays; Python finds, slices and compares single numbers faster through a `memoryview` of
format "q". Neither direction copies. Both are read only by convention.

Features: C5 (docs/FEATURES.md)
"""

from __future__ import annotations

import base64
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.messages.arrays import arrow_array, arrow_scalar, repeated

FEW = 64  # numbers: below it a loop in Python is faster than a call of Arrow
_ONE = arrow_scalar(1, pa.int64())
_LARGEST = 2**62  # a bound and its neighbours fit 64 bits
_INLINE_RANGES = 16  # below this, JSON pairs are readable and small enough


# -- arrays of 64-bit integers -----------------------------------------------------------------------------------------
def counting(first: int, count: int) -> Any:
    """The Int64Array first, first + 1, …, of `count` numbers."""
    if count < FEW:
        return arrow(view_of(range(first, first + count)))
    return pc.cumulative_sum(pa.repeat(_ONE, count), start=arrow_scalar(first - 1, pa.int64()))


def arrow(numbers: memoryview) -> Any:
    """A contiguous memoryview of format "q" as an Int64Array."""
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def ascends(numbers: Any) -> bool:
    """No number of an Int64Array is less than the one before it."""
    return bool(pc.all(pc.less_equal(numbers[:-1], numbers[1:]), min_count=0).as_py())


def view(numbers: Any) -> memoryview:
    """An Int64Array without nulls as a memoryview of format "q"."""
    if not len(numbers):
        return memoryview(b"").cast("q")
    return memoryview(numbers.buffers()[1]).cast("q")[numbers.offset : numbers.offset + len(numbers)]


def view_of(numbers: Iterable[int]) -> memoryview:
    """A memoryview of format "q". Raises OverflowError."""
    return memoryview(array("q", numbers))


def copied(numbers: memoryview) -> memoryview:
    """A writable, contiguous copy of a memoryview of format "q", which may have steps."""
    return memoryview(bytearray(numbers)).cast("q")


def plus(numbers: memoryview, number: int) -> memoryview:
    """`number` added to each."""
    if len(numbers) < FEW:
        return view_of([n + number for n in numbers])
    return view(pc.add(arrow(numbers), arrow_scalar(number, pa.int64())))


def joined(parts: Sequence[memoryview]) -> memoryview:
    """The parts one after the other."""
    return memoryview(b"".join(parts)).cast("q")


def interleaved(*parts: memoryview) -> memoryview:
    """The first numbers of all parts, which are equally long, then the second numbers …"""
    together = memoryview(bytearray(8 * sum(map(len, parts)))).cast("q")
    for place, part in enumerate(parts):
        together[place :: len(parts)] = part
    return together


def places(bounds: memoryview) -> Any:
    """For each number from bounds[0] to bounds[-1] - 1: the index of the last bound that is not greater. An Int64Array."""
    nulls = pa.nulls(bounds[-1])
    return pc.list_parent_indices(pa.LargeListArray.from_arrays(arrow(bounds), nulls))


def inside(begins: memoryview, ends: memoryview, count: int) -> Any:
    """A BooleanArray of `count`, true from begins[i] to ends[i] - 1. The pairs do not overlap; they ascend."""
    begun = places(joined([view_of([0]), begins, view_of([count])]))
    ended = places(joined([view_of([0]), ends, view_of([count])]))
    return pc.not_equal(begun, ended)  # more pairs have begun than ended


_EMPTY = view_of(())


# -- sets --------------------------------------------------------------------------------------------------------------
class Ranges:
    """An immutable set of integers >= 1. `lo[i] <= hi[i] < lo[i+1] - 1`: neighbours are always merged.

    The class is one noun in spite of its size: about half of its methods are Python's set and sequence protocols."""

    __slots__ = ("hi", "lo")

    def __init__(self, lo: memoryview, hi: memoryview) -> None:
        """The first and the last numbers of the ranges, of format "q" and contiguous."""
        self.lo = lo
        self.hi = hi

    # -- making ---------------------------------------------------------------------------------------------------
    @staticmethod
    def of(*pairs: tuple[int, int]) -> Ranges:
        """`Ranges.of((1, 5), (9, 9))`; pairs may overlap and come in any order; empty ones (lo > hi) are dropped."""
        return _merged(pairs)

    @staticmethod
    def from_numbers(numbers: Iterable[int] | pa.Array) -> Ranges:
        """Integers in any order, or an Arrow array of them."""
        if not isinstance(numbers, pa.Array):
            numbers = list(numbers)
            if len(numbers) < FEW:
                return _merged([(number, number) for number in numbers])
            numbers = arrow(view_of(numbers))
        vector = pc.cast(numbers, pa.int64())
        return _merge(vector, vector) if len(vector) else EMPTY

    def __reduce__(self) -> tuple[Callable[[bytes, bytes], Ranges], tuple[bytes, bytes]]:
        return _from_bytes, (bytes(self.lo), bytes(self.hi))

    # -- asking ---------------------------------------------------------------------------------------------------
    def __bool__(self) -> bool:
        return len(self.lo) > 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ranges):
            return NotImplemented
        return len(self) == len(other) and self.lo == other.lo and self.hi == other.hi

    def __hash__(self) -> int:
        return hash((self.lo.tobytes(), self.hi.tobytes()))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.lo, self.hi, strict=True)

    def __contains__(self, number: int) -> bool:
        i = bisect_right(self.lo, number) - 1
        return i >= 0 and number <= self.hi[i]

    def __repr__(self) -> str:
        return f"Ranges({self})"

    def __str__(self) -> str:
        return self.text(8)

    def text(self, most: int | None = None) -> str:
        """`1-3, 7`; with an ellipsis after `most` ranges."""
        shown = [f"{lo}" if lo == hi else f"{lo}-{hi}" for lo, hi in islice(self, most)]
        return ", ".join(shown if len(shown) == len(self) else [*shown, "…"])

    def __len__(self) -> int:
        """The number of ranges, not of integers: see `count`."""
        return len(self.lo)

    @property
    def count(self) -> int:
        """The number of integers in the set."""
        if len(self) <= FEW:
            return sum(self.hi) - sum(self.lo) + len(self)
        return int(pc.sum(pc.subtract(arrow(self.hi), arrow(self.lo))).as_py()) + len(self)

    @property
    def first(self) -> int:
        return self.lo[0]

    @property
    def last(self) -> int:
        return self.hi[-1]

    def numbers(self) -> pa.Int64Array:
        """All integers, ascending; 8 bytes each, so only for bounded sets."""
        if len(self) < 2:
            return counting(self.first, self.count) if self else counting(1, 0)
        bounds = joined([view_of([0]), self._counts()])
        shifts = pc.subtract(arrow(self.lo), arrow(bounds[:-1]))
        return pc.add(shifts.take(places(bounds)), counting(0, bounds[-1]))

    def _counts(self) -> memoryview:
        """How many numbers the first range has, the first two, …"""
        if len(self) < FEW:
            return view_of(accumulate(hi - lo + 1 for lo, hi in self))
        return view(pc.cumulative_sum(pc.add(pc.subtract(arrow(self.hi), arrow(self.lo)), _ONE)))

    # -- combining ------------------------------------------------------------------------------------------------
    def __or__(self, other: Ranges) -> Ranges:
        if not self or not other:
            return self or other
        if len(self) == len(other) == 1:
            first, second = (self, other) if self.first <= other.first else (other, self)
            if second.first <= first.last + 1:
                return _single(first.first, max(first.last, second.last))
        large, small = (self, other) if len(self) >= len(other) else (other, self)
        before, near, after = large._around(small.first - 1, small.last + 1)
        return concatenated([before, union((near, small)), after])

    def __sub__(self, other: Ranges) -> Ranges:
        if not self or not other:
            return self
        begin, end = bisect_left(other.hi, self.lo[0]), bisect_right(other.lo, self.hi[-1])
        if end - begin < 2:  # of the other set, no more than one range is near
            return self._without(other.lo[begin], other.hi[begin]) if begin < end else self
        before, near, after = self._around(other.first, other.last)
        if not near:
            return self
        return concatenated([before, near & other._gaps(near.first, near.last), after])

    def __and__(self, other: Ranges) -> Ranges:
        if not self or not other:
            return EMPTY
        if len(other.lo) == 1:
            return self.between(other.lo[0], other.hi[0])
        mine = self.between(other.first, other.last)
        if len(mine) == 1:
            return other.between(mine.first, mine.last)
        if not mine:
            return EMPTY
        few, many = sorted((mine, other), key=len)
        if len(few) < FEW:
            return concatenated([many.between(lo, hi) for lo, hi in few])
        return _sweep(mine, other)

    def _without(self, low: int, high: int) -> Ranges:
        """Without low..high: what an acknowledgement of one message does to its claim."""
        begin, end = bisect_left(self.hi, low), bisect_right(self.lo, high)
        if begin >= end:
            return self
        first, last = self.lo[begin], self.hi[end - 1]
        below, above = first < low, high < last
        if not (below or above) and end - begin == len(self):
            return EMPTY
        lo, hi = view_of([first] * below + [high + 1] * above), view_of([low - 1] * below + [last] * above)
        if end - begin == len(self):
            return Ranges(lo, hi)
        return Ranges(joined([self.lo[:begin], lo, self.lo[end:]]), joined([self.hi[:begin], hi, self.hi[end:]]))

    def _around(self, low: int, high: int) -> tuple[Ranges, Ranges, Ranges]:
        """The ranges before, those that touch low..high (whole), and those behind: what a small operand cannot change is
        not merged again."""
        begin, end = bisect_left(self.hi, low), bisect_right(self.lo, high)
        return (
            Ranges(self.lo[:begin], self.hi[:begin]),
            Ranges(self.lo[begin:end], self.hi[begin:end]),
            Ranges(self.lo[end:], self.hi[end:]),
        )

    def _gaps(self, low: int, high: int) -> Ranges:
        """The numbers of low..high that are not in this set."""
        taken = self.between(low, high)
        lo, hi = joined([view_of((low,)), plus(taken.hi, 1)]), joined([plus(taken.lo, -1), view_of((high,))])
        begin, end = int(lo[0] > hi[0]), len(lo) - int(lo[-1] > hi[-1])
        return Ranges(lo[begin:end], hi[begin:end]) if begin < end else EMPTY

    def between(self, low: int, high: int) -> Ranges:
        """The part within [low, high]."""
        if len(self.lo) == 1:
            first, last = self.lo[0], self.hi[0]
            if low <= first and last <= high:
                return self
            first, last = max(first, low), min(last, high)
            return _single(first, last) if first <= last else EMPTY
        begin, end = bisect_left(self.hi, low), bisect_right(self.lo, high)
        if begin >= end or low > high:
            return EMPTY
        if begin == 0 and end == len(self) and low <= self.first and high >= self.last:
            return self
        lo, hi = copied(self.lo[begin:end]), copied(self.hi[begin:end])
        lo[0], hi[-1] = max(lo[0], low), min(hi[-1], high)
        return Ranges(lo, hi)

    def take(self, count: int) -> Ranges:
        """The lowest `count` numbers."""
        if count <= 0:
            return EMPTY
        ends = self._counts()
        i = bisect_left(ends, count)
        if i >= len(self):
            return self
        hi = copied(self.hi[: i + 1])
        hi[-1] -= ends[i] - count
        return Ranges(self.lo[: i + 1], hi)

    def take_ranges(self, ranges: int) -> Ranges:
        """The lowest `ranges` ranges; bounds the stored size."""
        return self if len(self) <= ranges else Ranges(self.lo[:ranges], self.hi[:ranges])

    # -- stored form ----------------------------------------------------------------------------------------------
    def to_json(self) -> list[list[int]] | str:
        """Pairs if there are few ranges, else compressed deltas in base64: the set of a batch takes a few KB."""
        if len(self) <= _INLINE_RANGES:
            return [[lo, hi] for lo, hi in self]
        edges = arrow(interleaved(self.lo, self.hi))
        steps = pc.subtract(edges, pa.concat_arrays([arrow(view_of([0])), edges[:-1]]))
        try:
            raw = memoryview(pc.cast(steps, pa.uint32()).buffers()[1]).tobytes()
        except pa.ArrowInvalid:  # a step of 2**32 or more
            raw = b"\xff" + memoryview(edges.buffers()[1]).tobytes()
        return base64.b64encode(zlib.compress(raw, 1)).decode()

    @staticmethod
    def from_json(value: object) -> Ranges:
        """The inverse of `to_json`. Raises ValueError."""
        if isinstance(value, list):
            for pair in value:
                if not (isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair)):
                    raise ValueError(f"a range must be two integers, not {pair!r}")
            if not all(-_LARGEST <= n <= _LARGEST for pair in value for n in pair):
                raise ValueError("a range has a bound beyond 64 bits")
            return Ranges.of(*((lo, hi) for lo, hi in value))
        if not isinstance(value, str):
            raise ValueError(f"ranges must be a list of pairs or a base64 text, not {type(value).__name__}")
        try:
            raw = zlib.decompress(base64.b64decode(value, validate=True))
        except zlib.error as error:
            raise ValueError(f"ranges are damaged: {error}") from error
        if len(raw) % 8 == 1:
            bounds = memoryview(raw[1:]).cast("q")
        elif len(raw) % 8 == 0:
            steps = pa.Array.from_buffers(pa.uint32(), len(raw) // 4, [None, pa.py_buffer(raw)])
            bounds = view(pc.cumulative_sum(pc.cast(steps, pa.int64())))
        else:
            bounds = _EMPTY
        if len(bounds) % 2 or not bounds:
            raise ValueError("ranges are damaged: an odd number of bounds")
        return _merge(arrow(copied(bounds[0::2])), arrow(copied(bounds[1::2])))


EMPTY = Ranges(_EMPTY, _EMPTY)


def _single(lo: int, hi: int) -> Ranges:
    return Ranges(view_of((lo,)), view_of((hi,)))


def _from_bytes(lo: bytes, hi: bytes) -> Ranges:
    return Ranges(memoryview(lo).cast("q"), memoryview(hi).cast("q"))


def union(many: Iterable[Ranges]) -> Ranges:
    kept = [ranges for ranges in many if ranges]
    if len(kept) < 2:
        return kept[0] if kept else EMPTY
    if sum(map(len, kept)) < FEW:
        return _merged([pair for ranges in kept for pair in ranges])
    return _merge(arrow(joined([ranges.lo for ranges in kept])), arrow(joined([ranges.hi for ranges in kept])))


def concatenated(many: Sequence[Ranges]) -> Ranges:
    """The union of sets that follow one another: faster than `union`, because nothing is sorted."""
    kept = [ranges for ranges in many if ranges]
    if len(kept) < 2:
        return kept[0] if kept else EMPTY
    lo, hi = [kept[0].lo], [kept[0].hi]
    for ranges in kept[1:]:
        touches = ranges.first <= hi[-1][-1] + 1
        if touches:
            hi[-1] = hi[-1][:-1]
        lo.append(ranges.lo[1:] if touches else ranges.lo)
        hi.append(ranges.hi)
    return Ranges(joined(lo), joined(hi))


def _merged(pairs: Sequence[tuple[int, int]]) -> Ranges:
    """Few pairs, which may overlap and come in any order."""
    lo: list[int] = []
    hi: list[int] = []
    for first, last in sorted(pairs):
        if first > last:
            continue
        if hi and first <= hi[-1] + 1:
            hi[-1] = max(hi[-1], last)
        else:
            lo.append(first)
            hi.append(last)
    return Ranges(view_of(lo), view_of(hi)) if lo else EMPTY


def _merge(lo: Any, hi: Any) -> Ranges:
    """At least one pair, of Int64Arrays."""
    if not ascends(lo):
        order = pc.sort_indices(lo)
        lo, hi = lo.take(order), hi.take(order)
    hi = pc.cumulative_max(hi)
    apart = pc.greater(lo[1:], pc.add(hi[:-1], _ONE))
    first = arrow_array([True], pa.bool_())
    return Ranges(view(lo.filter(pa.concat_arrays([first, apart]))), view(hi.filter(pa.concat_arrays([apart, first]))))


def _sweep(a: Ranges, b: Ranges) -> Ranges:
    """The numbers in both: walks all bounds once, and counts the sets that are open between a bound and the next."""
    begins = repeated(1, pa.int8(), len(a) + len(b))
    ends = repeated(-1, pa.int8(), len(a) + len(b))
    points = arrow(joined([a.lo, b.lo, plus(a.hi, 1), plus(b.hi, 1)]))
    order = pc.sort_indices(points)
    points = points.take(order)
    open_sets = pc.cumulative_sum(pa.concat_arrays([begins, ends]).take(order))
    both = pc.equal(open_sets, arrow_scalar(2, pa.int8()))[:-1]
    inside = pc.and_(both, pc.less(points[:-1], points[1:]))
    return Ranges(view(points[:-1].filter(inside)), plus(view(points[1:].filter(inside)), -1))
