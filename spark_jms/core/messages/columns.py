"""The JMS message as columns: in Spark, in a Delta file, and the conversion between them.

A message has 19 columns. A destination's files store fourteen of them; the others follow from the position of the message
(`member`, `sequence`, `JMSDestination`) and from its deliveries (`JMSRedelivered`, `JMSXDeliveryCount`). Typed properties
are text in the map `properties`; the vendor property `JMS_JMSQ_Types` names the types other than string
("amount:double,count:long"). A map message is JSON in `text`, marked by the vendor property `JMS_JMSQ_BodyType`. Times
are milliseconds since 1970 UTC, as in JMS; 0 in JMSExpiration means never.

Features: C2, C8 (docs/FEATURES.md)
"""

from __future__ import annotations

import re
from array import array as machine_array
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, reduce

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.messages.arrays import arrow_array, arrow_scalar, repeated
from spark_jms.core.messages.compression import COMPRESSED_PROPERTY
from spark_jms.core.messages.properties import (
    TYPES_PROPERTY,
    MapEntries,
    check_typed_properties,
    declared_types,
    decode_property,
)
from spark_jms.core.messages.ranges import arrow, copied, counting, interleaved, joined, view, view_of
from spark_jms.core.messages.types import MOMENT_COLUMNS, first_invalid, is_valid, moments_ms, plain, plain_type
from spark_jms.errors import MessageFormatError, MessageSizeError
from spark_jms.settings.types import near_to

PERSISTENT, NON_PERSISTENT = 2, 1
DEFAULT_PRIORITY = 4
BODY_TYPE_PROPERTY = "JMS_JMSQ_BodyType"
PROPERTY_TYPES = ("boolean", "byte", "short", "int", "long", "float", "double", "string")

_MAP = pa.map_(pa.string(), pa.string())
_ONCE = arrow_scalar(1, pa.int32())
_FEW = 16  # rows
COLUMNS: dict[str, pa.DataType] = {
    "JMSMessageID": pa.string(),
    "JMSTimestamp": pa.int64(),
    "JMSPriority": pa.int32(),
    "JMSExpiration": pa.int64(),
    "JMSDeliveryTime": pa.int64(),
    "JMSDeliveryMode": pa.int32(),
    "JMSCorrelationID": pa.string(),
    "JMSReplyTo": pa.string(),
    "JMSType": pa.string(),
    "JMSDestination": pa.string(),
    "JMSRedelivered": pa.bool_(),
    "JMSXDeliveryCount": pa.int32(),
    "JMSXGroupID": pa.string(),
    "JMSXGroupSeq": pa.int32(),
    "properties": _MAP,
    "text": pa.string(),
    "body": pa.binary(),
    "member": pa.int32(),
    "sequence": pa.int64(),
}
# spark-jms sets these. A sender may give them (a stream may be piped on), but they are overwritten.
PROVIDER_COLUMNS = (
    "JMSMessageID",
    "JMSTimestamp",
    "JMSDestination",
    "JMSRedelivered",
    "JMSXDeliveryCount",
    "member",
    "sequence",
)
DERIVED_COLUMNS = ("JMSDestination", "JMSRedelivered", "JMSXDeliveryCount", "member", "sequence")
ORDINAL = "ordinal"
STORED_SCHEMA = pa.schema(
    [pa.field(ORDINAL, pa.int64())] + [pa.field(n, t) for n, t in COLUMNS.items() if n not in DERIVED_COLUMNS]
)
PARTITION_SCHEMA = pa.schema([pa.field("member", pa.int32()), pa.field("first_sequence", pa.int64())])
# Columns with a dictionary in Parquet. Bodies and ids are unique, so a dictionary would only cost.
DICTIONARY_COLUMNS = [n for n in STORED_SCHEMA.names if n not in (ORDINAL, "JMSMessageID", "text", "body")]
STATISTICS_COLUMNS = ("JMSPriority", "JMSTimestamp", "JMSDeliveryTime", "JMSExpiration", "JMSXGroupID")

