"""One message as a Python value: what a consumer and a browser give, and what a producer takes as a template (C2)."""

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
    """Who delivered the message, and so where acknowledging it goes."""

    def acknowledge(self, message: Message) -> None: ...


@dataclass(frozen=True, slots=True)
class Message:
    """A JMS message. One of `text`, `body` and `map` is set, or none. Times are milliseconds since 1970 UTC.

    What a sender sets comes first; the rest is set by whoever stores or delivers it and ignored when sent again.
    A received message is acknowledged by `acknowledge()`; a message from a browser or a producer cannot be.
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
        """Tell the queue that this message is done, and with it, in the mode "client", all that its consumer delivered
        before. In the modes "auto" and "dups-ok" the consumer does that by itself, and this does nothing."""
        if self._receipt is None:
            raise IllegalStateException(
                f"message {self.message_id or '(not sent)'} was not received by a consumer, so there is nothing to "
                "acknowledge: browsing and sending consume nothing"
            )
        self._receipt.acknowledge(self)

    def to_dict(self) -> dict[str, Any]:
        """The message as JSON takes it: bytes are base64, in a map {"bytes": base64}; NaN and infinities are text."""
        out = {f.name: getattr(self, f.name) for f in fields(self) if not f.name.startswith("_")}
        out["properties"] = {name: _plain(value) for name, value in self.properties.items()}
        if self.body is not None:
            out["body"] = base64.b64encode(self.body).decode()
        if self.map is not None:
            out["map"] = {name: _plain(value) for name, value in self.map.items()}
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process is the message without its consumer: only here it can be acknowledged."""
        return Message, tuple(getattr(self, f.name) for f in fields(self) if f.name != "_receipt")


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
