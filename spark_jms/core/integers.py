"""Arrays of 64-bit integers, in one memory for Arrow and for Python.

Arrow's kernels work on whole arrays; Python finds, slices and compares single numbers faster through a `memoryview` of
format "q". Neither direction copies. Both are read only by convention.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

FEW = 64  # numbers: below it a loop in Python is faster than a call of Arrow
_ONE = pa.scalar(1, pa.int64())


def counting(first: int, count: int) -> Any:
    """The Int64Array first, first + 1, …, of `count` numbers."""
    if count < FEW:
        return pa.array(range(first, first + count), pa.int64())
    return pc.cumulative_sum(pa.repeat(_ONE, count), start=first - 1)


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
    return view(pc.add(arrow(numbers), number))


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