# In the size of a message: what has no fixed width, but for what only a sent message has.
_COUNTED = frozenset(
    name
    for name, kind in COLUMNS.items()
    if name not in ("JMSMessageID", "JMSDestination")
    and (pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_map(kind))
)

_SPARK_TYPES = {
    pa.string(): "string",
    pa.int64(): "bigint",
    pa.int32(): "int",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    _MAP: "map<string,string>",
}
_PROPERTY_NAME = re.compile(r"[^\W\d][\w$]*\Z")
_RESERVED_NAME = re.compile(r"JMS(?!X|_)")
SELECTOR_KEYWORDS = frozenset(("NULL", "TRUE", "FALSE", "NOT", "AND", "OR", "BETWEEN", "LIKE", "IN", "IS", "ESCAPE"))
_ARROW_PROPERTY_TYPES = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int8, "byte"),
    (pa.types.is_int16, "short"),
    (pa.types.is_int32, "int"),
    (pa.types.is_int64, "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_string, "string"),
)


def spark_schema(columns: tuple[str, ...] = tuple(COLUMNS)) -> str:
    """The DDL of these message columns, in this order."""
    return ", ".join(f"{name} {_SPARK_TYPES[COLUMNS[name]]}" for name in columns)


def arrow_schema(columns: tuple[str, ...] = tuple(COLUMNS)) -> pa.Schema:
    return pa.schema([pa.field(name, COLUMNS[name]) for name in columns])


@dataclass(frozen=True)
class CastAdvice:
    """How a sender makes a column of another type: in its own language."""

    casts: Mapping[pa.DataType, str]
    moment: str  # of a time without a zone; {} is the column

    def cast(self, want: pa.DataType) -> str:
        return self.casts[want]


IN_SQL = CastAdvice(
    {kind: f"cast(col as {name})" for kind, name in _SPARK_TYPES.items()},
    "cast({} as timestamp) takes it as one in the session's time zone",
)
IN_ARROW = CastAdvice(
    {
        pa.string(): "column.cast(pa.string())",
        pa.int64(): "column.cast(pa.int64())",
        pa.int32(): "column.cast(pa.int32())",
        pa.binary(): "column.cast(pa.binary())",
        _MAP: "column.cast(pa.map_(pa.string(), pa.string()))",
    },
    "pyarrow.compute.assume_timezone({}, 'America/New_York') takes it as one in that zone",
)
FOREIGN_COLUMNS = {"value": "text", "key": "JMSXGroupID", "headers": "properties"}  # of Spark's Kafka sink


def check_sendable(schema: pa.Schema, advice: CastAdvice = IN_SQL) -> None:
    """Raises MessageFormatError for a schema that does not fit messages: unknown or doubled columns, no body, a type that a
    column cannot have, which the error says how to cast."""
    names = schema.names
    unknown = [n for n in names if n not in COLUMNS]
    if unknown:
        raise MessageFormatError(
            f"unknown message column(s) {', '.join(map(_with_meaning, unknown))}: accepted are {', '.join(COLUMNS)}; "
            "put other values into `properties` (a map or a struct)"
        )
    doubled = {n for n in names if names.count(n) > 1}
    if doubled:
        raise MessageFormatError(f"column(s) {', '.join(sorted(doubled))} appear more than once")
    if "text" not in names and "body" not in names:
        raise MessageFormatError(
            f"a message needs a `text` (string) or a `body` (binary) column; there are only: {', '.join(names) or 'none'}"
        )
    for field in schema:
        _check_type(field, advice)


def _with_meaning(name: str) -> str:
    meant = FOREIGN_COLUMNS.get(name.lower()) or near_to(name, (n for n in COLUMNS if n not in PROVIDER_COLUMNS))
    return f"{name!r} (did you mean {meant!r}?)" if meant else repr(name)


