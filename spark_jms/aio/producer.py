"""Sending from coroutines: each send is an asynchronous send of the same core, whose completion wakes its coroutine.

Features: T5, T11, M7 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa

from spark_jms.aio.blocking_calls import BlockingCalls
from spark_jms.aio.room import SendRoom
from spark_jms.client.columns import ArrowStream, item_bytes
from spark_jms.client.message import Message, MessageArguments
from spark_jms.client.producer import Producer, flow_of
from spark_jms.client.producer_arguments import CHUNK_MESSAGES
from spark_jms.client.send_report import ProducerStatistics, SendReport

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger("spark_jms")


class AsyncProducer:
    """Made by `AsyncContext.producer`. Coroutines that send at the same time share commits. The messages of one coroutine, and of
    any in the order of their calls, keep their order as those of a Producer do; while flow control slows the producer, only those
    of one coroutine."""

    def __init__(self, producer: Producer, calls: BlockingCalls, room: SendRoom) -> None:
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
        return self._producer.producer_id

    @property
    def last_sequence(self) -> int:
        """As `Producer.last_sequence`."""
        return self._producer.last_sequence

    async def resume(self) -> int:
        """As `Producer.resume`."""
        return await self._calls.run(self._producer.resume)

    def statistics(self) -> ProducerStatistics:
        return self._producer.statistics()

    def reset_statistics(self) -> None:
        """As `Producer.reset_statistics`."""
        self._producer.reset_statistics()

    @property
    def closed(self) -> bool:
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


class _Outcome:
    """The completion listener of one send."""

    has_waited = True  # the coroutine, for its pace and for room: `Producer.send` does not

    def __init__(self, outcome: asyncio.Future[Message], size: int, calls: BlockingCalls, room: SendRoom) -> None:
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
