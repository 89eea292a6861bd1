"""Sending and receiving in coroutines, and received messages whose calls are coroutines.

A receive waits in a thread. When its coroutine is cancelled, the thread is told to stop waiting; a message that it has taken
by then is kept, and the next receive returns it. So no message is lost, and each is delivered once. Until a coroutine has it,
nothing acknowledges it, and what ends or recovers the consumer releases it as it was.

Each send is an asynchronous send of the same core, whose completion wakes its coroutine.

Features: M7, T5, T8, T11 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from spark_jms.aio.blocking_calls import BlockingCalls, SendLimit
from spark_jms.client.messages.columns import CHUNK_MESSAGES, ArrowStream, item_bytes
from spark_jms.client.messages.message import CompressedMessage, Message, MessageArguments, Receipt, end, seconds_of
from spark_jms.client.receiving.consumer import Consumer, InterruptibleReceive
from spark_jms.client.receiving.delivery import ConsumerStatistics
from spark_jms.client.sending.asynchronous_send import ProducerStatistics, SendReport
from spark_jms.client.sending.producer import Producer, flow_of
from spark_jms.errors import ClosedError
from spark_jms.settings.types import DurationLike

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger("spark_jms")
_SLOTS: list[Any] = [vars(Message)[field.name] for field in fields(Message)]  # they do not decompress


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


class AsyncProducer:
    """Made by `AsyncContext.producer`. Coroutines that send at the same time share commits. The messages of one coroutine, and of
    any in the order of their calls, keep their order as those of a Producer do; while flow control slows the producer, only those
    of one coroutine."""

    def __init__(self, producer: Producer, calls: BlockingCalls, room: SendLimit) -> None:
        self.destination = producer.destination
        self._producer, self._calls, self._room = producer, calls, room

    @overload
    async def send(self, template: Message, /, *, sequence: int | None = None) -> Message: ...
    @overload
    async def send(self, *, sequence: int | None = None, **arguments: Unpack[MessageArguments]) -> Message: ...

    async def send(  # type: ignore[misc]
        self, template: Message | None = None, /, *, sequence: int | None = None, **arguments: Any
    ) -> Message:
        """Send one message and return it as sent, as `Producer.send` does. Waits while too much of this context is outstanding, and
        for flow control.

        Cancelled while it waits for that, it has sent nothing. Cancelled later, the message is sent all the same; an error of it
        goes to the log.
        """
        self._calls.check()
        size = item_bytes(template if isinstance(template, Message) else arguments)  # type: ignore[arg-type]
        await self._wait(size)
        outcome: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        try:
            completion = _Outcome(outcome, size, self._calls, self._room)
            if template is None:
                self._producer.send(completion=completion, sequence=sequence, **arguments)
            else:
                self._producer.send(template, completion=completion, sequence=sequence, **arguments)
        except BaseException:
            self._room.leave(size)
            raise
        return await outcome

    async def _wait(self, size: int) -> None:
        """For flow control, then for room, without blocking the loop. Cancelled, or closed, the message costs neither."""
        flow = flow_of(self._producer)
        if flow is None or flow.is_idle:
            await self._room.enter(size)
            return
        turn = await self._calls.open(partial(flow.enter, 1), flow.leave)
        try:
            while (left_s := await self._calls.run(flow.left_s, turn)) > 0:
                await asyncio.sleep(left_s)
            await self._room.enter(size)
        except BaseException:
            flow.leave(turn)
            raise

    async def send_many(
        self,
        messages: Iterable[Message | MessageArguments],
        *,
        chunk_messages: int = CHUNK_MESSAGES,
        transaction: tuple[str, int] | None = None,
        sequence: int | None = None,
    ) -> SendReport:
        """As `Producer.send_many`. Cancelled, it continues in its thread."""
        send_many = self._producer.send_many
        return await self._calls.run(
            lambda: send_many(messages, chunk_messages=chunk_messages, transaction=transaction, sequence=sequence)
        )

    async def send_table(
        self,
        table: pa.RecordBatch | ArrowStream,
        *,
        transaction: tuple[str, int] | None = None,
        sequence: int | None = None,
    ) -> SendReport:
        """As `Producer.send_table`. Cancelled, it continues in its thread."""
        return await self._calls.run(self._producer.send_table, table, transaction=transaction, sequence=sequence)

    async def send_unit_of_work(
        self, messages: Iterable[Message | MessageArguments], name: str | None = None, *, sequence: int | None = None
    ) -> SendReport:
        """As `Producer.send_unit_of_work`. Cancelled, it continues in its thread."""
        return await self._calls.run(self._producer.send_unit_of_work, messages, name, sequence=sequence)

    @property
    def producer_id(self) -> str | None:
        """The id that it was opened with, or None."""
        return self._producer.producer_id

    @property
    def last_sequence(self) -> int:
        """As `Producer.last_sequence`."""
        return self._producer.last_sequence

    async def resume(self) -> int:
        """As `Producer.resume`."""
        return await self._calls.run(self._producer.resume)

    def statistics(self) -> ProducerStatistics:
        """Counts of messages, commits and bytes; it does not wait."""
        return self._producer.statistics()

    def reset_statistics(self) -> None:
        """As `Producer.reset_statistics`."""
        self._producer.reset_statistics()

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or a one-way send has failed."""
        return self._producer.closed

    async def close(self) -> None:
        """Returns once its sends are complete."""
        if self._calls.is_parent:
            return
        await self._calls.run(self._producer.close)

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._producer).replace("<Producer", "<AsyncProducer", 1)