def _check_type(field: pa.Field, advice: CastAdvice) -> None:
    kind, want = plain_type(field.type), COLUMNS[field.name]
    if pa.types.is_null(kind) or field.name in PROVIDER_COLUMNS or kind == want:
        return
    if pa.types.is_timestamp(kind) and field.name in MOMENT_COLUMNS:
        if kind.tz is None:
            raise MessageFormatError(
                f"column {field.name!r} is a time without a time zone ({field.type}), which is another moment in each zone: "
                f"{advice.moment.format(field.name)}"
            )
        return
    if field.name == "properties" and pa.types.is_struct(kind):
        bad = [f"{part.name} {part.type}" for part in kind if _property_type(part.type) is None]
        if bad:
            raise MessageFormatError(
                f"properties of type {', '.join(bad)} cannot be message properties: "
                f"cast them to one of {', '.join(PROPERTY_TYPES)}"
            )
        return
    if pa.types.is_integer(want) and pa.types.is_integer(kind):
        return
    raise MessageFormatError(
        f"column {field.name!r} is {field.type}, but must be {_SPARK_TYPES[want]}"
        f"{' or a struct of simple values' if field.name == 'properties' else ''}: {advice.cast(want)}"
    )


def _property_type(kind: pa.DataType) -> str | None:
    return next((name for test, name in _ARROW_PROPERTY_TYPES if test(kind)), None)


def normalise(batch: pa.RecordBatch, now_ms: int | pa.Array, max_message_bytes: int) -> pa.RecordBatch:
    """A sender's rows as stored columns, without `ordinal` and `JMSMessageID` (which depend on the file).

    `batch` must have passed `check_sendable`. `now_ms` is the time of sending, of all rows or of each.
    Raises MessageFormatError or MessageSizeError, which name the row.
    """
    rows, given = batch.num_rows, dict(zip(batch.schema.names, batch.columns, strict=True))
    now = now_ms if isinstance(now_ms, pa.Array) else repeated(now_ms, pa.int64(), rows)

    def column(name: str, default: object) -> pa.Array:
        array = given.get(name)
        if array is None or array.null_count == rows:
            if default is None:
                return pa.nulls(rows, COLUMNS[name])
            return default if isinstance(default, pa.Array) else _defaults(name, default, rows)
        array = _stored(name, array)
        if name in _BOUNDS:
            _check_within(name, array, *_BOUNDS[name])
        return array if default is None or array.null_count == 0 else pc.fill_null(array, default)

    out = {
        "JMSTimestamp": now,
        "JMSPriority": column("JMSPriority", DEFAULT_PRIORITY),
        "JMSExpiration": column("JMSExpiration", 0),
        "JMSDeliveryTime": column("JMSDeliveryTime", now),
        "JMSDeliveryMode": column("JMSDeliveryMode", PERSISTENT),
        **{n: column(n, None) for n in ("JMSCorrelationID", "JMSReplyTo", "JMSType", "JMSXGroupID", "JMSXGroupSeq")},
        "properties": _properties(given.get("properties"), rows),
        "text": column("text", None),
        "body": column("body", None),
    }
    _check_one_body(out["text"], out["body"])
    stored = pa.RecordBatch.from_arrays(list(out.values()), names=list(out))
    check_message_sizes(stored, max_message_bytes)
    return stored


def _defaults(name: str, default: object, rows: int) -> pa.Array:
    return _one_default(name, default) if rows == 1 else repeated(default, COLUMNS[name], rows)


@cache
def _one_default(name: str, default: object) -> pa.Array:
    """Of a message that is sent alone: with these columns from memory it is converted in two thirds of the time."""
    return arrow_array([default], COLUMNS[name])


def _stored(name: str, array: pa.Array) -> pa.Array:
    """A sender's column with the type of the message column."""
    want = COLUMNS[name]
    try:
        array = plain(array)
        if pa.types.is_timestamp(array.type):
            return moments_ms(name, array)
        array = array if array.type == want else pc.cast(array, want)
    except pa.ArrowInvalid as error:
        raise MessageFormatError(f"column {name!r} does not fit {_SPARK_TYPES[want]}: {error}") from error
    if pa.types.is_string(want) and (bad := first_invalid(array)) is not None:
        raise MessageFormatError(f"row {bad.row}: column {name!r} is {bad}: {_INSTEAD.get(name, 'send other text')}")
    return array


