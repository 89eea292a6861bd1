"""A large set of sequences in chunks, so that a change copies and stores only the chunks it touches.

A member may have millions of scattered finished messages above its floor. As one value they would be read, merged and
written with every acknowledgement. Here every chunk covers `SPAN` sequences and is stored under a key of its own: as
pairs or compressed steps while it has few ranges, as a compressed bitmap of at most 32 KiB when it has many. A chunk is
decoded when something asks for it. Values are immutable.

Features: C5, C18 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.messages.arrays import arrow_array
from spark_jms.core.messages.ranges import Ranges, concatenated, inside, plus, view

SPAN = 2**18
_BITMAP_FROM = 2_000  # ranges: below it, steps are smaller than a bitmap
_BITMAP, _RANGES = b"b", b"r"
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))  # Arrow begins with the lowest bit of a byte


class Chunk:
    """One chunk, decoded or not. Equal chunks of two record sets are usually the same object."""

    __slots__ = ("_data", "_ranges", "number")

    def __init__(self, number: int, ranges: Ranges | None = None, data: bytes | None = None) -> None:
        self.number, self._ranges, self._data = number, ranges, data

    @property
    def ranges(self) -> Ranges:
        """Raises ValueError when the stored bytes are damaged."""
        if self._ranges is None:
            assert self._data is not None
            self._ranges = _decode(self.number, self._data[4:])
        return self._ranges

    def check(self) -> None:
        """Raises ValueError when the stored bytes are not those that were written; decodes nothing."""
        if self._data is not None and zlib.crc32(self._data[4:]).to_bytes(4, "big") != self._data[:4]:
            raise ValueError(f"the checksum of chunk {self.number} is wrong")

    @property
    def data(self) -> bytes:
        if self._data is None:
            assert self._ranges is not None
            body = _encode(self.number, self._ranges)
            self._data = zlib.crc32(body).to_bytes(4, "big") + body
        return self._data


class ChunkedRanges:
    """An immutable set of integers >= 1. Operations take a `Ranges`, which is small beside this set."""

    __slots__ = ("chunks",)

    def __init__(self, chunks: Mapping[int, Chunk] | None = None) -> None:
        self.chunks: Mapping[int, Chunk] = chunks or {}

    @staticmethod
    def of(ranges: Ranges) -> ChunkedRanges:
        return NONE | ranges

    def __bool__(self) -> bool:
        return bool(self.chunks)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ChunkedRanges) or self.chunks.keys() != other.chunks.keys():
            return False
        mine, theirs = self.chunks, other.chunks
        return all(mine[k] is theirs[k] or mine[k].ranges == theirs[k].ranges for k in mine)

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.chunks)))

    def __repr__(self) -> str:
        return f"Chunked{self.all()!r}"

    @property
    def first(self) -> int:
        return self.chunks[min(self.chunks)].ranges.first

    @property
    def last(self) -> int:
        return self.chunks[max(self.chunks)].ranges.last

    @property
    def count(self) -> int:
        return sum(chunk.ranges.count for chunk in self.chunks.values())

    def all(self) -> Ranges:
        return concatenated([self.chunks[k].ranges for k in sorted(self.chunks)])

    def __or__(self, more: Ranges) -> ChunkedRanges:
        chunks = dict(self.chunks)
        for number, part in _split(more):
            known = chunks.get(number)
            merged = part if known is None else known.ranges | part
            if known is None or merged != known.ranges:
                chunks[number] = Chunk(number, merged)
        return ChunkedRanges(chunks)

    def __sub__(self, fewer: Ranges) -> ChunkedRanges:
        chunks = dict(self.chunks)
        for number in self._near(fewer):
            known = chunks[number]
            left = known.ranges - fewer.between(*_bounds(number))
            if not left:
                del chunks[number]
            elif left != known.ranges:
                chunks[number] = Chunk(number, left)
        return ChunkedRanges(chunks)

    def __and__(self, some: Ranges) -> Ranges:
        """The members of both."""
        return concatenated(
            [self.chunks[k].ranges & some.between(*_bounds(k)) for k in sorted(self._near(some))],
        )

    def missing(self, wanted: Ranges) -> Ranges:
        """The part of `wanted` that is not in this set."""
        if not wanted or not self.chunks:
            return wanted
        if (only := (wanted.first - 1) // SPAN) == (wanted.last - 1) // SPAN:  # nearly always
            return wanted - self.chunks[only].ranges if only in self.chunks else wanted
        near = sorted(self._near(wanted))
        if not near:
            return wanted
        parts, behind = [], 0
        for number in near:
            first, last = _bounds(number)
            parts += [wanted.between(behind + 1, first - 1), wanted.between(first, last) - self.chunks[number].ranges]
            behind = last
        if wanted.last > behind:
            parts.append(wanted.between(behind + 1, wanted.last))
        return concatenated(parts)

    def windows(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """first..last in pieces that each touch at most one chunk."""
        at = first
        for number in sorted(k for k in self.chunks if _bounds(k)[1] >= first and _bounds(k)[0] <= last):
            low, high = max(_bounds(number)[0], first), min(_bounds(number)[1], last)
            if at < low:
                yield at, low - 1
            yield low, high
            at = high + 1
        if at <= last:
            yield at, last

    def run_end(self, start: int) -> int:
        """The last of the numbers start, start + 1, … that are all in this set; start - 1 if `start` is not."""
        while (chunk := self.chunks.get((start - 1) // SPAN)) is not None:
            ranges = chunk.ranges
            at = bisect_right(ranges.lo, start) - 1
            if at < 0 or ranges.hi[at] < start:
                break
            start = ranges.hi[at] + 1
            if start <= _bounds(chunk.number)[1]:
                break
        return start - 1

    def _near(self, ranges: Ranges) -> list[int]:
        """The numbers of the chunks that `ranges` touches."""
        if not ranges or not self.chunks:
            return []
        low, high = (ranges.first - 1) // SPAN, (ranges.last - 1) // SPAN
        if high - low < len(self.chunks):
            near: Iterable[int] = (k for k in range(low, high + 1) if k in self.chunks)
        else:
            near = (k for k in self.chunks if low <= k <= high)
        return [k for k in near if ranges.between(*_bounds(k))]


NONE = ChunkedRanges()


def _bounds(number: int) -> tuple[int, int]:
    return number * SPAN + 1, (number + 1) * SPAN


def _split(ranges: Ranges) -> Iterator[tuple[int, Ranges]]:
    if not ranges:
        return
    for number in range((ranges.first - 1) // SPAN, (ranges.last - 1) // SPAN + 1):
        part = ranges.between(*_bounds(number))
        if part:
            yield number, part


# -- stored form --------------------------------------------------------------------------------------------------------
def _encode(number: int, ranges: Ranges) -> bytes:
    if len(ranges) < _BITMAP_FROM:
        return _RANGES + json.dumps(ranges.to_json(), separators=(",", ":")).encode()
    return _BITMAP + zlib.compress(_bitmap(ranges, _bounds(number)[0]), 1)


def _bitmap(ranges: Ranges, first: int) -> bytes:
    """`SPAN` bits, the first number in the highest bit of the first byte."""
    bits = inside(plus(ranges.lo, -first), plus(ranges.hi, 1 - first), SPAN)
    return memoryview(bits.buffers()[1])[: SPAN // 8].tobytes().translate(_REVERSED)


def _ranges(bitmap: bytes, first: int) -> Ranges:
    """The inverse of `_bitmap`."""
    bits = pa.Array.from_buffers(pa.bool_(), SPAN, [None, pa.py_buffer(bitmap.translate(_REVERSED))])
    unset = arrow_array([False], pa.bool_())
    here, before = pa.concat_arrays([bits, unset]), pa.concat_arrays([unset, bits])
    begins, ends = pc.indices_nonzero(pc.and_not(here, before)), pc.indices_nonzero(pc.and_not(before, here))
    return Ranges(plus(view(begins.view(pa.int64())), first), plus(view(ends.view(pa.int64())), first - 1))


def _decode(number: int, data: bytes) -> Ranges:
    kind, body = data[:1], data[1:]
    first, last = _bounds(number)
    if kind == _RANGES:
        ranges = Ranges.from_json(json.loads(body))
    elif kind == _BITMAP:
        try:
            bitmap = zlib.decompress(body)
        except zlib.error as error:
            raise ValueError(f"a bitmap is damaged: {error}") from error
        if len(bitmap) != SPAN // 8:
            raise ValueError(f"a bitmap has {len(bitmap)} bytes, not {SPAN // 8}")
        ranges = _ranges(bitmap, first)
    else:
        raise ValueError(f"a chunk begins with {kind!r}")
    if not ranges or ranges.first < first or ranges.last > last:
        raise ValueError(f"chunk {number} holds {ranges!r}, outside {first}-{last}")
    return ranges
