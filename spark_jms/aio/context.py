"""An asyncio application's connection to a domain, and what it opens.

`await` what it opens, or use it in `async with`, which also closes it.

Features: M7 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict, TypeVar

from spark_jms import client
from spark_jms.aio.blocking_calls import BlockingCalls, SendLimit
from spark_jms.aio.clients import AsyncConsumer, AsyncProducer
from spark_jms.claims.records.subscriptions import Sharing
from spark_jms.client import AcknowledgeMode, Context, ContextStatistics, Message, MessageArguments, StartingPosition
from spark_jms.client.messages.message import end
from spark_jms.client.receiving.request import ReplyWait
from spark_jms.client.sending.asynchronous_send import MAX_BYTES, MAX_MESSAGES
from spark_jms.client.sending.producer import DEFAULT_SEND_TIMEOUT_S
from spark_jms.core.destinations.subscriptions import ClientIdPolicy
from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.settings.types import DurationLike

if TYPE_CHECKING:
    from typing_extensions import Unpack

_BROWSED_AT_ONCE = 100


class ConnectArguments(TypedDict, total=False):
    """Those of `spark_jms.connect`."""

    housekeeping: bool
    client_id: str | None
    client_id_policy: ClientIdPolicy
    connection_factory: str | ConnectionFactory | None
    server: str | None


class ConsumerArguments(TypedDict, total=False):
    """Those of `Context.consumer`, but the listeners."""

    selector: str | None
    subscription: str | None
    durable: bool | None
    sharing: Sharing
    starting_position: StartingPosition | None
    acknowledge: AcknowledgeMode
    prefetch: int | None
    members: int | Iterable[int] | None
    pin: bool | None
    fail_on_data_loss: bool


class AsyncClosable(Protocol):
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


T = TypeVar("T", bound=AsyncClosable)


class AsyncOpening(Generic[T]):
    """What opens something. `await context.producer("orders")` returns the producer; `async with context.producer("orders") as
    producer` closes it at its end."""

    def __init__(self, open_it: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._open = open_it
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._opened is not None
        await self._opened.__aexit__(kind, error, trace)


def connect(
    root: str | os.PathLike[str] | None = None, **arguments: Unpack[ConnectArguments]
) -> AsyncOpening[AsyncContext]:
    """As `spark_jms.connect`: `async with connect(root) as context`, or `context = await connect(root)`."""

    async def opened() -> AsyncContext:
        calls = BlockingCalls()
        try:
            context = await calls.open(lambda: client.connect(root, **arguments), Context.close)
        except BaseException:
            calls.close()
            raise
        return AsyncContext(context, calls)

    return AsyncOpening(opened)


class AsyncContext:
    """A Context whose calls are coroutines; of one event loop. `blocking` is that Context, for what this one lacks: call it in a
    thread. Leave `async with` before the loop ends, or `await close()`."""

    def __init__(self, blocking: Context, calls: BlockingCalls) -> None:
        self.blocking, self.root, self.client_id = blocking, blocking.root, blocking.client_id
        self._calls = calls
        self._room = SendLimit(MAX_MESSAGES, MAX_BYTES)

    def producer(
        self,
        destination: str,
        *,
        send_timeout: DurationLike = DEFAULT_SEND_TIMEOUT_S,
        compression_threshold: int | None = None,
        producer_id: str | None = None,
    ) -> AsyncOpening[AsyncProducer]:
        """As `Context.producer`: await it, or use it in `async with`."""
        make = partial(
            self.blocking.producer,
            destination,
            send_timeout=send_timeout,
            compression_threshold=compression_threshold,
            producer_id=producer_id,
        )

        async def opened() -> AsyncProducer:
            producer = await self._calls.open(make, client.Producer.close)
            return AsyncProducer(producer, self._calls, self._room)

        return AsyncOpening(opened)

    def consumer(self, destination: str, **arguments: Unpack[ConsumerArguments]) -> AsyncOpening[AsyncConsumer]:
        """As `Context.consumer`: await it, or use it in `async with`."""

        async def opened() -> AsyncConsumer:
            make = partial(self.blocking.consumer, destination, **arguments)
            consumer = await self._calls.open(make, client.Consumer.close)
            return AsyncConsumer(consumer, self._calls)

        return AsyncOpening(opened)

    async def browser(
        self,
        destination: str,
        *,
        selector: str | None = None,
        subscription: str | None = None,
        limit: int | None = None,
        include_finished: bool = False,
    ) -> AsyncIterator[Message]:
        """As `Context.browser`: `async for message in context.browser("orders")`."""
        make = partial(
            self.blocking.browser,
            destination,
            selector=selector,
            subscription=subscription,
            limit=limit,
            include_finished=include_finished,
        )
        shown = iter(await self._calls.run(make))
        while some := await self._calls.run(lambda: list(islice(shown, _BROWSED_AT_ONCE))):
            for message in some:
                yield message

    async def request(
        self, destination: str, *, timeout: DurationLike | None = None, **arguments: Unpack[MessageArguments]
    ) -> Message:
        """As `Context.request`. Cancelled, the request stays sent, and its reply is dropped."""
        waiting = ReplyWait()
        running = self._calls.start(self.blocking._request, destination, timeout, arguments, waiting)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            running.add_done_callback(asyncio.Future.exception)  # no coroutine asks for it
            waiting.interrupt()  # its thread is free again
            raise

    def statistics(self) -> ContextStatistics:
        """What is open now, how much was open, and which background work fails; it does not wait."""
        return self.blocking.statistics()

    def reset_statistics(self) -> None:
        """As `Context.reset_statistics`."""
        self.blocking.reset_statistics()

    async def close(self) -> None:
        """As `Context.close`."""
        await self._end(orderly=True)

    async def _end(self, *, orderly: bool) -> None:
        if self._calls.is_parent:
            return
        await self._calls.discarded()
        await self._calls.run(end, self.blocking, orderly=orderly)
        self._calls.close()

    async def __aenter__(self) -> AsyncContext:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._end(orderly=kind is None)

    def __repr__(self) -> str:
        return repr(self.blocking).replace("<Context", "<AsyncContext", 1)