_INSTEAD = {"text": "send the bytes as `body`"}
_BOUNDS: Mapping[str, tuple[int, int | None]] = {
    "JMSPriority": (0, 9),
    "JMSExpiration": (0, None),
    "JMSDeliveryTime": (0, None),
    "JMSDeliveryMode": (NON_PERSISTENT, PERSISTENT),
}


def _check_within(name: str, array: pa.Array, low: int, high: int | None) -> None:
    bounds = pc.min_max(array).as_py()
    if bounds["min"] is not None and (bounds["min"] < low or (high is not None and bounds["max"] > high)):
        bad = bounds["min"] if bounds["min"] < low else bounds["max"]
        row = pc.index(array, bad).as_py()
        raise MessageFormatError(
            f"row {row}: {name} is {bad}, but must be {low} to {high if high is not None else 'any later time'}"
        )


def _check_one_body(text: pa.Array, body: pa.Array) -> None:
    if text.null_count < len(text) and body.null_count < len(body):
        both = pc.and_(pc.is_valid(text), pc.is_valid(body))
        if pc.any(both).as_py():
            raise MessageFormatError(
                f"row {pc.index(both, True).as_py()} has both `text` and `body`: a message has one body; set one to null"
            )


def check_message_sizes(
    rows: pa.RecordBatch, max_message_bytes: int, beside: Mapping[str, pa.Int64Array] | None = None
) -> None:
    """Raises MessageSizeError for stored rows that a destination of this limit does not take. Everything a message carries
    counts: body, names and values of properties, headers of text. The headers that are numbers (40 bytes) and what spark-jms
    adds do not. `beside`: what counts of each row beside its columns, or does not count of them (records/refusal.py), by its name."""
    if not beside and rows.get_total_buffer_size() * rows.num_columns <= max_message_bytes:
        return  # no column has more than all buffers together, which columns may share
    carried = _carried(rows) | dict(beside or {})
    if not carried:
        return
    total = reduce(pc.add, carried.values())
    most = pc.max(total).as_py()
    if most is not None and most > max_message_bytes:
        row = pc.index(total, most).as_py()
        parts = ", ".join(f"`{name}` {by_row[row]}" for name, by_row in carried.items() if by_row[row].as_py())
        raise MessageSizeError(
            f"row {row} carries {most} bytes ({parts}), more than the destination's maxMessageSize of "
            f"{max_message_bytes} bytes: raise the limit in the module file, or send a reference to the data instead"
        )


def message_sizes(rows: pa.RecordBatch) -> pa.Int64Array:
    """What `check_message_sizes` counts, of each message."""
    carried = _carried(rows)
    return reduce(pc.add, carried.values()) if carried else repeated(0, pa.int64(), rows.num_rows)


def _carried(rows: pa.RecordBatch) -> dict[str, pa.Int64Array]:
    """By column that a message's size counts, the bytes of each row."""
    columns = zip(rows.schema.names, rows.columns, strict=True)
    counted = {n: array for n, array in columns if n in _COUNTED and array.null_count < len(array)}
    sizes = {name: _bytes_by_row(array) for name, array in counted.items()}
    return {name: by_row for name, by_row in sizes.items() if by_row is not None}


def _bytes_by_row(array: pa.Array) -> pa.Int64Array | None:
    """The bytes of each row's value, 0 for null; None for a column of numbers."""
    if pa.types.is_map(array.type):
        ends = pc.add(*(_ends(values).take(array.offsets) for values in (array.keys, array.items)))
        by_row = pc.subtract(ends[1:], ends[:-1])
        return by_row if array.null_count == 0 else pc.if_else(array.is_valid(), by_row, 0)
    return _lengths(array) if pa.types.is_string(array.type) or pa.types.is_binary(array.type) else None


