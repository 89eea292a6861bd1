"""Arrow's arrays and scalars from Python's values, without pandas.

Before pyarrow converts a Python value, it asks whether the value is an object of pandas, and for that it imports pandas where it is
installed: 0.2 to 0.36 s of CPU time in each of Spark's Python processes, none of which uses it for us. `pa.array` and `pa.scalar`
ask, and so does a kernel one of whose arguments is a Python value; an array made of buffers does not. So the modules that read and
write a plain queue's messages get their constants here. A test, test_loaded_modules.py, holds that no process of Spark has loaded
pandas after a batch.

For few values: Python converts one after the other. Where many come at once, `pa.array` is faster, and pandas has been paid for.

Features: C1, C5 (docs/FEATURES.md)
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

import pyarrow as pa

_CODES = {
    pa.int8(): "b",
    pa.int16(): "h",
    pa.int32(): "i",
    pa.int64(): "q",
    pa.uint32(): "I",
    pa.float64(): "d",
}


def arrow_array(values: Iterable[Any], kind: pa.DataType) -> Any:
    """An array of this type: integers, double, bool, string or binary; None is null. Raises OverflowError and TypeError."""
    given = list(values)
    valid = None if None not in given else _bits(value is not None for value in given)
    if pa.types.is_boolean(kind):
        buffers = [valid, _bits(given)]
    elif kind in (pa.string(), pa.binary()):
        texts = [b"" if value is None else value.encode() if kind == pa.string() else bytes(value) for value in given]
        offsets = array("i", accumulate(map(len, texts), initial=0))
        buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))]
    else:
        buffers = [valid, pa.py_buffer(array(_CODES[kind], (0 if value is None else value for value in given)))]
    return pa.Array.from_buffers(kind, len(given), buffers)


def arrow_scalar(value: Any, kind: pa.DataType) -> Any:
    """One value, as an argument of a kernel."""
    return arrow_array((value,), kind)[0]


def repeated(value: Any, kind: pa.DataType, count: int) -> Any:
    """An array with `count` times this value."""
    return pa.repeat(arrow_scalar(value, kind), count)


def empty_table(schema: pa.Schema) -> Any:
    """As the schema's own method, which asks for each column."""
    return pa.Table.from_batches([], schema)


def _bits(flags: Iterable[object]) -> Any:
    """A bit for each flag, the first one in the lowest bit of the first byte."""
    given = list(flags)
    packed = bytearray((len(given) + 7) // 8)
    for place, flag in enumerate(given):
        if flag:
            packed[place // 8] |= 1 << place % 8
    return pa.py_buffer(bytes(packed))
