"""Convert between messages and message columns.

A map message is a JSON object in `text`, with the vendor property JMS_JMSQ_BodyType = 'map'. Text, booleans, null,
64-bit whole numbers and finite fractional numbers map to JSON directly. Values that JSON cannot express are objects with
one entry: {"bytes": "<base64>"} and {"double": "NaN" | "Infinity" | "-Infinity"}.

Features: C2, C11, C20 (docs/FEATURES.md)
"""

from __future__ import annotations

import base64
import ctypes
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

import pyarrow as pa

from spark_jms.client.messages.message import CompressedMessage, Message, MessageHeaders, Receipt
from spark_jms.core.messages.columns import (
    BODY_TYPE_PROPERTY,
    COLUMNS,
    DEFAULT_PRIORITY,
    NON_PERSISTENT,
    PERSISTENT,
    check_property_names,
    decode_properties,
    encode_properties,
)
from spark_jms.core.messages.compression import COMPRESSED_PROPERTY
from spark_jms.core.messages.properties import TYPES_PROPERTY
from spark_jms.core.messages.types import (
    InvalidText,
    escaped_bytes,
    first_invalid,
    map_column,
    map_rows,
    moment_ms,
    readable,
    readable_rows,
    show,
)
from spark_jms.core.ordering.units_of_work import UNIT
from spark_jms.errors import MessageFormatError
from spark_jms.settings.types import duration_s, near_to, whole_ms

_MODES = {"PERSISTENT": PERSISTENT, "NON_PERSISTENT": NON_PERSISTENT}
UNDECODABLE_PROPERTY = "JMS_JMSQ_Undecodable"
_LONG = 2**63
_INT = 2**31
_DOUBLES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_OWN_FIELD = {"JMSXGroupID": "group_id", "JMSXGroupSeq": "group_seq"}

# field -> (column, type, default that `normalise` sets and the batch therefore omits)
FIELDS: dict[str, tuple[str, type, object]] = {
    "text": ("text", str, None),
    "body": ("body", bytes, None),
    "group_id": ("JMSXGroupID", str, None),
    "group_seq": ("JMSXGroupSeq", int, None),
    "priority": ("JMSPriority", int, DEFAULT_PRIORITY),
    "correlation_id": ("JMSCorrelationID", str, None),
    "reply_to": ("JMSReplyTo", str, None),
    "type": ("JMSType", str, None),
    "expiration_ms": ("JMSExpiration", int, 0),
    "delivery_time_ms": ("JMSDeliveryTime", int, 0),
    "delivery_mode": ("JMSDeliveryMode", int, PERSISTENT),
}

# field -> the two arguments of `send` that set it: a duration from now on, and a point of time
_TIMES = {"expiration_ms": ("time_to_live", "expiration"), "delivery_time_ms": ("delay", "delivery_time")}
_JMS_NAMES = {"delivery_delay": "delay", "ttl": "time_to_live"}  # as others call them
ARGUMENTS = ("text", "body", "map", *get_type_hints(MessageHeaders))
LARGE_BYTES = 2**20  # below it a copy costs nothing that one could feel
_utf8 = ctypes.pythonapi.PyUnicode_AsUTF8AndSize
_utf8.restype, _utf8.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.POINTER(ctypes.c_ssize_t))


# -- messages to columns ----------------------------------------------------------------------------------------------
def compose(now_ms: int, arguments: Mapping[str, Any]) -> Message:
    """Build a message from the arguments of `send`. Raises MessageFormatError, which names the argument."""
    given = {name: value for name, value in arguments.items() if value is not None or name not in ARGUMENTS}
    for name in given:
        if name not in ARGUMENTS:
            raise MessageFormatError(
                f"a message has no {name!r}: {_meant(str(name))}accepted are {', '.join(ARGUMENTS)}"
            )
    for field, (relative, absolute) in _TIMES.items():
        duration, moment = given.pop(relative, None), given.pop(absolute, None)
        if duration is not None and moment is not None:
            raise MessageFormatError(f"{relative} and {absolute} are the same setting: give one of them")
        if moment is not None:
            given[field] = moment_ms(absolute, FIELDS[field][0], moment)
        elif duration is not None and (duration_ms := _duration_ms(relative, duration)):
            given[field] = now_ms + duration_ms
            if given[field] >= _LONG:
                raise MessageFormatError(f"{relative} is {duration!r}: that time does not fit milliseconds in 64 bits")
    if isinstance(given.get("body"), bytearray | memoryview):
        given["body"] = bytes(given["body"])
    if isinstance(given.get("delivery_mode"), str):
        given["delivery_mode"] = _MODES.get(given["delivery_mode"], given["delivery_mode"])
    return Message(**given)


def _meant(name: str) -> str:
    if name in _TIMES or name.endswith("_ms"):
        return "give durations as '10 s', a timedelta or seconds, points of time as a datetime: "
    near = _JMS_NAMES.get(name.removeprefix("jms_")) or near_to(name, ARGUMENTS)
    return f"did you mean {near}? " if near else ""