def _ends(array: pa.Array) -> pa.Int64Array:
    """The bytes of all values before each one, and in the end of all."""
    if array.null_count or not len(array):  # a null may have a place in the buffer
        return pa.concat_arrays([arrow_array([0], pa.int64()), pc.cumulative_sum(_lengths(array))])
    ends = pa.Array.from_buffers(pa.int32(), len(array) + 1, [None, array.buffers()[1]], offset=array.offset)
    return pc.cast(pc.subtract(ends, ends[0]), pa.int64())


def _lengths(array: pa.Array) -> pa.Int64Array:
    if len(array) == 1:  # of a single message: kernels take longer than the rest of its check
        value = array[0]
        return arrow_array([value.as_buffer().size if value.is_valid else 0], pa.int64())
    lengths = pc.binary_length(array)
    return pc.cast(pc.fill_null(lengths, 0) if array.null_count else lengths, pa.int64())


def _properties(array: pa.Array | None, rows: int) -> pa.Array:
    if array is None or array.null_count == rows:
        return pa.nulls(rows, _MAP)
    array = plain(array)
    typed = pa.types.is_struct(array.type)  # its values have their types
    if typed:
        array = _struct_to_map(array)
    array = array if array.type == _MAP else array.cast(_MAP)
    names = pc.unique(array.keys)
    if not (is_valid(names) and is_valid(array.items)):
        _refuse_text(array)
        names = pc.unique(MapEntries(array).keys)  # a slice: the rows of others are not looked at
    check_property_names(names.to_pylist())
    if not typed:
        check_typed_properties(array)
    return array


def _refuse_text(array: pa.MapArray) -> None:
    """Raises the error for the first text that is not UTF-8; there may be none among the entries of these rows."""
    entries = MapEntries(array)
    for what, texts in (("name", entries.keys), ("value", entries.items)):
        bad = first_invalid(texts)
        if bad is not None:
            row = entries.row_of[bad.row].as_py()
            of = "" if what == "name" else f" of property {entries.keys[bad.row].as_py()!r}"
            raise MessageFormatError(
                f"row {row}: column 'properties': the {what}{of} is {bad}: send bytes as the body, or as text in base64"
            )


def check_property_names(names: list[str]) -> None:
    for name in names:
        if not _PROPERTY_NAME.match(name) or _RESERVED_NAME.match(name):
            raise MessageFormatError(
                f"{name!r} cannot be a property name: it must be an identifier (letters, digits, _ and $), and names "
                "that begin with JMS belong to JMS (JMSX… and JMS_… are allowed)"
            )
        if name == COMPRESSED_PROPERTY:
            raise MessageFormatError(f"{name} is set by spark-jms, when it compresses a body: leave it out")
        if name.upper() in SELECTOR_KEYWORDS and name.isascii():
            raise MessageFormatError(
                f"{name!r} cannot be a property name: it is a word of selectors, so no selector could name the property"
            )


def _struct_to_map(array: pa.StructArray) -> pa.MapArray:
    """A struct of typed values as the map with its JMS_JMSQ_Types entry, by kernels: no loop over rows."""
    rows = len(array)
    fields = [array.type.field(i) for i in range(array.type.num_fields)]
    types = ",".join(f"{f.name}:{_property_type(f.type)}" for f in fields if _property_type(f.type) != "string")
    names = [f.name for f in fields] + ([TYPES_PROPERTY] if types else [])
    values = [pc.cast(part, pa.string()) for part in array.flatten()]
    if types:
        values.append(pa.repeat(pa.scalar(types), rows))
    if not names:
        return pa.nulls(rows, _MAP)
    # interleave: row 0's values, row 1's values …; a null value means the message lacks that property
    width = len(names)
    order = interleaved(*(view(counting(place * rows, rows)) for place in range(width)))
    flat = pa.concat_arrays(values).take(arrow(order))
    kept = flat.is_valid()
    places = arrow(memoryview(machine_array("q", range(width)) * rows)).filter(kept)
    through = view(pc.cumulative_sum(pc.cast(kept, pa.int64())))
    offsets = pc.cast(arrow(joined([view_of([0]), copied(through[width - 1 :: width])])), pa.int32())
    return pa.MapArray.from_arrays(offsets, pa.array(names, pa.string()).take(places), flat.filter(kept))


