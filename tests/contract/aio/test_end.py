"""C8, M7: the end of an asyncio consumer acknowledges in auto and dups-ok what a coroutine has received, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, Literal

import pytest

import spark_jms
from spark_jms import aio
from spark_jms.client import Context
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import consumer_of, delivery_of
from tests.harness.messages.shorthands import send_texts

Automatic = Literal["auto", "dups-ok"]
LIMIT_S = 30.0
both = pytest.mark.parametrize("mode", ["auto", "dups-ok"])


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain(orders="queue") as where:
        yield where


@pytest.fixture
def context(root: str) -> Iterator[Context]:
    with spark_jms.connect(root, housekeeping=False) as opened:
        send_texts(opened, *"abc")
        yield opened


def left(context: Context) -> list[tuple[str | None, int]]:
    """What waits: text and the number of deliveries so far."""
    return [(m.text, m.delivery_count) for m in context.browser("orders")]


def connected(root: str) -> Any:
    return aio.connect(root, housekeeping=False)


async def received(consumer: aio.AsyncConsumer) -> aio.AsyncMessage:
    message = await consumer.receive(timeout=LIMIT_S)
    assert message is not None
    return message


# -- an orderly end ----------------------------------------------------------------------------------------------------
async def leave_consumer(root: str, mode: Automatic) -> None:
    async with connected(root) as context, context.consumer("orders", acknowledge=mode) as consumer:
        await received(consumer)


async def leave_awaited_consumer(root: str, mode: Automatic) -> None:
    async with connected(root) as context, await context.consumer("orders", acknowledge=mode) as consumer:
        await received(consumer)


async def close_consumer(root: str, mode: Automatic) -> None:
    async with connected(root) as context:
        consumer = await context.consumer("orders", acknowledge=mode)
        await received(consumer)
        await consumer.close()


async def leave_context(root: str, mode: Automatic) -> None:
    async with connected(root) as context:
        await received(await context.consumer("orders", acknowledge=mode))


async def close_context(root: str, mode: Automatic) -> None:
    context = await connected(root)
    await received(await context.consumer("orders", acknowledge=mode))
    await context.close()


async def break_loop(root: str, mode: Automatic) -> None:
    async with connected(root) as context, context.consumer("orders", acknowledge=mode) as consumer:
        async for _ in consumer.messages():
            break


ENDS = [leave_consumer, leave_awaited_consumer, close_consumer, leave_context, close_context, break_loop]


@both
@pytest.mark.parametrize("end", ENDS)
def test_orderly_end_acknowledges_what_was_received(
    root: str, context: Context, mode: Automatic, end: Callable[[str, Automatic], Coroutine[Any, Any, None]]
) -> None:
    """C8, M7: what was prefetched is as it was."""
    asyncio.run(end(root, mode))
    assert left(context) == [("b", 1), ("c", 1)]
    asyncio.run(end(root, mode))
    asyncio.run(end(root, mode))
    assert left(context) == []


# -- an exception ------------------------------------------------------------------------------------------------------
async def raise_in_consumer(root: str) -> None:
    async with connected(root) as context, context.consumer("orders", acknowledge="auto") as consumer:
        await received(consumer)
        raise ValueError


async def raise_in_context(root: str) -> None:
    async with connected(root) as context:
        await received(await context.consumer("orders", acknowledge="auto"))
        raise ValueError


async def cancel_the_handler(root: str) -> None:
    handling = asyncio.Event()

    async def handle() -> None:
        async with connected(root) as context, context.consumer("orders", acknowledge="auto") as consumer:
            await received(consumer)
            handling.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(handle())
    await handling.wait()
    task.cancel()
    await task


@pytest.mark.parametrize(
    ("fail", "error"),
    [
        (raise_in_consumer, ValueError),
        (raise_in_context, ValueError),
        (cancel_the_handler, asyncio.CancelledError),
    ],
)
def test_exception_that_leaves_the_block_gives_the_message_back(
    root: str,
    context: Context,
    fail: Callable[[str], Coroutine[Any, Any, None]],
    error: type[BaseException],
) -> None:
    """C8, M7: it comes again, flagged."""
    with pytest.raises(error):
        asyncio.run(fail(root))
    assert left(context) == [("a", 2), ("b", 1), ("c", 1)]


def test_generator_that_is_closed_gives_its_message_back(root: str, context: Context) -> None:
    """C8, M7: as a blocking one does."""

    async def work() -> AsyncIterator[str | None]:
        async with connected(root) as own, own.consumer("orders", acknowledge="auto") as consumer:
            async for message in consumer:
                yield message.text

    async def main() -> None:
        async for text in (running := work()):
            assert text == "a"
            break
        await running.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())
    assert left(context) == [("a", 2), ("b", 1), ("c", 1)]


# -- a receive that is cancelled ---------------------------------------------------------------------------------------
async def cancelled_with_a_message(consumer: aio.AsyncConsumer) -> None:
    """A receive that is cancelled after its thread has taken a message, and before its coroutine has it."""
    prefetched = delivery_of(consumer_of(consumer)).prefetched
    before = len(prefetched)
    assert before
    receiving = asyncio.ensure_future(consumer.receive())
    while consumer._turn.locked() is False:
        await asyncio.sleep(0)
    wait_until(lambda: len(prefetched) == before - 1)  # without the loop
    receiving.cancel()
    await asyncio.wait([receiving])
    assert receiving.cancelled()


async def end_consumer(consumer: aio.AsyncConsumer, context: aio.AsyncContext) -> None:
    await consumer.close()


async def end_context(consumer: aio.AsyncConsumer, context: aio.AsyncContext) -> None:
    await context.close()


@both
@pytest.mark.parametrize("end", [end_consumer, end_context])
def test_end_does_not_acknowledge_what_no_coroutine_has(
    root: str,
    context: Context,
    mode: Automatic,
    end: Callable[[aio.AsyncConsumer, aio.AsyncContext], Awaitable[None]],
) -> None:
    """C8, M7: it comes again as if it had never been taken."""

    async def main() -> None:
        async with connected(root) as own, own.consumer("orders", acknowledge=mode) as consumer:
            assert (await received(consumer)).text == "a"
            await cancelled_with_a_message(consumer)
            await end(consumer, own)

    asyncio.run(main())
    assert left(context) == [("b", 1), ("c", 1)]


def test_acknowledging_all_does_not_acknowledge_what_no_coroutine_has(root: str, context: Context) -> None:
    """C8, M7: the next receive returns it."""

    async def main() -> None:
        async with connected(root) as own, own.consumer("orders") as consumer:
            first = await received(consumer)
            await cancelled_with_a_message(consumer)
            await first.acknowledge()
            assert left(context) == [("b", 1), ("c", 1)]
            assert (await received(consumer)).text == "b"

    asyncio.run(main())
    assert left(context) == [("b", 2), ("c", 1)]


def test_recovered_consumer_delivers_each_message_once(root: str, context: Context) -> None:
    """C8, M7: what a cancelled receive has left comes from its place, not flagged, and not twice."""

    async def main() -> None:
        async with connected(root) as own, own.consumer("orders", acknowledge="individual") as consumer:
            await received(consumer)
            await cancelled_with_a_message(consumer)
            await consumer.recover()
            got = [await received(consumer) for _ in range(3)]
            assert [(m.text, m.delivery_count) for m in got] == [("a", 2), ("b", 1), ("c", 1)]
            assert await consumer.receive(timeout=0) is None

    asyncio.run(main())
