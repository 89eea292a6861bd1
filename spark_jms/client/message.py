"""A message as a Python value: consumers and browsers return it, producers accept it as a template (C2)."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

from spark_jms.core.message import DEFAULT_PRIORITY, PERSISTENT
from spark_jms.errors import IllegalStateException

PropertyValue = bool | int | float | str
MapValue = bool | int | float | str | bytes | None


class Receipt(Protocol):
    """The delivery of a message to a consumer, which acknowledges it."""

    def acknowledge(self, message: Message) -> None: ...


@dataclass(frozen=True, slots=True)
class Message:
    """A JMS message. At most one of `text`, `body` and `map` is set. Times are milliseconds since 1970 UTC.

    The sender sets the fields up to `delivery_mode`. The queue sets the others, and ignores them when the message is
    sent again. `acknowledge()` acknowledges a received message; a browsed or sent message has nothing to acknowledge.
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
    _receipt: Receipt | None = field(default=None, repr=False, compare=False)

    def acknowledge(self) -> None:
        """Acknowledge this message and, in the mode "client", everything its consumer delivered before. In the modes
        "auto" and "dups-ok" the consumer acknowledges by itself, and this does nothing."""
        if self._receipt is None:
            raise IllegalStateException(
                f"message {self.message_id or '(not sent)'} was not received by a consumer, so there is nothing to "
                "acknowledge: browsing and sending consume nothing"
            )
        self._receipt.acknowledge(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: bytes become base64, in a map {"bytes": base64}; NaN and infinities become text."""
        out = {f.name: getattr(self, f.name) for f in fields(self) if not f.name.startswith("_")}
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
