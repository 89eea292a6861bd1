"""One large body as an Arrow array that shares its memory.

Arrow's builders copy a value, and Parquet needs twice its size besides. So a body of hundreds of MB is given to Arrow as it is:
bytes always, text where Python has it in UTF-8 already, which is text of ASCII. Other text is encoded once.

Features: C2, C11 (docs/FEATURES.md)
"""

from __future__ import annotations

import ctypes
from typing import Any

import pyarrow as pa

LARGE_BYTES = 2**20  # below it a copy costs nothing that one could feel
_utf8 = ctypes.pythonapi.PyUnicode_AsUTF8AndSize
_utf8.restype, _utf8.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.POINTER(ctypes.c_ssize_t))


def array_of_one(value: Any, kind: pa.DataType) -> pa.Array | None:
    """None when the value is not large, or not a `bytes` or `str` for this type. Raises UnicodeEncodeError."""
    if type(value) is bytes and pa.types.is_binary(kind):
        size, buffer = len(value), pa.py_buffer(value) if len(value) >= LARGE_BYTES else None
    elif type(value) is str and pa.types.is_string(kind) and len(value) >= LARGE_BYTES:
        buffer = _ascii(value) if value.isascii() else pa.py_buffer(value.encode())
        size = buffer.size
    else:
        return None
    if buffer is None or size >= 2**31:
        return None
    offsets = pa.array([0, size], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(kind, 1, [None, offsets, buffer])


def _ascii(text: str) -> pa.Buffer:
    """Text of ASCII is UTF-8 in memory; the buffer keeps it alive."""
    size = ctypes.c_ssize_t()
    return pa.foreign_buffer(_utf8(text, ctypes.byref(size)), size.value, base=text)