def deliver(
    stored: pa.RecordBatch,
    columns: tuple[str, ...],
    destination: str,
    member: int,
    sequences: pa.Int64Array,
    delivery_counts: pa.Int32Array | int,
) -> pa.RecordBatch:
    """Stored rows as message columns, exactly of `arrow_schema(columns)`: adds position and delivery count (1 = delivered
    for the first time)."""
    rows = stored.num_rows
    arrays = []
    for name in columns:
        if name == "sequence":
            arrays.append(sequences)
        elif name == "member":
            arrays.append(_derived(member, pa.int32(), rows))
        elif name == "JMSDestination":
            arrays.append(_derived(destination, pa.string(), rows))
        elif name == "JMSXDeliveryCount":
            arrays.append(_counts(delivery_counts, rows))
        elif name == "JMSRedelivered":
            arrays.append(_redelivered(delivery_counts, rows))
        else:
            arrays.append(stored.column(name))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


_of_few = lru_cache(maxsize=1000, typed=True)(repeated)


def _derived(value: object, kind: pa.DataType, rows: int) -> pa.Array:
    """A column of one value: who receives one message at a time asks for the same few again and again."""
    return _of_few(value, kind, rows) if rows <= _FEW else repeated(value, kind, rows)


def _counts(delivery_counts: pa.Int32Array | int, rows: int) -> pa.Int32Array:
    if isinstance(delivery_counts, int):
        return _derived(delivery_counts, pa.int32(), rows)
    return delivery_counts


def _redelivered(delivery_counts: pa.Int32Array | int, rows: int) -> pa.BooleanArray:
    if isinstance(delivery_counts, int):
        return _derived(delivery_counts > 1, pa.bool_(), rows)
    return pc.greater(delivery_counts, _ONCE)


def stored_columns(columns: tuple[str, ...]) -> list[str]:
    """The columns to read from a file for these message columns."""
    return [n for n in columns if n not in DERIVED_COLUMNS]


def encode_properties(properties: Mapping[str, object] | None) -> dict[str, str | None] | None:
    """Python values to the stored text form: bool, int, float and str keep their JMS type. None is a property without a value."""
    if not properties:
        return None
    check_property_names(list(properties))
    out: dict[str, str | None] = {}
    types = []
    for name, value in properties.items():
        kind, text = _encode(name, value)
        out[name] = text
        if kind != "string":
            types.append(f"{name}:{kind}")
    if types:
        out[TYPES_PROPERTY] = ",".join(types)
    return out


def _encode(name: str, value: object) -> tuple[str, str | None]:
    if value is None:
        return "string", None
    if isinstance(value, bool):
        return "boolean", "true" if value else "false"
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise MessageFormatError(f"property {name!r} is {value}, which does not fit 64 bits: send it as text")
        return "long", str(int(value))
    if isinstance(value, float):
        return "double", repr(float(value))  # a numpy float is a float, but its repr is not
    if isinstance(value, str):
        return "string", value
    raise MessageFormatError(
        f"property {name!r} is a {type(value).__name__}: properties are bool, int, float, str or None; other values go into the body"
    )


def decode_properties(stored: Mapping[str, str] | list[tuple[str, str]] | None) -> dict[str, object]:
    """The inverse of `encode_properties`, for the eight JMS types. Raises ValueError, which names the property."""
    if not stored:
        return {}
    entries = dict(stored)
    types = declared_types(entries.pop(TYPES_PROPERTY, "") or "")
    for ours in (BODY_TYPE_PROPERTY, COMPRESSED_PROPERTY):
        entries.pop(ours, None)
    return {name: _decode(name, text, types.get(name, "string")) for name, text in entries.items()}


def _decode(name: str, text: str | None, kind: str) -> object:
    try:
        return decode_property(text, kind)
    except ValueError as error:
        raise ValueError(f"property {name!r} is {text!r} and not of its declared type {kind!r}") from error
