"""A message as a Python value, and what the client's classes have in common.

Consumers and browsers return messages, producers accept them as templates. The body of a received message stays compressed until the
application reads it.

Features: C2, C8, C11, C15, T8, T12 (docs/FEATURES.md)
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, TypeVar

from spark_jms.core.messages.columns import DEFAULT_PRIORITY, PERSISTENT
from spark_jms.core.messages.compression import TEXT, unpack
from spark_jms.core.messages.types import moment
from spark_jms.errors import ForkedProcessError, IllegalStateException, MessageFormatError, OptionError
from spark_jms.settings.types import DurationLike, duration_s
from spark_jms.store.processes import this_process

if TYPE_CHECKING:
    from typing_extensions import Unpack

PropertyValue = bool | int | float | str | None
MapValue = bool | int | float | str | bytes | None
_SHOWN_CHARS = 60
_BODIES = ("text", "body", "map")


class MessageHeaders(TypedDict, total=False):
    """The arguments of `Producer.send` beside the body. None means: not given."""

    properties: Mapping[str, PropertyValue] | None
    group_id: str | None
    group_seq: int | None
    priority: int | None
    correlation_id: str | None
    reply_to: str | None
    type: str | None
    time_to_live: DurationLike | None
    expiration: datetime | None
    delay: DurationLike | None
    delivery_time: datetime | None
    delivery_mode: Literal["PERSISTENT", "NON_PERSISTENT", 1, 2] | None


class MessageArguments(MessageHeaders, total=False):
    """The arguments of `Producer.send`, as `Producer.send_many` takes them. A message has one body."""

    text: str | None
    body: bytes | bytearray | None
    map: Mapping[str, MapValue] | None


class Receipt(Protocol):
    """The delivery of a message to a consumer, which acknowledges or rejects it."""

    def acknowledge(self, message: Message) -> None: ...

    def reject(self, message: Message, delay_s: float | None) -> None: ...

    def reply(self, message: Message, arguments: Mapping[str, Any]) -> Message: ...


@dataclass(frozen=True, slots=True, repr=False)
class Message:
    """A JMS message. At most one of `text`, `body` and `map` is set. Points of time are whole milliseconds since 1970 UTC;
    `timestamp`, `delivery_time` and `expiration` give them as a datetime.

    The sender sets the fields up to `delivery_mode`. The queue sets the others, and ignores them when the message is
    sent again. `acknowledge()` and `reject()` are for a received message; a browsed or sent one has no consumer.

    A unit of work is received as one message without a body: `unit_of_work` has its messages in their order, and headers
    and properties are those of the last one. It is acknowledged, rejected and released as one.
    """

    text: str | None = None
    body: bytes | None = None
    map: Mapping[str, MapValue] | None = None
    properties: Mapping[str, Any] = field(default_factory=dict)
    group_id: str | None = None
    group_seq: int | None = None
    priority: int = DEFAULT_PRIORITY
    correlation_id: str | None = None
    reply_to: str | None = None
    type: str | None = None
    expiration_ms: int = 0  # 0 = never
    delivery_time_ms: int = 0  # 0 = at once
    delivery_mode: int = PERSISTENT
    message_id: str = ""
    timestamp_ms: int = 0
    destination: str = ""
    redelivered: bool = False
    delivery_count: int = 0
    member: int = -1
    sequence: int = 0
    unit_of_work: tuple[Message, ...] = ()
    _receipt: Receipt | None = field(default=None, repr=False, compare=False)

    def acknowledge(self) -> None:
        """Acknowledge this message and, in the mode "client", everything else that its consumer has delivered so far, later messages
        too. In the modes "auto" and "dups-ok" the consumer acknowledges by itself, and this does nothing.

        Raises IllegalStateException for a message that was not received, ConsumerClosedException when other consumers
        get it. After an error of the store the message stays acknowledged: the consumer's next call, or its end, writes it.
        """
        self._delivery("acknowledge").acknowledge(self)

    def reject(self, delay: DurationLike | None = None) -> None:
        """Return this one message to the queue; its next delivery is flagged and counted, to this or another consumer.

        No consumer gets it before the delay is over (to 0.1 s, or 2 % of a longer delay); None is the destination's
        `redeliveryDelay`. Without a delay it comes before later messages. Later messages of its unit of order wait for it.
        Beyond the destination's `redeliveryLimit` it goes to the error destination.

        Raises IllegalStateException for a message that its consumer does not have any more, or that was not received.
        """
        receipt = self._delivery("reject")
        receipt.reject(self, None if delay is None else seconds_of("delay", delay))

    def reply(self, **arguments: Unpack[MessageArguments]) -> Message:
        """Send a reply to this message's `reply_to`, with the arguments of `Producer.send`, and return it as sent. Its
        correlation id is this message's, or this message's id if it has none. It acknowledges nothing: acknowledge the
        request after the reply.

        Raises IllegalStateException when the message has no `reply_to` or was not received,
        TemporaryDestinationDeletedError when the requestor is gone.
        """
        return self._delivery("reply to").reply(self, arguments)

    def _delivery(self, purpose: str) -> Receipt:
        if self._receipt is None:
            raise IllegalStateException(
                f"message {self.message_id or '(not sent)'} was not received by a consumer, so there is nothing to "
                f"{purpose}: browsing and sending consume nothing"
            )
        return self._receipt

    @property
    def timestamp(self) -> datetime | None:
        """When it was sent, by the sender's clock, in UTC; None before that."""
        return moment(self.timestamp_ms)

    @property
    def delivery_time(self) -> datetime | None:
        """No consumer gets it before, in UTC. None for a time beyond the year 9999, which `delivery_time_ms` has."""
        return moment(self.delivery_time_ms)

    @property
    def expiration(self) -> datetime | None:
        """No consumer gets it from then on, in UTC. None: it does not expire (`expiration_ms` is 0), or beyond the year 9999,
        as Java's greatest long does; `expiration_ms` has it."""
        return moment(self.expiration_ms)

    def __repr__(self) -> str:
        """What is set, with long bodies cut."""
        shown = []
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "_receipt" or value == each.default or (each.name == "properties" and not value):
                continue
            text = f"<{len(value):,} bytes>" if isinstance(value, bytes) else repr(value)
            if len(text) > _SHOWN_CHARS and each.name in ("text", "map", "properties"):
                text = f"{text[:_SHOWN_CHARS]}…"
            shown.append(f"{each.name}={text}")
        return f"Message({', '.join(shown)})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: bytes become base64, in a map {"bytes": base64}; NaN and infinities become text."""
        out = {f.name: getattr(self, f.name) for f in fields(self) if not f.name.startswith("_")}
        out["unit_of_work"] = [part.to_dict() for part in self.unit_of_work]
        out["properties"] = {name: _plain(value) for name, value in self.properties.items()}
        if self.body is not None:
            out["body"] = base64.b64encode(self.body).decode()
        if self.map is not None:
            out["map"] = {name: _plain(value) for name, value in self.map.items()}
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickled copy has no consumer: only the process that received the message can acknowledge it."""
        return Message, tuple(getattr(self, f.name) for f in fields(self) if f.name != "_receipt")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


_COMPARED = tuple(field.name for field in fields(Message) if field.compare)


class CompressedMessage(Message):
    """A received message whose body is compressed, equal to a Message with the same values. Reading `text`, `body` or `map`
    decompresses, once; reading headers and properties does not. Raises MessageFormatError when the stored body is damaged."""

    __slots__ = ("_as_map", "_kind", "_packed")
    _packed: bytes | None
    _kind: str
    _as_map: Callable[[str], dict[str, Any] | None] | None

    @staticmethod
    def of(
        message: Message, packed: bytes, kind: str, as_map: Callable[[str], dict[str, Any] | None] | None
    ) -> CompressedMessage:
        """`message` has no body. `kind` is that of the packed body; `as_map` reads a text as a map."""
        made = CompressedMessage(*(getattr(message, field.name) for field in fields(message)))
        for name, value in (("_packed", packed), ("_kind", kind), ("_as_map", as_map)):
            object.__setattr__(made, name, value)
        return made

    @property
    def compressed_bytes(self) -> int:
        """Of the body, until the application reads it; then 0."""
        packed = getattr(self, "_packed", None)
        return len(packed) if packed is not None else 0

    def _open(self) -> None:
        packed = getattr(self, "_packed", None)
        if packed is None:
            return
        try:
            data = unpack(packed)
            text, body = (data.decode(), None) if self._kind == TEXT else (None, data)
        except ValueError as error:
            raise MessageFormatError(
                f"message {self.message_id} of {self.destination}, member {self.member}, sequence {self.sequence}: {error}"
            ) from None
        values: Mapping[str, MapValue] | None = self._as_map(text) if text is not None and self._as_map else None
        for name, value in (("text", None if values is not None else text), ("body", body), ("map", values)):
            _SLOTS[name].__set__(self, value)
        object.__setattr__(self, "_packed", None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _COMPARED)

    __hash__ = Message.__hash__


_SLOTS: dict[str, Any] = {name: vars(Message)[name] for name in _BODIES}


def _body(name: str) -> Any:
    def read(self: CompressedMessage) -> Any:
        self._open()
        return _SLOTS[name].__get__(self)

    return property(read, lambda self, value: _SLOTS[name].__set__(self, value))


for _name in _BODIES:  # a class body cannot name them: they are fields of the base
    setattr(CompressedMessage, _name, _body(_name))
MessageListener = Callable[[Message], object]
ExceptionListener = Callable[[Exception], object]


# -- for every class of the client -------------------------------------------------------------------------------------
_Own = TypeVar("_Own", bound="Closable")


class Closable:
    """What an application may use in a `with` statement, which closes it at its end. The subclass defines `close`, and `_end` if it
    matters to it whether the end is orderly.

    The end of a block is orderly unless an exception leaves the block: any, so SystemExit, KeyboardInterrupt, CancelledError and
    GeneratorExit too. A call of `close()` is orderly: it does not look for an exception. An orderly end acknowledges what a consumer
    with the mode "auto" or "dups-ok" has delivered."""

    def close(self) -> None:
        raise NotImplementedError

    def _end(self, *, orderly: bool) -> None:
        self.close()

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(orderly=kind is None)


def end(one: Closable, *, orderly: bool) -> None:
    """As the end of its block."""
    one._end(orderly=orderly)


class OwningProcess:
    """Remembers the process that made it. A context and everything of it belong to that process: in a forked child their calls raise
    ForkedProcessError, and closing them does nothing. Both look here before they take a lock, which a thread of the parent may have
    held at the fork."""

    def __init__(self) -> None:
        self._process = this_process()

    @property
    def is_parent(self) -> bool:
        """This process is a forked child of it."""
        return self._process is not this_process()

    def check(self) -> None:
        """Raises ForkedProcessError in a forked child."""
        if self._process is not this_process():
            raise ForkedProcessError()


def seconds_of(name: str, given: DurationLike) -> float:
    """The seconds of the argument `name`. Raises OptionError."""
    try:
        return duration_s(given)
    except ValueError as error:
        raise OptionError(f"{name}: {error}") from None