def _duration_ms(name: str, duration: Any) -> int:
    try:
        return whole_ms(duration_s(duration) * 1000)
    except ValueError as error:
        raise MessageFormatError(f"{name}: {error}") from None


def to_batch(messages: Sequence[Message]) -> pa.RecordBatch:
    """The columns of these messages, without the columns that no message sets. Raises MessageFormatError."""
    columns: dict[str, list[Any]] = {column: [] for column, _, _ in FIELDS.values()}
    properties = []
    for message in messages:
        if message.unit_of_work:
            raise MessageFormatError(
                "a unit of work is sent message by message: send_many(message.unit_of_work), or send_unit_of_work"
            )
        for name, (column, kind, default) in FIELDS.items():
            value = getattr(message, name)
            if value is not None and type(value) is not kind:
                value = _same(name, value, kind)
            columns[column].append(None if value == default else value)
        if message.map is not None:
            columns["text"][-1] = _encode_map(message)
        properties.append(_properties(message))
    kept = {c: values for c, values in columns.items() if c == "text" or any(v is not None for v in values)}
    if any(properties):
        kept["properties"] = properties
    return pa.RecordBatch.from_arrays([column_array(c, values) for c, values in kept.items()], names=list(kept))


def _same(name: str, value: object, kind: type) -> Any:
    """Convert an instance of a subclass to the plain type. Raises MessageFormatError for any other value."""
    if not isinstance(value, kind) or isinstance(value, bool):
        allowed = " (PERSISTENT, NON_PERSISTENT, 2 or 1)" if name == "delivery_mode" else ""
        given = f"{repr(value)[:100]}, a {type(value).__name__}"
        raise MessageFormatError(f"{name} is {given}, but must be {kind.__name__}{allowed}")
    return kind.__str__(value) if kind is str else kind(value)


def column_array(column: str, values: list[Any]) -> pa.Array:
    """Raises MessageFormatError, which names the column."""
    try:
        shared = array_of_one(values[0], COLUMNS[column]) if len(values) == 1 else None
        return pa.array(values, COLUMNS[column]) if shared is None else shared
    except UnicodeEncodeError as error:
        raise MessageFormatError(f"{column} holds text that is not Unicode ({error}): send it as bytes") from error
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise MessageFormatError(f"{column} does not fit {COLUMNS[column]}: {error}") from error


def check_properties(properties: Mapping[Any, Any]) -> None:
    """Raises MessageFormatError for names that a message cannot carry."""
    if not isinstance(properties, Mapping):
        raise MessageFormatError(
            f"properties is a {type(properties).__name__}, but must be a mapping of names to values"
        )
    for name in properties:
        if not isinstance(name, str):
            raise MessageFormatError(f"{name!r} cannot be a property name: names are text")
        if name in _OWN_FIELD:
            raise MessageFormatError(f"{name} is not a property but an argument of send: {_OWN_FIELD[name]}=…")
        if name.startswith("JMS_JMSQ_") or name == "JMSXDeliveryCount":
            raise MessageFormatError(f"spark-jms sets the property {name} itself: choose another name")
    check_property_names(list(properties))


def _properties(message: Message) -> list[tuple[str, str | None]] | None:
    check_properties(message.properties)
    encoded = encode_properties(message.properties) or {}
    if message.map is not None:
        encoded[BODY_TYPE_PROPERTY] = "map"
    return list(encoded.items()) or None


def _encode_map(message: Message) -> str:
    if message.text is not None or message.body is not None:
        raise MessageFormatError("a message has one body: give text, body or map")
    if not isinstance(message.map, Mapping):
        raise MessageFormatError(f"map is a {type(message.map).__name__}, but must be a mapping of names to values")
    return json.dumps({_name(n): _map_value(n, v) for n, v in message.map.items()}, ensure_ascii=False, allow_nan=False)


def _name(name: object) -> str:
    if not isinstance(name, str) or not name:
        raise MessageFormatError(f"{name!r} cannot be a name in a map message: names are text and not empty")
    return name


