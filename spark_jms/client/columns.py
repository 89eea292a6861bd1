"""Many messages as columns at once.

`to_columns` gives the same columns, and the same errors, for a list of messages as `compose` and `to_batch` do one by one.
Most lists are plain dicts of plain values with few different sets of properties: their columns are built by name, without
a Message each. Any other list, and any list that is refused, takes the way message by message, whose errors name the value.

Features: C2, C11 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.client.compressed import CompressedMessage
from spark_jms.client.encoding import ARGUMENTS, FIELDS, check_properties, column_array, compose, to_batch
from spark_jms.client.message import Message, MessageArguments
from spark_jms.core.typed_properties import TYPES_PROPERTY
from spark_jms.errors import MessageFormatError

Item = Message | MessageArguments
_NAMES = frozenset(name for name in ARGUMENTS if name in FIELDS or name == "properties")
_LONG = 2**63
_MAX_BATCH_BYTES = 8 * 2**20


class ArrowStream(Protocol):
    """An Arrow table or reader, of pyarrow or any other library."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...


def to_columns(items: Sequence[Item], times_ms: Sequence[int]) -> pa.RecordBatch:
    """`times_ms` is the time of sending of each item. Raises MessageFormatError."""
    try:
        batch = _plain_columns(items)
    except MessageFormatError:
        batch = None
    if batch is None:
        both = zip(items, times_ms, strict=True)
        batch = to_batch([item if isinstance(item, Message) else compose(now, item) for item, now in both])
    return batch


def slices(table: pa.RecordBatch | ArrowStream) -> pa.RecordBatchReader:
    """The record batches of an Arrow table, record batch or reader, or of any object that exports an Arrow stream."""
    if isinstance(table, pa.RecordBatch):
        table = pa.Table.from_batches([table])
    try:
        reader = pa.RecordBatchReader.from_stream(table)
    except TypeError:
        raise MessageFormatError(
            f"a {type(table).__name__} is not an Arrow table: give a pyarrow Table, RecordBatch or RecordBatchReader, or "
            "an object with __arrow_c_stream__"
        ) from None
    small = (part for batch in reader for part in _small(batch))
    return pa.RecordBatchReader.from_batches(reader.schema, small)


def _small(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Slices that are no larger than a row group."""
    parts = max(1, -(-batch.nbytes // _MAX_BATCH_BYTES))
    rows = max(1, -(-batch.num_rows // parts))
    return [batch.slice(at, rows) for at in range(0, batch.num_rows, rows)]


def item_bytes(item: Item) -> int:
    """Of bodies and properties. An estimate: text counts its characters. A later check refuses values that a message cannot carry."""
    body: object
    if isinstance(item, CompressedMessage) and item.compressed_bytes:  # its body was not read
        return item.compressed_bytes
    if isinstance(item, Message):
        text, body, content, properties = item.text, item.body, item.map, item.properties
    else:
        text, body, content = item.get("text"), item.get("body"), item.get("map")
        properties = item.get("properties") or {}
    size = len(text) if isinstance(text, str) else 0
    if isinstance(body, bytes | bytearray):
        size += len(body)
    for values in (content, properties):
        if values and isinstance(values, Mapping):
            size += sum([len(value) if isinstance(value, str | bytes) else 8 for value in (*values, *values.values())])
    return size


def carried_bytes(batch: pa.RecordBatch) -> int:
    """The bytes of bodies and properties."""
    total = 0
    for name in ("text", "body", "properties"):
        array = batch.column(name)
        for part in (array.keys, array.items) if pa.types.is_map(array.type) else (array,):
            total += pc.sum(pc.binary_length(part)).as_py() or 0
    return total


# -- plain dicts -------------------------------------------------------------------------------------------------------
def _plain_columns(items: Sequence[Any]) -> pa.RecordBatch | None:
    """None when the items are not plain dicts of plain values, and perhaps a MessageFormatError."""
    if set(map(type, items)) != {dict}:
        return None
    names: set[str] = set().union(*items)
    if not names <= _NAMES:
        return None
    columns = {"text": pa.nulls(len(items), pa.string())}
    for name in FIELDS:
        if name not in names:
            continue
        column, kind, _ = FIELDS[name]
        values = [item.get(name) for item in items]
        if not set(map(type, values)) <= {kind, type(None)}:
            return None
        columns[column] = column_array(column, values)
    if "properties" in names:
        properties = _properties([item.get("properties") for item in items])
        if properties is None:
            return None
        columns["properties"] = properties
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


class _Shape(NamedTuple):
    """A set of property names with their types, in their order, and how to encode it."""

    names: list[str]
    types: list[str]  # the value of the vendor property that names the types, if any
    encoders: list[Callable[[Any], str]]


def _properties(given: Sequence[Any]) -> pa.MapArray | None:
    """The encoded properties. None when any are not a plain dict of plain values."""
    names: list[str] = []
    values: list[str] = []
    offsets: list[int | None] = []
    shapes: dict[tuple[Any, ...], _Shape | None] = {}
    for properties in given:
        if not properties:
            if properties is not None and type(properties) is not dict:
                return None
            offsets.append(None)
            continue
        if type(properties) is not dict:
            return None
        kinds = tuple(map(type, properties.values()))
        key = (*properties, kinds)
        if key not in shapes:
            shapes[key] = _shape(properties, kinds)
        shape = shapes[key]
        if shape is None:
            return None
        offsets.append(len(names))
        names += shape.names
        values += [encode(value) for encode, value in zip(shape.encoders, properties.values(), strict=True)]
        values += shape.types
    offsets.append(len(names))
    ends = pa.array(offsets, pa.int32())
    return pa.MapArray.from_arrays(ends, column_array("text", names), column_array("text", values))


def _shape(properties: Mapping[Any, Any], kinds: tuple[type, ...]) -> _Shape | None:
    if not set(kinds) <= _ENCODERS.keys():
        return None
    check_properties(properties)
    types = ",".join(
        f"{name}:{_ENCODERS[kind][0]}" for name, kind in zip(properties, kinds, strict=True) if kind is not str
    )
    return _Shape(
        [*properties, TYPES_PROPERTY] if types else [*properties],
        [types] if types else [],
        [_ENCODERS[kind][1] for kind in kinds],
    )


def _long(value: int) -> str:
    if not -_LONG <= value < _LONG:
        raise MessageFormatError(f"a property is {value}, which does not fit 64 bits: send it as text")
    return str(value)


# type -> JMS type, encoding
_ENCODERS: dict[type, tuple[str, Callable[[Any], str]]] = {
    bool: ("boolean", lambda value: "true" if value else "false"),
    int: ("long", _long),
    float: ("double", repr),
    str: ("string", str),
}
