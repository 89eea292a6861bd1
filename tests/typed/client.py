"""The client as a typed program uses it (C11)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

from typing_extensions import assert_type

import spark_jms
from spark_jms import aio
from spark_jms.client import Completion, CompletionListener, Consumer, Context, Message, MessageArguments, SendReport


def sends(context: Context, row: MessageArguments) -> None:
    producer = context.producer("orders")
    sent = producer.send(
        text="hello",
        properties={"color": "red", "amount": 12.5, "n": 1, "urgent": True},
        group_id="customer-7",
        priority=9,
        time_to_live=timedelta(minutes=10),
        delay="10 s",
    )
    assert_type(sent, Message)
    assert_type(sent.timestamp, datetime | None)
    producer.send(body=b"\x00", delivery_time=datetime.now(timezone.utc), delivery_mode="PERSISTENT")
    producer.send(map={"amount": 12.5, "raw": b"\x00", "none": None}, delay=0.5)
    producer.send(properties={"only": "properties"})
    producer.send(sent)
    assert_type(producer.send_many([{"text": "a"}, {"text": "b", "priority": 3}, row, sent]), SendReport)
    producer.send_many({"text": str(n)} for n in range(3))

    producer.send(text="a", body=b"b")  # type: ignore[call-overload]
    producer.send(text=1)  # type: ignore[call-overload]
    producer.send("a")  # type: ignore[call-overload]
    producer.send(txt="a")  # type: ignore[call-overload]
    producer.send(text="a", time_to_live_ms=10)  # type: ignore[call-overload]
    producer.send(text="a", delivery_mode="FAST")  # type: ignore[call-overload]
    producer.send_many([{"txt": "a"}])  # type: ignore[list-item]
    producer.send_many(["a"])  # type: ignore[list-item]


def asynchronous_sends(context: Context, message: Message) -> None:
    def failed(message: Message, error: Exception) -> None:
        print(message.text, error)

    producer = context.producer("orders", exception_listener=print)
    completion = Completion(print, failed)
    producer.send(text="a", priority=9, completion=completion)
    producer.send(message, completion=completion)
    listener: CompletionListener = completion
    producer.send(body=b"a", completion=listener)

    producer.send(text="a", completion=print)  # type: ignore[call-overload]
    producer.send(txt="a", completion=completion)  # type: ignore[call-overload]
    Completion(print)  # type: ignore[call-arg]


async def coroutines() -> None:
    async with aio.connect("messages", housekeeping=False) as context:
        assert_type(context, aio.AsyncContext)
        producer = await context.producer("orders", send_timeout="1 s")
        sent = await producer.send(text="hello", priority=9)
        assert_type(sent, Message)
        assert_type(await producer.send(sent), Message)
        assert_type(await producer.send_many([{"text": "a"}, sent]), SendReport)
        async with context.consumer("orders", acknowledge="individual", prefetch=5) as consumer:
            assert_type(await consumer.receive(timeout="5 s"), aio.AsyncMessage | None)
            async for message in consumer:
                assert_type(message, aio.AsyncMessage)
                await message.acknowledge()
                await message.reject(delay=30)
                assert_type(await message.reply(text="x"), Message)
        assert_type([m.sequence async for m in context.browser("orders", limit=3)], list[int])
        assert_type(await context.request("orders", text="x", timeout=3), Message)

        await producer.send(txt="a")  # type: ignore[call-overload]
        await producer.send(text=1)  # type: ignore[call-overload]
        context.consumer("orders", listener=print)  # type: ignore[call-arg]
        context.producer("orders").send(text="a")  # type: ignore[attr-defined]
    aio.connect("messages", housekeeping=1, port=5)  # type: ignore[call-arg, arg-type]


def requests(context: Context, message: Message) -> None:
    assert_type(context.request("orders", text="x", timeout="30 s"), Message)
    assert_type(message.reply(map={"sum": 42}, priority=9), Message)
    with context.create_temporary_queue() as queue:
        context.producer("orders").send(text="x", reply_to=queue.name)
    context.request("orders", txt="x")  # type: ignore[call-arg]
    message.reply(text=1)  # type: ignore[arg-type]


def receives() -> None:
    with spark_jms.connect("messages", housekeeping=False) as context:
        with context.consumer("orders", selector="color = 'red'", acknowledge="individual") as consumer:
            assert_type(consumer, Consumer)
            message = consumer.receive(timeout="5 s")
            assert_type(message, Message | None)
            consumer.receive(timeout=timedelta(seconds=1))
            consumer.receive(0.5)
            if message is not None:
                message.reject(delay=30)
                message.reject()
            assert_type(consumer.messages(idle_timeout=1.5), Iterator[Message])
            assert_type([m.text for m in consumer], list[str | None])
        context.consumer("prices", subscription="s", starting_position={"sequence": {0: 17}})
        context.consumer("prices", subscription="s", durable=False, sharing="exclusive")
        context.consumer("prices", sharing="all")  # type: ignore[arg-type]
        spark_jms.connect("messages", client_id="app", client_id_policy="free")  # type: ignore[arg-type]
        context.consumer("prices", subscription="s", starting_position=datetime.now(timezone.utc))
        context.consumer("orders", listener=lambda m: print(m.text), exception_listener=print)
        assert_type([m.sequence for m in context.browser("orders", include_finished=True)], list[int])

        context.consumer("orders", acknowledge="none")  # type: ignore[arg-type]
        context.consumer("orders", listener=5)  # type: ignore[arg-type]
        consumer.receive(timeout_s=5)  # type: ignore[call-arg]
