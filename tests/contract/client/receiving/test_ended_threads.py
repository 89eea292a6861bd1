"""A consumer whose thread, listener or asyncio task has ended without closing it is named, once (C11)."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import spark_jms
from spark_jms import aio
from spark_jms.client import Consumer, Context, Message
from spark_jms.client.receiving import last_user
from spark_jms.errors import ConsumerClosedException
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import consumer_of, receiver_of
from tests.harness.messages.shorthands import send_texts

ENDED = "has ended: no other consumer gets them until"
LIMIT_S = 30.0


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain(orders="queue") as where, spark_jms.connect(where, housekeeping=False) as context:
        send_texts(context, *"abcd")
        yield where


@pytest.fixture
def context(root: str) -> Iterator[Context]:
    with spark_jms.connect(root, housekeeping=False) as opened:
        yield opened


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_user, "ENDED_AFTER_S", 0.0)


def received(consumer: Consumer) -> Message:
    message = consumer.receive(LIMIT_S)
    assert message is not None
    return message


def in_thread(name: str, work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()


def named(consumer: Consumer, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the context's background thread says of it, by now: it looks several times a second, here twice."""
    for _ in range(2):
        receiver_of(consumer).write_overdue()
    return [one.getMessage() for one in caplog.records if ENDED in one.getMessage() and one.levelno == logging.WARNING]


def raises() -> None:
    raise ValueError("the handler failed")


@pytest.mark.parametrize("end", [lambda: None, raises], ids=["returns", "raises"])
def test_consumer_of_an_ended_thread_is_named_once(
    context: Context, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, end: Callable[[], None]
) -> None:
    """C11: with what it has claimed, shown or not; by the context's own thread; and no more after another thread has used it."""
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    consumer = context.consumer("orders", prefetch=3)

    def work() -> None:
        received(consumer)
        end()

    in_thread("worker-1", work)
    wait_until(lambda: ENDED in caplog.text)
    (said,) = named(consumer, caplog)
    assert said.startswith(f"consumer {consumer.name} of orders has claims of 3 message(s), but thread worker-1")
    received(consumer).acknowledge()
    assert len(named(consumer, caplog)) == 1
    in_thread("worker-2", lambda: received(consumer))
    assert "thread worker-2" in named(consumer, caplog)[-1]
    assert len(named(consumer, caplog)) == 2


def test_consumer_in_use_is_not_named(context: Context, caplog: pytest.LogCaptureFixture) -> None:
    """C11: by a thread that lives and does something else, or by another one after its first has ended."""
    consumer = context.consumer("orders", prefetch=1)
    free, has = threading.Event(), threading.Event()

    def work() -> None:
        received(consumer)
        has.set()
        free.wait()

    thread = threading.Thread(target=work)
    thread.start()
    has.wait()
    assert named(consumer, caplog) == []
    consumer.recover()
    free.set()
    thread.join()
    received(consumer)
    assert named(consumer, caplog) == []


def test_consumer_without_claims_is_not_named(context: Context, caplog: pytest.LogCaptureFixture) -> None:
    """C11: its thread has acknowledged what it had, or it was given nothing."""
    consumer = context.consumer("orders", prefetch=1)
    in_thread("worker", lambda: received(consumer).acknowledge())
    assert named(consumer, caplog) == []
    empty = context.consumer("orders", selector="JMSPriority = 9")
    in_thread("worker", lambda: empty.receive(0))
    assert named(empty, caplog) == []


def test_thread_that_ended_a_moment_ago_is_not_named(
    context: Context, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C11: another thread may have its message and use the consumer next."""
    monkeypatch.setattr(last_user, "ENDED_AFTER_S", 3600.0)
    consumer = context.consumer("orders")
    in_thread("worker", lambda: received(consumer))
    assert named(consumer, caplog) == []


def test_listener_that_has_ended_is_named(context: Context, caplog: pytest.LogCaptureFixture) -> None:
    """C11: it has kept a message that it has not acknowledged, and ends with the next one."""
    shown: list[str | None] = []

    def listener(message: Message) -> None:
        shown.append(message.text)
        if len(shown) == 2:
            raise SystemExit(3)

    consumer = context.consumer("orders", listener=listener)
    wait_until(lambda: ENDED in caplog.text)
    (said,) = named(consumer, caplog)
    assert f"has claims of 1 message(s), but thread jmsq-listener {consumer.name}" in said
    with pytest.raises(ConsumerClosedException, match="SystemExit"):
        consumer.close()


# -- coroutines --------------------------------------------------------------------------------------------------------
async def task_fails(consumer: aio.AsyncConsumer) -> None:
    async def work() -> None:
        await consumer.receive(LIMIT_S)
        raises()

    (error,) = await asyncio.gather(asyncio.create_task(work(), name="worker-1"), return_exceptions=True)
    assert isinstance(error, ValueError)


async def task_is_cancelled(consumer: aio.AsyncConsumer) -> None:
    async def work() -> None:
        async for _ in consumer:
            await asyncio.Event().wait()

    task = asyncio.create_task(work(), name="worker-1")
    while not consumer.statistics().received:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


async def named_behind(uses: Any, root: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    async with aio.connect(root, housekeeping=False) as context:
        consumer = await context.consumer("orders")
        await uses(consumer)
        return named(consumer_of(consumer), caplog)


@pytest.mark.parametrize("ends", [task_fails, task_is_cancelled])
def test_consumer_of_an_ended_task_is_named(root: str, caplog: pytest.LogCaptureFixture, ends: Any) -> None:
    """C11, M7: although the thread that made its calls lives."""
    (said,) = asyncio.run(named_behind(ends, root, caplog))
    assert "has claims of 4 message(s), but task worker-1, which used it last" in said


async def task_lives(consumer: aio.AsyncConsumer) -> None:
    await consumer.receive(LIMIT_S)


async def another_acknowledges(consumer: aio.AsyncConsumer) -> None:
    found = []

    async def work() -> None:
        found.append(await consumer.receive(LIMIT_S))

    await asyncio.create_task(work())
    assert found[0] is not None
    await found[0].acknowledge()


async def waits_for_one(consumer: aio.AsyncConsumer) -> None:
    await asyncio.wait_for(consumer.receive(), LIMIT_S)


async def gathers(consumer: aio.AsyncConsumer) -> None:
    await asyncio.gather(consumer.receive(), consumer.receive())


@pytest.mark.parametrize("uses", [task_lives, another_acknowledges, waits_for_one, gathers])
def test_consumer_that_coroutines_use_is_not_named(root: str, caplog: pytest.LogCaptureFixture, uses: Any) -> None:
    """C11, M7: a task that is one receive alone ends with it, and its message is used elsewhere."""
    assert asyncio.run(named_behind(uses, root, caplog)) == []
