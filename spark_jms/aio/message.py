"""A received message whose calls are coroutines (M7)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from spark_jms.aio.blocking_calls import BlockingCalls
from spark_jms.client.durations import seconds_of
from spark_jms.client.message import Message, MessageArguments, Receipt
from spark_jms.settings.duration import DurationLike

if TYPE_CHECKING:
    from typing_extensions import Unpack

_FIELDS = [field.name for field in fields(Message)]


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


def asynchronous(message: Message, calls: BlockingCalls) -> AsyncMessage:
    values = {name: getattr(message, name) for name in _FIELDS}
    receipt = message._receipt
    values["_receipt"] = None if receipt is None else _AsyncReceipt(receipt, calls)
    return AsyncMessage(**values)
