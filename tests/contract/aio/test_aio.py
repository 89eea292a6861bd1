"""The asyncio client: sends, receives, cancellation at every await, backpressure (M7)."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa
import pytest

import spark_jms
from spark_jms import aio
from spark_jms.aio.blocking_calls import AT_ONCE, BlockingCalls
from spark_jms.client import Context, Message
from spark_jms.client.sending.producer import flow_of
from spark_jms.errors import (
    ClosedError,
    DomainError,
    IllegalStateException,
    InvalidDestinationError,
    MessageFormatError,
    MessageSizeError,
)
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import asynchronous_sends_of, requests_waiting, room_of
from tests.harness.messages.completions import Hold, numbers

LIMIT_S = 30


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain(orders="queue", prices="topic", small={"kind": "queue", "max_message_bytes": 10}) as where:
        yield where


def running(root: str, body: Callable[[aio.AsyncContext], Coroutine[Any, Any, None]], **arguments: Any) -> None:
    """Run `body` with an open context."""

    async def main() -> None:
        async with asyncio_limit(), aio.connect(root, housekeeping=False, **arguments) as context:
            await body(context)

    asyncio.run(main())


class asyncio_limit:
    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handle = asyncio.get_running_loop().call_later(LIMIT_S, task.cancel)

    async def __aexit__(self, *_: object) -> None:
        self._handle.cancel()


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def texts(context: aio.AsyncContext, destination: str = "orders") -> list[str | None]:
    return [message.text async for message in context.browser(destination)]


async def cancelled(task: asyncio.Task[Any]) -> bool:
    task.cancel()
    await asyncio.wait([task])
    return task.cancelled()


# -- both ways ---------------------------------------------------------------------------------------------------------
def test_send_receive_and_acknowledge(root: str) -> None:
    """M7"""

    async def body(context: aio.AsyncContext) -> None:
        async with context.producer("orders") as producer:
            sent = await producer.send(text="hello", properties={"color": "red"}, priority=7)
            assert await producer.send(sent) != sent
            assert (await producer.send_many({"text": text} for text in "ab")).messages == 2
            assert (await producer.send_table(pa.table({"text": ["c"]}))).messages == 1
            assert (await producer.send_unit_of_work([{"text": "d"}])).messages == 1
            assert producer.statistics().messages == 6
        assert producer.closed
        with pytest.raises(ClosedError):
            await producer.send(text="late")
        consumer = await context.consumer("orders", acknowledge="individual")
        got = []
        async for message in consumer.messages(idle_timeout=0.05):
            assert isinstance(message, aio.AsyncMessage)
            got.append(message)
            await message.acknowledge()
        assert [message.text for message in got] == ["hello", "hello", "a", "b", "c", "d"]
        assert (got[0].message_id, got[0].properties, got[0].priority) == (sent.message_id, {"color": "red"}, 7)
        assert await texts(context) == []
        assert consumer.statistics().acknowledged == 6
        await consumer.close()
        assert context.statistics().consumers == 0

    running(root, body)


def test_reject_recover_reply_and_request(root: str) -> None:
    """M7, C8, C15"""

    async def body(context: aio.AsyncContext) -> None:
        async with context.producer("orders") as producer, context.consumer("orders") as consumer:
            await producer.send(text="a")
            first = await consumer.receive()
            assert first is not None
            await first.reject()
            again = await consumer.receive()
            assert again is not None
            assert again.redelivered
            await consumer.recover()
            third = await consumer.receive(timeout=LIMIT_S)
            assert third is not None
            assert third.delivery_count == 3
            with pytest.raises(IllegalStateException, match="no reply_to|JMSReplyTo"):
                await third.reply(text="nowhere")
            await third.acknowledge()
            asking = asyncio.ensure_future(context.request("orders", text="question", timeout=LIMIT_S))
            question = await consumer.receive()
            assert question is not None
            await question.reply(text="answer")
            assert (await asking).text == "answer"
            with pytest.raises(IllegalStateException, match="was not received"):
                await aio.AsyncMessage(text="made").acknowledge()

    running(root, body)


def test_compressed_body_stays_so_until_it_is_read(root: str) -> None:
    """M7, T8"""

    async def body(context: aio.AsyncContext) -> None:
        text = "hello " * 1000
        async with context.producer("orders", compression_threshold=100) as producer:
            await producer.send(text=text, priority=7)
            await producer.send(map={"long": text})
        async with context.consumer("orders", acknowledge="individual") as consumer:
            for expected in ((text, None), (None, {"long": text})):
                message = await consumer.receive()
                assert isinstance(message, aio.AsyncMessage)
                assert 0 < message.compressed_bytes < 1000  # type: ignore[attr-defined]
                assert (message.text, message.map) == expected
                assert message.compressed_bytes == 0  # type: ignore[attr-defined]
                await message.acknowledge()
        assert await texts(context) == []

    running(root, body)


def test_opening_is_awaited_or_used_in_async_with(root: str) -> None:
    """M7: errors of opening are raised there."""

    async def main() -> None:
        context = await aio.connect(root, housekeeping=False)
        async with context, await context.producer("orders") as producer:
            await producer.send(text="a")
        with pytest.raises(ClosedError):
            await context.producer("orders")
        async with aio.connect(root) as context:
            with pytest.raises(InvalidDestinationError):
                await context.producer("nowhere")
            with pytest.raises(InvalidDestinationError):
                async with context.consumer("nowhere"):
                    pass
            assert "AsyncContext" in repr(context)
        with pytest.raises(DomainError):
            await aio.connect(f"{root}/nothing")

    asyncio.run(main())


def test_arguments_are_those_of_the_blocking_client() -> None:
    """M7: an editor completes them."""
    consumer = set(inspect.signature(Context.consumer).parameters) - {"self", "destination"}
    assert set(get_type_hints(aio.ConsumerArguments)) == consumer - {"listener", "exception_listener"}
    assert set(get_type_hints(aio.ConnectArguments)) == set(inspect.signature(spark_jms.connect).parameters) - {"root"}


# -- sends -------------------------------------------------------------------------------------------------------------
def test_sends_of_many_coroutines_share_commits(root: str) -> None:
    """M7, T11: each gets its own message back, in the order of the calls."""

    async def body(context: aio.AsyncContext) -> None:
        producer = await context.producer("orders")
        sent = await asyncio.gather(*(producer.send(text=str(n)) for n in range(500)))
        assert [message.text for message in sent] == numbers(0, 500)
        assert [message.sequence for message in sent] == list(range(1, 501))
        assert producer.statistics().commits < 50
        assert await texts(context) == numbers(0, 500)

    running(root, body)


def test_each_send_raises_its_own_error(root: str) -> None:
    """M7"""

    async def body(context: aio.AsyncContext) -> None:
        producer = await context.producer("small")
        outcomes = await asyncio.gather(
            producer.send(text="a"),
            producer.send(text="x" * 11),
            producer.send(txt="b"),  # type: ignore[call-overload]
            producer.send(text="c"),
            return_exceptions=True,
        )
        assert [type(outcome) for outcome in outcomes] == [Message, MessageSizeError, MessageFormatError, Message]
        assert await texts(context, "small") == ["a", "c"]
        assert room_of(context, "small").messages == 0

    running(root, body)


def test_send_waits_for_room_and_cancelled_there_sends_nothing(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """M7: backpressure; the next in the queue takes the place."""

    async def body(context: aio.AsyncContext) -> None:
        producer = await context.producer("orders")
        hold = Hold(context.blocking)
        sends = [asyncio.ensure_future(producer.send(text=str(n))) for n in range(6)]
        await until(lambda: room_of(context).waiting == 4)
        assert producer.statistics().outstanding == 2
        assert await cancelled(sends[2])
        assert await cancelled(sends[4])
        hold.open()
        assert [(await sends[n]).text for n in (0, 1, 3, 5)] == ["0", "1", "3", "5"]
        assert await texts(context) == ["0", "1", "3", "5"]
        assert (room_of(context).messages, room_of(context).waiting) == (0, 0)

    monkeypatch.setattr("spark_jms.aio.context.MAX_MESSAGES", 2)
    running(root, body)


def test_send_cancelled_in_wait_for_room_owes_flow_control_nothing(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """M7, T5: what was not sent is not paid for by later sends."""

    async def body(context: aio.AsyncContext) -> None:
        producer = await context.producer("orders")
        flow = flow_of(producer._producer)
        assert flow is not None
        flow.pace = replace(flow.pace, limit=1e9)
        flow.look = lambda: None  # type: ignore[method-assign]
        hold = Hold(context.blocking)
        first = asyncio.ensure_future(producer.send(text="a"))
        await until(lambda: room_of(context).messages == 1)
        owed = flow.statistics().debt
        waiting = asyncio.ensure_future(producer.send(text="b"))
        await until(lambda: room_of(context).waiting == 1)
        assert flow.statistics().debt == owed + 1
        assert await cancelled(waiting)
        assert flow.statistics().debt == owed
        hold.open()
        await first

    monkeypatch.setattr("spark_jms.aio.context.MAX_MESSAGES", 1)
    running(root, body)


def test_send_never_makes_the_loop_wait(root: str) -> None:
    """M7: also while the blocking client's sends take all the room of the core."""

    async def body(context: aio.AsyncContext) -> None:
        asynchronous_sends_of(context.blocking).max_messages = 1
        producer = await context.producer("orders")
        hold = Hold(context.blocking)
        sends = [asyncio.ensure_future(producer.send(text=str(n))) for n in range(5)]
        await until(lambda: producer.statistics().outstanding == 5)
        hold.open()
        await asyncio.gather(*sends)
        assert await texts(context) == numbers(0, 5)

    running(root, body)


