"""Sets of sequence numbers as sorted, disjoint, closed ranges (C5).

The pick of a whole backlog is one range, whatever its size; the pick of a selector may be half a million single numbers.
Both must be cheap, so the bounds are two numpy arrays and every operation is a vectorised sweep. Most sets of a client that
receives and acknowledges one by one are a single range: two of them combine by comparing numbers, without arrays. Values
are immutable.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
_EMPTY = np.empty(0, dtype=np.int64)
_LARGEST = 2**62  # a bound and its neighbours fit 64 bits
_INLINE_RANGES = 16  # below this, JSON pairs are readable and small enough


class Ranges:
    """An immutable set of integers >= 1. `lo[i] <= hi[i] < lo[i+1] - 1`: neighbours are always merged.

    The class is one noun in spite of its size: about half of its methods are Python's set and sequence protocols."""

    __slots__ = ("hi", "lo")

    def __init__(self, lo: Int64Array, hi: Int64Array) -> None:
        self.lo = lo
        self.hi = hi

    # -- making ---------------------------------------------------------------------------------------------------
    @staticmethod
    def of(*pairs: tuple[int, int]) -> Ranges:
        """`Ranges.of((1, 5), (9, 9))`; pairs may overlap and come in any order; empty ones (lo > hi) are dropped."""
        kept = [(lo, hi) for lo, hi in pairs if lo <= hi]
        if not kept:
            return EMPTY
        if len(kept) == 1:
            return _single(*kept[0])
        lo, hi = (np.array(side, dtype=np.int64) for side in zip(*kept, strict=True))
        return _merge(lo, hi)

    @staticmethod
    def from_numbers(numbers: Iterable[int] | Int64Array) -> Ranges:
        if not isinstance(numbers, np.ndarray):
            numbers = list(numbers)
            if len(numbers) == 1:
                return _single(numbers[0], numbers[0])
        array = np.unique(np.asarray(numbers, dtype=np.int64))
        return _merge(array, array) if array.size else EMPTY

    # -- asking ---------------------------------------------------------------------------------------------------
    def __bool__(self) -> bool:
        return self.lo.size > 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ranges):
            return NotImplemented
        return np.array_equal(self.lo, other.lo) and np.array_equal(self.hi, other.hi)

    def __hash__(self) -> int:
        return hash((self.lo.tobytes(), self.hi.tobytes()))

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.lo.tolist(), self.hi.tolist(), strict=True)

    def __contains__(self, number: int) -> bool:
        i = int(np.searchsorted(self.lo, number, side="right")) - 1
        return i >= 0 and number <= int(self.hi[i])

    def __repr__(self) -> str:
        return f"Ranges({self})"

    def __str__(self) -> str:
        return self.text(8)

    def text(self, most: int | None = None) -> str:
        """`1-3, 7`; with an ellipsis after `most` ranges."""
        shown = [f"{lo}" if lo == hi else f"{lo}-{hi}" for lo, hi in list(self)[:most]]
        return ", ".join(shown if len(shown) == len(self) else [*shown, "…"])

    def __len__(self) -> int:
        """The number of ranges, not of integers: see `count`."""
        return int(self.lo.size)

    @property
    def count(self) -> int:
        """The number of integers in the set."""
        return int((self.hi - self.lo).sum()) + len(self)

    @property
    def first(self) -> int:
        return int(self.lo[0])

    @property
    def last(self) -> int:
        return int(self.hi[-1])

    def numbers(self) -> Int64Array:
        """All integers, ascending; 8 bytes each, so only for bounded sets."""
        if not self:
            return _EMPTY
        lengths = self.hi - self.lo + 1
        starts = np.repeat(self.lo - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths)
        return starts + np.arange(int(lengths.sum()), dtype=np.int64)

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
        middle = _merge(np.concatenate((near.lo, small.lo)), np.concatenate((near.hi, small.hi)))
        return concatenated([before, middle, after])

    def __sub__(self, other: Ranges) -> Ranges:
        if not self or not other:
            return self
        if len(self) == len(other) == 1:
            left, right = (self.first, other.first - 1), (other.last + 1, self.last)
            if other.last < self.first or other.first > self.last:
                return self
            if left[0] > left[1] or right[0] > right[1]:  # at most one side is left
                return Ranges.of(left, right)
        before, near, after = self._around(other.first, other.last)
        if not near:
            return self
        return concatenated([before, _difference(near, other), after])

    def __and__(self, other: Ranges) -> Ranges:
        if not self or not other:
            return EMPTY
        if len(other) == 1:
            return self.between(other.first, other.last)
        mine = self.between(other.first, other.last)
        return _sweep(mine, other, wanted=lambda a, b: (a > 0) & (b > 0)) if mine else EMPTY

    def _around(self, low: int, high: int) -> tuple[Ranges, Ranges, Ranges]:
        """The ranges before, those that touch low..high (whole), and those behind: what a small operand cannot change is
        not merged again."""
        begin, end = int(self.hi.searchsorted(low)), int(self.lo.searchsorted(high, side="right"))
        return (
            Ranges(self.lo[:begin], self.hi[:begin]),
            Ranges(self.lo[begin:end], self.hi[begin:end]),
            Ranges(self.lo[end:], self.hi[end:]),
        )

    def _gaps(self, low: int, high: int) -> Ranges:
        """The numbers of low..high that are not in this set."""
        taken = self.between(low, high)
        lo = np.concatenate((np.array([low]), taken.hi + 1))
        hi = np.concatenate((taken.lo - 1, np.array([high])))
        kept = lo <= hi
        return Ranges(lo[kept], hi[kept])

    def between(self, low: int, high: int) -> Ranges:
        """The part within [low, high]."""
        if len(self) == 1:
            first, last = self.first, self.last
            if low <= first and last <= high:
                return self
            return Ranges.of((max(first, low), min(last, high)))
        begin = int(self.hi.searchsorted(low))
        end = int(self.lo.searchsorted(high, side="right"))
        if begin >= end or low > high:
            return EMPTY
        if begin == 0 and end == len(self) and low <= self.first and high >= self.last:
            return self
        lo, hi = self.lo[begin:end].copy(), self.hi[begin:end].copy()
        lo[0], hi[-1] = max(int(lo[0]), low), min(int(hi[-1]), high)
        return Ranges(lo, hi)

    def take(self, count: int) -> Ranges:
        """The lowest `count` numbers."""
        if count <= 0:
            return EMPTY
        ends = np.cumsum(self.hi - self.lo + 1)
        i = int(np.searchsorted(ends, count))
        if i >= len(self):
            return self
        over = int(ends[i]) - count
        hi = self.hi[: i + 1].copy()
        hi[-1] -= over
        return Ranges(self.lo[: i + 1], hi)

    def take_ranges(self, ranges: int) -> Ranges:
        """The lowest `ranges` ranges; bounds the stored size."""
        return self if len(self) <= ranges else Ranges(self.lo[:ranges], self.hi[:ranges])

    # -- stored form ----------------------------------------------------------------------------------------------
    def to_json(self) -> list[list[int]] | str:
        """Pairs if there are few ranges, else compressed deltas in base64: the set of a batch takes a few KB."""
        if len(self) <= _INLINE_RANGES:
            return [[lo, hi] for lo, hi in self]
        edges = np.empty(2 * len(self), dtype=np.int64)
        edges[0::2], edges[1::2] = self.lo, self.hi
        return base64.b64encode(
            zlib.compress(
                np.diff(edges, prepend=0).astype("<u4").tobytes()
                if _fits(edges)
                else b"\xff" + edges.astype("<i8").tobytes(),
                1,
            )
        ).decode()

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
        wide = len(raw) % 8 == 1
        edges = (
            np.frombuffer(raw[1:], "<i8").astype(np.int64)
            if wide
            else np.cumsum(np.frombuffer(raw, "<u4").astype(np.int64))
        )
        if edges.size % 2 or not edges.size:
            raise ValueError("ranges are damaged: an odd number of bounds")
        return _merge(edges[0::2].copy(), edges[1::2].copy())