def _map_value(name: str, value: object) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        if not -_LONG <= value < _LONG:
            raise MessageFormatError(f"map value {name!r} is {value}, which does not fit 64 bits: send it as text")
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return {"double": "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, bytes | bytearray | memoryview):
        return {"bytes": base64.b64encode(value).decode()}
    raise MessageFormatError(
        f"map value {name!r} is a {type(value).__name__}: a map holds bool, int, float, str, bytes and None; "
        "send nested values as JSON text"
    )


# -- columns to messages ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Undecodable:
    """A message that no reader can decode, and why."""

    member: int
    sequence: int
    reason: str
    unit_of_work: str | None = None


@dataclass(frozen=True)
class DecodedBatch:
    messages: list[Message]
    undecodable: list[Undecodable]


def from_batch(batch: pa.RecordBatch, receipt: Receipt | None) -> list[Message]:
    """The rows of a batch with all message columns. Raises ValueError for one that cannot be decoded."""
    columns = [batch.column(name).to_pylist() for name in COLUMNS]
    return [_message(*row, receipt=receipt) for row in zip(*columns, strict=True)]


def decoded(batch: pa.RecordBatch, receipt: Receipt | None) -> DecodedBatch:
    """As `from_batch`, but a message that cannot be decoded does not keep its neighbours back."""
    try:
        return DecodedBatch(from_batch(batch, receipt), [])
    except (ValueError, TypeError):
        pass
    found = DecodedBatch([], [])
    for number in range(batch.num_rows):
        row = batch.slice(number, 1)
        try:
            found.messages.extend(from_batch(row, receipt))
        except (ValueError, TypeError) as error:
            member, sequence = (row.column(name)[0].as_py() for name in ("member", "sequence"))
            (properties,) = map_rows(readable(row.column("properties")))
            reason = _bad_text(row) or str(error)
            found.undecodable.append(Undecodable(member, sequence, reason, (properties or {}).get(UNIT)))
    return found


def _bad_text(row: pa.RecordBatch) -> str | None:
    """Which text of a message is not UTF-8."""
    for name, column in zip(row.schema.names, row.columns, strict=True):
        if pa.types.is_string(column.type) and (bad := first_invalid(column)) is not None:
            return f"{name} is {bad}"
    (properties,) = map_rows(row.column("properties"))
    for name, text in (properties or {}).items():
        for part in (name, text or ""):
            if show(part) != part:
                return f"property {show(name)!r} is {InvalidText(0, escaped_bytes(part))}"
    return None


def legible(batch: pa.RecordBatch) -> list[Message]:
    """As `from_batch`, for people: the properties of a message that cannot be decoded are text, one of which says why."""
    messages = []
    for number in range(batch.num_rows):
        row = batch.slice(number, 1)
        for bad in decoded(row, None).undecodable:
            row = readable_rows(row)
            (properties,) = map_rows(row.column("properties"))
            text = {**(properties or {}), UNDECODABLE_PROPERTY: bad.reason}
            text.pop(TYPES_PROPERTY, None)
            row = row.set_column(list(COLUMNS).index("properties"), "properties", map_column([text]))
        messages += from_batch(row, None)
    return messages


def with_legible_body(message: Message) -> Message:
    """The message, for people: one whose compressed body cannot be read has none, and a property says why."""
    try:
        message.text  # noqa: B018  # it decompresses
    except MessageFormatError as error:
        kept = {f.name: getattr(message, f.name) for f in fields(Message) if f.name not in ("text", "body", "map")}
        return Message(**kept | {"properties": {**message.properties, UNDECODABLE_PROPERTY: str(error)}})
    return message


def _message(
    message_id: str,
    timestamp_ms: int,
    priority: int,
    expiration_ms: int,
    delivery_time_ms: int,
    delivery_mode: int,
    correlation_id: str | None,
    reply_to: str | None,
    type_: str | None,
    destination: str,
    redelivered: bool,
    delivery_count: int,
    group_id: str | None,
    group_seq: int | None,
    properties: Iterable[tuple[str, str]] | None,
    text: str | None,
    body: bytes | None,
    member: int,
    sequence: int,
    *,
    receipt: Receipt | None,
) -> Message:
    """The parameters are the message columns, in their order."""
    stored = dict(properties or ())
    if (kind := stored.get(COMPRESSED_PROPERTY)) is not None and body is not None:
        packed, body = body, None
    else:
        kind = None
    values = None
    if text is not None and stored.get(BODY_TYPE_PROPERTY) == "map":
        values = decode_map(text)
    message = Message(
        None if values is not None else text,
        body,
        values,
        decode_properties(stored),
        group_id,
        group_seq,
        priority,
        correlation_id,
        reply_to,
        type_,
        expiration_ms,
        delivery_time_ms,
        delivery_mode,
        message_id,
        timestamp_ms,
        destination,
        redelivered,
        delivery_count,
        member,
        sequence,
        (),
        receipt,
    )
    if kind is None:
        return message
    return CompressedMessage.of(message, packed, kind, decode_map if stored.get(BODY_TYPE_PROPERTY) == "map" else None)


def decode_map(text: str) -> dict[str, Any] | None:
    """None if the text is not a JSON object, as another writer may send it: the message then remains a text message."""
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return {name: _decode_value(entry) for name, entry in value.items()} if isinstance(value, dict) else None


def _decode_value(entry: Any) -> Any:
    match entry:
        case {"bytes": str(text), **rest} if not rest:
            try:
                return base64.b64decode(text, validate=True)
            except ValueError:
                return entry
        case {"double": str(text), **rest} if not rest:
            return _DOUBLES.get(text, entry)
    return entry


def array_of_one(value: Any, kind: pa.DataType) -> pa.Array | None:
    """One large body as an Arrow array that shares its memory. None when the value is not large, or not a `bytes` or `str` for this
    type. Raises UnicodeEncodeError.

    Arrow's builders copy a value, and Parquet needs twice its size besides. So a body of hundreds of MB is given to Arrow as it is:
    bytes always, text where Python has it in UTF-8 already, which is text of ASCII. Other text is encoded once."""
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
