"""Receiving in coroutines.

A receive waits in a thread. When its coroutine is cancelled, the thread is told to stop waiting; a message that it has taken
by then is kept, and the next receive returns it. So no message is lost, and each is delivered once. Until a coroutine has it,
nothing acknowledges it, and what ends or recovers the consumer releases it as it was.

Features: M7 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from spark_jms.aio.blocking_calls import BlockingCalls
from spark_jms.aio.message import AsyncMessage, asynchronous
from spark_jms.client.closing import end
from spark_jms.client.consumer import Consumer, InterruptibleReceive
from spark_jms.client.delivery import ConsumerStatistics
from spark_jms.client.message import Message
from spark_jms.errors import ClosedError
from spark_jms.settings.duration import DurationLike


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
            if call.shows(message):
                return asynchronous(message, self._calls)

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
        return self._consumer.statistics()

    def reset_statistics(self) -> None:
        """As `Consumer.reset_statistics`."""
        self._consumer.reset_statistics()

    @property
    def closed(self) -> bool:
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
