"""Values as messages have them: Arrow's plain types, points of time, text that is UTF-8. Pure.

Libraries have several layouts for one kind of value: text with long offsets (Spark with `useLargeVarTypes`), as views (Polars,
DuckDB) or as a dictionary (pandas' categories), runs, and their own names for a stored type. A sender may give any of them.

Points of time are milliseconds since 1970 UTC:

    given                                      it becomes
    a time with a zone, after 1970             its millisecond; a fraction counts as a whole one
    a time at or before the beginning of 1970  an error: 0 means never, or at once
    a time without a zone                      an error: it is another moment in each zone

So no message comes before its time, and no life becomes none. Durations are rounded by settings/types.py.

Arrow, Parquet and Spark keep text whose bytes are not UTF-8 as it is: Spark's `CAST(value AS STRING)` makes it of any bytes. Python
cannot read it. A sender's is refused (`first_invalid`). What an earlier version or another writer has stored stops no reader:

    a consumer, a browser            finds the message undecodable, and shows its text as `readable` gives it
    units, selectors, the planner    read names by `readable`, so one message hides no other
    a move                           keeps the bytes: `map_rows` and `map_column` carry them as Python's surrogate escapes

Features: C2, C20 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.errors import MessageFormatError

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MOST_S = (2**63 - 1) // 1000
_OF_UNIT = {"us": 1_000, "ns": 1_000_000}  # in a millisecond
MOMENT_COLUMNS = ("JMSExpiration", "JMSDeliveryTime")
_TOO_EARLY = "must be after the beginning of 1970: leave it out for a message without it"
_ESCAPES, _SHOWS = "surrogateescape", "backslashreplace"
_MAP, _BINARY_MAP = pa.map_(pa.string(), pa.string()), pa.map_(pa.binary(), pa.binary())


class InvalidText(NamedTuple):
    """The first value of an array that is not UTF-8."""

    row: int
    data: bytes

    def __str__(self) -> str:
        return f"{self.data[:60]!r}{'…' if len(self.data) > 60 else ''}, which is not UTF-8"


# -- plain types -------------------------------------------------------------------------------------------------------
def plain_type(kind: pa.DataType) -> pa.DataType:
    """The plain type of values of this type; a type of one layout only is its own."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain_type(field.type)) for field in kind])
    return kind


def plain(array: Any) -> Any:
    """The array with its plain type. Raises ArrowInvalid for text or bytes of 2 GiB and more together."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return plain(array.storage)
    if pa.types.is_dictionary(kind):
        return plain(array.dictionary).take(array.indices)
    if pa.types.is_run_end_encoded(kind):
        runs = pa.RunEndEncodedArray.from_arrays(array.run_ends, plain(array.values))
        return pc.run_end_decode(runs.slice(array.offset, len(array)))
    if pa.types.is_struct(kind):
        fields = [pa.field(field.name, plain_type(field.type)) for field in kind]
        nulls = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(
            [plain(array.field(n)) for n in range(len(fields))], fields=fields, mask=nulls
        )
    wanted = plain_type(kind)
    if pa.types.is_map(kind) and wanted != kind:
        offsets, nulls = pc.add(array.offsets, 0), array.is_null() if array.null_count else None  # no offset of a slice
        return pa.MapArray.from_arrays(offsets, plain(array.keys), plain(array.items), mask=nulls)
    return array if wanted == kind else pc.cast(array, wanted)


# -- points of time ----------------------------------------------------------------------------------------------------
def moment_ms(name: str, column: str, moment: object) -> int:
    """Of the argument `name`, which sets `column`. Raises MessageFormatError."""
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise MessageFormatError(
            f"{name} is {moment!r}, but must be a datetime with a time zone, such as "
            "datetime(2030, 1, 31, 8, tzinfo=timezone.utc)"
        )
    found = -((_EPOCH - moment) // timedelta(milliseconds=1))
    if found <= 0:
        raise MessageFormatError(f"{name} is {moment!r}, but {column} {_TOO_EARLY}")
    return found


def moment(milliseconds: int) -> datetime | None:
    """None for 0, and for what no datetime can hold: beyond the year 9999, such as Java's greatest long for "never"."""
    if not milliseconds:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def moments_ms(name: str, times: pa.TimestampArray) -> pa.Int64Array:
    """Of a column with a time zone. Raises MessageFormatError, which names row and column."""
    unit, numbers = times.type.unit, times.view(pa.int64())
    if unit == "s":
        try:
            numbers = pc.multiply_checked(numbers, 1000)
        except pa.ArrowInvalid:
            wide = pc.or_(pc.greater(numbers, _MOST_S), pc.less(numbers, -_MOST_S))
            _refuse(name, times, wide, "which does not fit milliseconds in 64 bits")
    elif unit in _OF_UNIT:
        whole = pc.divide(numbers, _OF_UNIT[unit])
        numbers = pc.add(whole, pc.cast(pc.greater(numbers, pc.multiply(whole, _OF_UNIT[unit])), pa.int64()))
    early = pc.less_equal(numbers, 0)
    if pc.any(early).as_py():
        _refuse(name, times, early, f"but {_TOO_EARLY}")
    return numbers


def _refuse(name: str, times: pa.TimestampArray, bad: Any, why: str) -> None:
    row = pc.index(bad, True).as_py()
    value = times.view(pa.int64())[row].as_py()
    raise MessageFormatError(f"row {row}: {name} is {value:,} {times.type.unit} since 1970, {why}")


# -- text --------------------------------------------------------------------------------------------------------------
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