def test_send_cancelled_after_the_hand_over_is_sent(root: str, caplog: pytest.LogCaptureFixture) -> None:
    """M7: and an error of it goes to the log."""

    async def body(context: aio.AsyncContext) -> None:
        for destination, text in (("orders", "a"), ("small", "x" * 11)):
            hold = Hold(context.blocking, "orders")
            producer = await context.producer(destination)
            blocker = asyncio.ensure_future((await context.producer("orders")).send(text="first"))
            sending = asyncio.ensure_future(producer.send(text=text))
            await until(lambda: producer.statistics().outstanding)  # noqa: B023
            assert await cancelled(sending)
            hold.open()
            await blocker
            await producer.close()
        assert (await texts(context))[:2] == ["first", "a"]
        assert room_of(context).messages == 0

    with caplog.at_level(logging.WARNING, "spark_jms"):
        running(root, body)
    assert [record.message for record in caplog.records] == [
        "a message whose coroutine was cancelled could not be sent"
    ]


@pytest.mark.parametrize("steps", range(0, 40, 3))
def test_send_cancelled_at_any_step_is_sent_once_or_not(root: str, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """M7: cancellation after each number of steps of the loop."""

    async def body(context: aio.AsyncContext) -> None:
        producer = await context.producer("orders")
        sends = [asyncio.ensure_future(producer.send(text=str(n))) for n in range(8)]
        for _ in range(steps):
            await asyncio.sleep(0)
        for send in sends[::2]:
            send.cancel()
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        await producer.close()
        there = await texts(context)
        assert len(set(there)) == len(there)
        assert there == sorted(there, key=str)
        assert {m.text for m in outcomes if isinstance(m, Message)} <= set(there)
        assert set(numbers(1, 8)[::2]) <= set(there)
        assert (room_of(context).messages, room_of(context).waiting) == (0, 0)

    monkeypatch.setattr("spark_jms.aio.context.MAX_MESSAGES", 2)
    running(root, body)


# -- receives ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["individual", "auto"])
def test_receive_cancelled_at_any_step_loses_no_message(root: str, mode: Any) -> None:
    """M7: each message arrives once, in order, not flagged."""
    count = 60

    async def body(context: aio.AsyncContext) -> None:
        await (await context.producer("orders")).send_many({"text": text} for text in numbers(0, count))
        got: list[aio.AsyncMessage] = []
        async with context.consumer("orders", acknowledge=mode, prefetch=7) as consumer:
            steps = 0
            while len(got) < count:
                receiving = asyncio.ensure_future(consumer.receive())
                for _ in range(steps % 12):
                    await asyncio.sleep(0)
                steps += 1
                receiving.cancel()
                await asyncio.wait([receiving])
                if not receiving.cancelled():
                    message = receiving.result()
                    assert message is not None
                    got.append(message)
                    await message.acknowledge()
            assert await consumer.receive(timeout=0) is None
        assert [message.text for message in got] == numbers(0, count)
        assert not any(message.redelivered for message in got)
        assert await texts(context) == []

    running(root, body)


def test_cancelled_receive_stops_waiting_and_the_next_gets_the_message(root: str) -> None:
    """M7: also with a time-out of the caller's."""

    async def body(context: aio.AsyncContext) -> None:
        async with context.consumer("orders") as consumer, context.producer("orders") as producer:
            for _ in range(3):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(consumer.receive(), 0.01)
            interrupted = consumer._interrupted
            assert interrupted is not None
            await asyncio.wait([interrupted])
            assert interrupted.result() is None
            await producer.send(text="a")
            message = await consumer.receive(timeout=LIMIT_S)
            assert message is not None
            assert not message.redelivered

    running(root, body)


def test_receives_of_several_coroutines_take_turns(root: str) -> None:
    """M7: while one waits, others acknowledge and send."""

    async def body(context: aio.AsyncContext) -> None:
        async with context.consumer("orders", acknowledge="individual") as consumer:
            waiting = [asyncio.ensure_future(consumer.receive()) for _ in range(3)]
            async with context.producer("orders") as producer:
                for n, one in enumerate(waiting):
                    await producer.send(text=str(n))
                    message = await one
                    assert message is not None
                    assert message.text == str(n)
                    await message.acknowledge()

    running(root, body)


def test_close_ends_receives_and_iterations(root: str) -> None:
    """M7"""

    async def body(context: aio.AsyncContext) -> None:
        consumer, other = await context.consumer("orders"), await context.consumer("orders")

        async def iterate() -> list[aio.AsyncMessage]:
            return [message async for message in other]

        receiving, iterating = asyncio.ensure_future(consumer.receive()), asyncio.ensure_future(iterate())
        await asyncio.sleep(0)
        await consumer.close()
        await other.close()
        assert await receiving is None
        assert await iterating == []
        assert consumer.closed
        assert [message async for message in other] == []
        with pytest.raises(ClosedError):
            await consumer.receive()

    running(root, body)


async def _cancel_soon(call: Awaitable[None]) -> None:
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    await cancelled(task)


def test_cancelled_acknowledge_takes_place(root: str) -> None:
    """M7"""

    async def body(context: aio.AsyncContext) -> None:
        async with context.producer("orders") as producer, context.consumer("orders") as consumer:
            await producer.send(text="a")
            message = await consumer.receive()
            assert message is not None
            await _cancel_soon(message.acknowledge())
            await until(lambda: consumer.statistics().acknowledged == 1)

    running(root, body)
    with spark_jms.connect(root, housekeeping=False) as context:
        assert list(context.browser("orders")) == []


def test_calls_of_cancelled_coroutines_keep_their_turn(root: str) -> None:
    """M7: no more than AT_ONCE calls run at a time, however many coroutines were cancelled."""

    async def body(_: aio.AsyncContext) -> None:
        calls, release, running = BlockingCalls(), threading.Event(), Counter[str]()

        def block() -> None:
            running["calls"] += 1
            assert release.wait(LIMIT_S)

        for _ in range(2):
            tasks = [asyncio.create_task(calls.run(block)) for _ in range(AT_ONCE)]
            await until(lambda: running["calls"] == AT_ONCE)
            for _ in range(10):
                await asyncio.sleep(0)
            for task in tasks:
                await cancelled(task)
        assert running["calls"] == AT_ONCE
        release.set()
        assert await calls.run(lambda: 5) == 5
        calls.close()

    running(root, body)


def test_cancelled_request_keeps_no_thread(root: str) -> None:
    """M7, C15: it waits for ever otherwise, since it has no time-out. Later requests get their replies."""

    async def body(context: aio.AsyncContext) -> None:
        for _ in range(3):
            request = asyncio.create_task(context.request("orders", text="no reply"))
            await until(lambda: requests_waiting(context.blocking) == 2)
            assert await cancelled(request)
            await until(lambda: requests_waiting(context.blocking) == 0)
        async with context.consumer("orders", acknowledge="individual") as consumer:
            request = asyncio.create_task(context.request("orders", text="question"))
            async for message in consumer:
                if message.text == "question":
                    await message.reply(text="answer")
                    break
            assert (await request).text == "answer"

    running(root, body)


@pytest.mark.parametrize("failure", ["missing", "cancelled"])
def test_failed_connection_leaves_no_thread(tmp_path: Path, root: str, failure: str) -> None:
    """M7: a program that connects again and again gathers none."""

    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "jmsq-asyncio-call"]

    async def main() -> None:
        for _ in range(5):
            if failure == "missing":
                with pytest.raises(DomainError):
                    await aio.connect(str(tmp_path / "nothing"))
            else:
                opening = asyncio.create_task(aio.connect(root, housekeeping=False).__aenter__())
                await asyncio.sleep(0)
                assert await cancelled(opening)
        await until(lambda: not threads())

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_cancelled_opening_leaves_nothing_open(root: str) -> None:
    """M7: what was opened for it is closed."""

    async def body(context: aio.AsyncContext) -> None:
        for steps in range(6):
            opening = asyncio.ensure_future(context.consumer("orders").__aenter__())
            for _ in range(steps):
                await asyncio.sleep(0)
            if not await cancelled(opening):
                await opening.result().close()
        await until(lambda: context.statistics().consumers == 0)

    running(root, body)
