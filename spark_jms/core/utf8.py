"""Text whose bytes are not UTF-8. Pure.

Arrow, Parquet and Spark keep such text as it is: Spark's `CAST(value AS STRING)` makes it of any bytes. Python cannot read it. A
sender's is refused (`first_invalid`). What an earlier version or another writer has stored stops no reader:

    a consumer, a browser            finds the message undecodable, and shows its text as `readable` gives it
    units, selectors, the planner    read names by `readable`, so one message hides no other
    a move                           keeps the bytes: `map_rows` and `map_column` carry them as Python's surrogate escapes

Features: C2, C20 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

_ESCAPES, _SHOWS = "surrogateescape", "backslashreplace"
_MAP, _BINARY_MAP = pa.map_(pa.string(), pa.string()), pa.map_(pa.binary(), pa.binary())


class InvalidText(NamedTuple):
    """The first value of an array that is not UTF-8."""

    row: int
    data: bytes

    def __str__(self) -> str:
        return f"{self.data[:60]!r}{'…' if len(self.data) > 60 else ''}, which is not UTF-8"


def is_valid(column: Any) -> bool:
    """Of an array, also of maps or structs of text: all of its text is UTF-8."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def first_invalid(texts: pa.StringArray) -> InvalidText | None:
    if is_valid(texts):
        return None
    for row, data in enumerate(texts.cast(pa.binary()).to_pylist()):
        try:
            (data or b"").decode()
        except UnicodeDecodeError:
            return InvalidText(row, data)
    return None


def readable(column: Any) -> Any:
    """The same column, with bytes that are not UTF-8 written as `\\xff`. A column of text or of a map of texts, in one chunk or
    several; any other column is returned as it is."""
    if is_valid(column):
        return column
    if pa.types.is_map(column.type):
        return map_column([None if row is None else _shown(row) for row in map_rows(column)])
    if not pa.types.is_string(column.type):
        return column
    shown = [None if data is None else data.decode(errors=_SHOWS) for data in column.cast(pa.binary()).to_pylist()]
    made = pa.array(shown, pa.string())
    return pa.chunked_array([made]) if isinstance(column, pa.ChunkedArray) else made


def readable_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, with each column as `readable` gives it."""
    if is_valid(rows):
        return rows
    return pa.RecordBatch.from_arrays([readable(column) for column in rows.columns], names=rows.schema.names)


def _shown(row: Mapping[str, str | None]) -> dict[str, str | None]:
    return {show(name): None if text is None else show(text) for name, text in row.items()}


def show(text: str) -> str:
    """A text of `map_rows`, with its escaped bytes written as `\\xff`."""
    return escaped_bytes(text).decode(errors=_SHOWS)


def escaped_bytes(text: str) -> bytes:
    """What was stored as this text of `map_rows`."""
    return text.encode(errors=_ESCAPES)


def map_rows(column: pa.MapArray) -> list[dict[str, str] | None]:
    """The rows of a map of texts; of two entries with a name the last counts. Bytes that are not UTF-8 are surrogate escapes."""
    if is_valid(column):
        return [None if row is None else dict(row) for row in column.to_pylist()]

    def text(data: bytes | None) -> Any:
        return None if data is None else data.decode(errors=_ESCAPES)

    rows = column.cast(_BINARY_MAP).to_pylist()
    return [None if row is None else {text(name): text(value) for name, value in row} for row in rows]


def map_column(rows: Sequence[Mapping[str, str | None] | None]) -> pa.MapArray:
    """The inverse of `map_rows`."""
    entries = [None if row is None else list(row.items()) for row in rows]
    try:
        return pa.array(entries, _MAP)
    except UnicodeEncodeError:
        pass

    def data(text: str | None) -> bytes | None:
        return None if text is None else escaped_bytes(text)

    encoded = [None if row is None else [(data(name), data(value)) for name, value in row] for row in entries]
    made = pa.array(encoded, _BINARY_MAP)
    keys, items = made.keys.view(pa.string()), made.items.view(pa.string())
    return pa.MapArray.from_buffers(
        _MAP,
        len(made),
        made.buffers()[:2],
        made.null_count,
        made.offset,
        [
            pa.StructArray.from_arrays(
                [keys, items], fields=[pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())]
            )
        ],
    )
