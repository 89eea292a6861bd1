"""Many messages as columns at once, and what a client sends and receives as one.

`to_columns` gives the same columns, and the same errors, for a list of messages as `compose` and `to_batch` do one by one.
Most lists are plain dicts of plain values with few different sets of properties: their columns are built by name, without
a Message each. Any other list, and any list that is refused, takes the way message by message, whose errors name the value.

Features: C2, C11, T12 (docs/FEATURES.md)
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.client.messages.encoding import (
    ARGUMENTS,
    FIELDS,
    Undecodable,
    check_properties,
    column_array,
    compose,
    to_batch,
)
from spark_jms.client.messages.message import CompressedMessage, Message, MessageArguments, Receipt
from spark_jms.core.messages.properties import TYPES_PROPERTY
from spark_jms.core.ordering.units_of_work import END, NUMBER, UNIT
from spark_jms.errors import DuplicateTransactionError, IllegalStateException, MessageFormatError
from spark_jms.log.sending.send import TransactionId
from spark_jms.log.tables.storage import now_ms

Item = Message | MessageArguments
CHUNK_MESSAGES = 1000
CHUNK_BYTES = 32 * 2**20
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


def checked_template(message: object) -> Message:
    if isinstance(message, Message):
        return message
    if isinstance(message, str):
        raise MessageFormatError("send takes the text of a message by name: send(text=…)")
    if isinstance(message, Mapping):
        raise MessageFormatError("send takes the arguments of a dict by name: send(**…); send_many takes dicts")
    raise MessageFormatError(
        f"send was given an object of type {type(message).__name__}: give a Message, or arguments by name"
    )


def chunks_of(messages: Iterable[Item], limit: int, first: int = 0) -> Iterator[list[Item]]:
    chunk: list[Item] = []
    size = 0
    for number, item in enumerate(messages, first):
        if not isinstance(item, Message | Mapping):
            raise MessageFormatError(
                f"item {number} of send_many is a {type(item).__name__}, but must be a Message or a dict of send's "
                "arguments, such as {'text': …}"
            )
        chunk.append(item)
        size += item_bytes(item)
        if len(chunk) >= limit or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def chunk_columns(chunk: Sequence[Item]) -> pa.RecordBatch:
    return to_columns(chunk, [now_ms()] * len(chunk))


def transaction_id(transaction: tuple[str, int]) -> TransactionId:
    match transaction:
        case (str(app_id), int(version)) if not isinstance(version, bool) and 0 <= version < 2**63 and _is_id(app_id):
            return TransactionId(f"app/{app_id}", version)
    raise DuplicateTransactionError(
        f"transaction is {transaction!r}, but must be (application id, version): text and a whole number from 0 on"
    )


# -- units of work -----------------------------------------------------------------------------------------------------


def as_unit(items: Iterable[Message | MessageArguments], name: str | None, now_ms: int) -> list[Message]:
    """Messages, or arguments of `send`, with the properties of one unit of work; `name` None: a name used nowhere else. Raises
    MessageFormatError."""
    if name == "":
        raise MessageFormatError("the name of a unit of work is empty")
    made = [item if isinstance(item, Message) else compose(now_ms, item) for item in items]
    if not made:
        raise MessageFormatError("a unit of work has at least one message")
    unit = name or str(uuid.uuid4())
    return [_part(message, unit, number, len(made)) for number, message in enumerate(made, 1)]


def in_units(
    messages: Sequence[Message], undecodable: Sequence[Undecodable], receipt: Receipt
) -> tuple[list[Message], list[Undecodable]]:
    """Claimed messages in the order of delivery, each unit of work as one message. A unit with an undecodable message is
    undecodable."""
    bad = {(b.member, b.unit_of_work): b for b in undecodable if b.unit_of_work is not None}
    whole: list[Message] = []
    aside = list(undecodable)
    for (member, unit), parts in itertools.groupby(messages, lambda m: (m.member, m.properties.get(UNIT))):
        if unit is None:
            whole += parts
        elif (found := bad.get((member, unit))) is not None:
            reason = f"message {found.sequence} of its unit of work {unit!r} cannot be decoded"
            aside += [Undecodable(member, part.sequence, reason, unit) for part in parts]
        else:
            whole.append(_one(list(parts), receipt))
    return whole, aside


def together(undecodable: Iterable[Undecodable]) -> list[tuple[int, dict[int, str]]]:
    """(member, sequence -> reason) of what is set aside as one: a message, or a unit of work."""
    found: dict[tuple[int, str | int], dict[int, str]] = {}
    for bad in undecodable:
        own = bad.sequence if bad.unit_of_work is None else bad.unit_of_work
        found.setdefault((bad.member, own), {})[bad.sequence] = bad.reason
    return [(member, reasons) for (member, _), reasons in found.items()]


# -- inside ------------------------------------------------------------------------------------------------------------


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
    encoders: list[Callable[[Any], str | None]]


def _properties(given: Sequence[Any]) -> pa.MapArray | None:
    """The encoded properties. None when any are not a plain dict of plain values."""
    names: list[str] = []
    values: list[str | None] = []
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
    named = ((name, _ENCODERS[kind][0]) for name, kind in zip(properties, kinds, strict=True))
    types = ",".join(f"{name}:{kind}" for name, kind in named if kind != "string")
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
_ENCODERS: dict[type, tuple[str, Callable[[Any], str | None]]] = {
    bool: ("boolean", lambda value: "true" if value else "false"),
    int: ("long", _long),
    float: ("double", repr),
    str: ("string", str),
    type(None): ("string", lambda _: None),
}


def _is_id(text: str) -> bool:
    """Half a surrogate pair is not: with one in its log no Delta reader opens the table, and Parquet takes no checkpoint of it."""
    return bool(text) and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _part(message: Message, unit: str, number: int, count: int) -> Message:
    own = {name: value for name, value in message.properties.items() if name != END}
    end = {END: True} if number == count else {}
    return replace(message, properties={**own, UNIT: unit, NUMBER: number, **end})


@dataclass(frozen=True, slots=True)
class _PartOfUnit:
    """The receipt of a message within a received unit."""

    unit: str

    def acknowledge(self, message: Message) -> None:
        self._refuse("acknowledge")

    def reject(self, message: Message, delay_s: float | None) -> None:
        self._refuse("reject")

    def reply(self, message: Message, arguments: Any) -> Message:
        self._refuse("reply to")

    def _refuse(self, purpose: str) -> NoReturn:
        raise IllegalStateException(
            f"this message is part of the unit of work {self.unit!r}, which is acknowledged, rejected and replied to as one: "
            f"{purpose} the message that was received"
        )


def _one(parts: list[Message], receipt: Receipt) -> Message:
    last = parts[-1]
    part_receipt = _PartOfUnit(str(last.properties[UNIT]))
    return replace(
        last,
        text=None,
        body=None,
        map=None,
        expiration_ms=min((part.expiration_ms for part in parts if part.expiration_ms), default=0),
        delivery_time_ms=max(part.delivery_time_ms for part in parts),
        redelivered=any(part.redelivered for part in parts),
        delivery_count=max(part.delivery_count for part in parts),
        unit_of_work=tuple(replace(part, _receipt=part_receipt) for part in parts),
        _receipt=receipt,
    )