EMPTY = Ranges(_EMPTY, _EMPTY)


def _single(lo: int, hi: int) -> Ranges:
    return Ranges(np.array([lo], dtype=np.int64), np.array([hi], dtype=np.int64))


def union(many: Iterable[Ranges]) -> Ranges:
    kept = [r for r in many if r]
    if not kept:
        return EMPTY
    return _merge(np.concatenate([r.lo for r in kept]), np.concatenate([r.hi for r in kept]))


def concatenated(many: Sequence[Ranges]) -> Ranges:
    """The union of sets that follow one another: faster than `union`, because nothing is sorted."""
    kept = [r for r in many if r]
    if len(kept) < 2:
        return kept[0] if kept else EMPTY
    lo, hi = np.concatenate([r.lo for r in kept]), np.concatenate([r.hi for r in kept])
    apart = lo[1:] > hi[:-1] + 1
    if apart.all():
        return Ranges(lo, hi)
    return Ranges(lo[np.concatenate(([True], apart))], hi[np.concatenate((apart, [True]))])


def _fits(edges: Int64Array) -> bool:
    steps = np.diff(edges, prepend=0)
    return bool(steps.min() >= 0 and steps.max() < 2**32)


def _difference(one: Ranges, other: Ranges) -> Ranges:
    if len(one) == 1:
        return other._gaps(one.first, one.last)
    return _sweep(one, other, wanted=lambda a, b: (a > 0) & (b == 0))


def _merge(lo: Int64Array, hi: Int64Array) -> Ranges:
    order = np.argsort(lo, kind="stable")
    lo, hi = lo[order], np.maximum.accumulate(hi[order])
    starts = np.concatenate(([True], lo[1:] > hi[:-1] + 1))
    ends = np.concatenate((starts[1:], [True]))
    return Ranges(lo[starts], hi[ends])


def _sweep(a: Ranges, b: Ranges, wanted: Callable[[Int64Array, Int64Array], npt.NDArray[np.bool_]]) -> Ranges:
    """Walk all bounds of both sets once; `wanted(depth in a, depth in b)` is true inside the result."""
    points = np.concatenate((a.lo, a.hi + 1, b.lo, b.hi + 1))
    one = np.int64(1)
    depth_a = np.concatenate((np.full(len(a), one), np.full(len(a), -one), np.zeros(2 * len(b), np.int64)))
    depth_b = np.concatenate((np.zeros(2 * len(a), np.int64), np.full(len(b), one), np.full(len(b), -one)))
    order = np.argsort(points, kind="stable")
    points = points[order]
    inside = wanted(np.cumsum(depth_a[order]), np.cumsum(depth_b[order]))
    real = np.concatenate((points[1:] > points[:-1], [False])) & inside
    lo, hi = points[:-1][real[:-1]], points[1:][real[:-1]] - 1
    return _merge(lo, hi) if lo.size else EMPTY
