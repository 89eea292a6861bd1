"""A received message whose calls are coroutines.

Features: T8, M7 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from spark_jms.aio.blocking_calls import BlockingCalls
from spark_jms.client.compressed import CompressedMessage
from spark_jms.client.durations import seconds_of
from spark_jms.client.message import Message, MessageArguments, Receipt
from spark_jms.settings.duration import DurationLike

if TYPE_CHECKING:
    from typing_extensions import Unpack

_SLOTS: list[Any] = [vars(Message)[field.name] for field in fields(Message)]  # they do not decompress


@dataclass(frozen=True, slots=True)
class _AsyncReceipt:
    """A receipt that remembers how to call it from a coroutine."""

    receipt: Receipt
    calls: BlockingCalls

    def acknowledge(self, message: Message) -> None:
        self.receipt.acknowledge(message)

    def reject(self, message: Message, delay_s: float | None) -> None:
        self.receipt.reject(message, delay_s)

    def reply(self, message: Message, arguments: Mapping[str, Any]) -> Message:
        return self.receipt.reply(message, arguments)


@dataclass(frozen=True, slots=True, repr=False)
class AsyncMessage(Message):
    """A Message of an AsyncConsumer: `acknowledge`, `reject` and `reply` are awaited. When their coroutine is cancelled, the call
    still takes place."""

    async def acknowledge(self) -> None:  # type: ignore[override]
        """As `Message.acknowledge`."""
        await self._run("acknowledge", "acknowledge")

    async def reject(self, delay: DurationLike | None = None) -> None:  # type: ignore[override]
        """As `Message.reject`."""
        await self._run("reject", "reject", None if delay is None else seconds_of("delay", delay))

    async def reply(self, **arguments: Unpack[MessageArguments]) -> Message:  # type: ignore[override]
        """As `Message.reply`."""
        sent: Message = await self._run("reply to", "reply", arguments)
        return sent

    async def _run(self, purpose: str, call: str, *arguments: Any) -> Any:
        receipt = self._delivery(purpose)
        assert isinstance(receipt, _AsyncReceipt)
        return await receipt.calls.run(getattr(receipt.receipt, call), self, *arguments)


class _CompressedAsyncMessage(AsyncMessage, CompressedMessage):
    """Its body is compressed until the application reads it."""

    __slots__ = ()


def asynchronous(message: Message, calls: BlockingCalls) -> AsyncMessage:
    kind = _CompressedAsyncMessage if isinstance(message, CompressedMessage) else AsyncMessage
    made = kind(*(slot.__get__(message) for slot in _SLOTS))
    if isinstance(message, CompressedMessage):
        for name in CompressedMessage.__slots__:
            object.__setattr__(made, name, getattr(message, name))
    if message._receipt is not None:
        object.__setattr__(made, "_receipt", _AsyncReceipt(message._receipt, calls))
    return made