class AsyncConsumer:
    """Made by `AsyncContext.consumer`. Coroutines that receive at the same time take turns. `async for message in consumer`
    waits for messages until the consumer is closed."""

    def __init__(self, consumer: Consumer, calls: BlockingCalls) -> None:
        self.destination, self.name = consumer.destination, consumer.name
        self.mode, self.prefetch = consumer.mode, consumer.prefetch
        self._consumer, self._calls = consumer, calls
        self._turn = asyncio.Lock()
        self._interrupted: asyncio.Future[Message | None] | None = None  # a call whose coroutine was cancelled

    async def receive(self, timeout: DurationLike | None = None) -> AsyncMessage | None:
        """The next message, or None if none arrives within `timeout` (None waits for ever, 0 does not wait) or the consumer is
        closed meanwhile. Cancelled, it loses no message."""
        was_closed = self._consumer.closed
        async with self._turn:
            try:
                return await self._received(timeout)
            except ClosedError:
                if was_closed:
                    raise
                return None

    async def _received(self, timeout: DurationLike | None) -> AsyncMessage | None:
        while True:
            call = InterruptibleReceive(self._consumer, timeout)
            message = await self._taken(call)
            if message is None:
                return None
            if call.shows(message, self._task()):
                return asynchronous(message, self._calls)

    def _task(self) -> asyncio.Task[Any] | None:
        """In which the application has what it receives. None: the task is this receive alone, as of `asyncio.wait_for`."""
        task = asyncio.current_task()
        code = getattr(task.get_coro(), "cr_code", None) if task is not None else None
        return None if code in (AsyncConsumer.receive.__code__, AsyncConsumer.__anext__.__code__) else task

    async def _taken(self, call: InterruptibleReceive) -> Message | None:
        if self._interrupted is not None:
            kept = await self._finish(self._interrupted)
            if kept is not None:
                return kept
        running = self._calls.start(call)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            call.interrupt()
            self._interrupted = running
            raise

    async def _finish(self, interrupted: asyncio.Future[Message | None]) -> Message | None:
        await asyncio.wait([interrupted])  # cancelled here, it is still kept
        self._interrupted = None
        return interrupted.result()

    async def messages(self, idle_timeout: DurationLike | None = None) -> AsyncIterator[AsyncMessage]:
        """Messages as they arrive, until none has arrived for `idle_timeout` (None waits for ever) or the consumer is closed."""
        while not self._consumer.closed:
            message = await self.receive(idle_timeout)
            if message is None:
                return
            yield message

    def __aiter__(self) -> AsyncConsumer:
        return self

    async def __anext__(self) -> AsyncMessage:
        message = None if self._consumer.closed else await self.receive()
        if message is None:
            raise StopAsyncIteration
        return message

    async def recover(self) -> None:
        """As `Consumer.recover`."""
        await self._calls.run(self._consumer.recover)

    def statistics(self) -> ConsumerStatistics:
        """Counts of messages and bytes; it does not wait."""
        return self._consumer.statistics()

    def reset_statistics(self) -> None:
        """As `Consumer.reset_statistics`."""
        self._consumer.reset_statistics()

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or the consumer has ended."""
        return self._consumer.closed

    async def close(self) -> None:
        """As `Consumer.close`. A receive that waits returns None."""
        if self._calls.is_parent:
            return
        await self._calls.run(self._consumer.close)

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._calls.run(end, self._consumer, orderly=kind is None)

    def __repr__(self) -> str:
        return repr(self._consumer).replace("<Consumer", "<AsyncConsumer", 1)


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


class _Outcome:
    """The completion listener of one send."""

    has_waited = True  # the coroutine, for its pace and for room: `Producer.send` does not

    def __init__(self, outcome: asyncio.Future[Message], size: int, calls: BlockingCalls, room: SendLimit) -> None:
        self._outcome, self._size, self._calls, self._room = outcome, size, calls, room

    def on_completion(self, message: Message, /) -> None:
        self._calls.post(lambda: self._decide(message))

    def on_exception(self, message: Message, error: Exception, /) -> None:
        self._calls.post(lambda: self._decide(error))

    def _decide(self, outcome: Message | Exception) -> None:
        self._room.leave(self._size)
        if not self._outcome.done():
            if isinstance(outcome, Message):
                self._outcome.set_result(outcome)
            else:
                self._outcome.set_exception(outcome)
        elif isinstance(outcome, Exception):
            log.warning("a message whose coroutine was cancelled could not be sent", exc_info=outcome)
