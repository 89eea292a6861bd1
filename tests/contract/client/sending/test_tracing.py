"""M5: spans of producers and consumers, and the trace context that messages carry."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes as names
from opentelemetry.trace import SpanContext, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import spark_jms
from spark_jms import aio
from spark_jms.admin.destinations import pause
from spark_jms.admin.transfer import MoveOrder, move
from spark_jms.client import Context, Message
from spark_jms.client.sending import tracing
from spark_jms.client.sending.asynchronous_send import CompletionListener
from spark_jms.errors import InsertionPausedError, MessageFormatError
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import domain_of, records_of

GIVEN = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
LIMIT_S = 10


class Recorded:
    """The spans that have ended."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def only(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """A tracer provider for this test alone: an application sets one for good."""
    found = Recorded()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", found.provider)
    return found


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain(orders="queue", invoices="queue") as made:
        yield made


@pytest.fixture
def context(root: str) -> Iterator[Context]:
    with spark_jms.connect(root, housekeeping=False) as opened:
        yield opened


def written(context: SpanContext) -> str:
    """As a message carries it."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def context_of(span: ReadableSpan) -> str:
    found = span.get_span_context()
    assert found is not None
    return written(found)


def linked(span: ReadableSpan) -> list[str]:
    return [written(link.context) for link in span.links]


def received(context: Context, **arguments: Any) -> Message:
    with context.consumer("orders", acknowledge="auto", **arguments) as consumer:
        message = consumer.receive(LIMIT_S)
        assert message is not None
        consumer.receive(0)
        return message


def test_message_carries_the_span_of_its_send(recorded: Recorded, context: Context) -> None:
    """M5: kinds, names and attributes are those of the conventions."""
    sent = context.producer("orders").send(text="x", correlation_id="c1", properties={"color": "red"})
    with context.consumer("orders") as consumer:
        message = consumer.receive(LIMIT_S)
        assert message is not None
        message.acknowledge()
    send, receive = recorded.only("send orders"), recorded.only("receive orders")
    acknowledge = recorded.only("acknowledge orders")
    assert message.properties == {"color": "red", "traceparent": context_of(send)} == sent.properties
    assert [one.kind for one in (send, receive, acknowledge)] == [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CLIENT]
    assert linked(send) == []
    assert linked(receive) == linked(acknowledge) == [context_of(send)]
    common = {
        names.MESSAGING_SYSTEM: "jmsq",
        names.MESSAGING_DESTINATION_NAME: "orders",
        names.MESSAGING_MESSAGE_ID: sent.message_id,
        names.MESSAGING_DESTINATION_PARTITION_ID: "0",
        names.MESSAGING_MESSAGE_CONVERSATION_ID: "c1",
    }
    for span, name, kind in (
        (send, "send", "send"),
        (receive, "receive", "receive"),
        (acknowledge, "acknowledge", "settle"),
    ):
        own = {names.MESSAGING_OPERATION_NAME: name, names.MESSAGING_OPERATION_TYPE: kind}
        assert span.attributes == {**common, **own}
    assert receive.start_time is not None
    assert receive.end_time is not None
    assert receive.start_time <= receive.end_time


def test_spans_are_children_of_the_applications(recorded: Recorded, context: Context) -> None:
    """M5"""
    with trace.get_tracer("application").start_as_current_span("work") as work:
        context.producer("orders").send(text="x")
        received(context)
    for span in (recorded.only("send orders"), recorded.only("receive orders"), recorded.only("acknowledge orders")):
        assert span.parent is not None
        assert span.parent.span_id == work.get_span_context().span_id


def test_given_context_is_kept(recorded: Recorded, context: Context) -> None:
    """M5: also when a received message is sent on. The send links to it."""
    context.producer("orders").send(text="x", properties={"traceparent": GIVEN, "tracestate": "a=b"})
    message = received(context)
    assert message.properties == {"traceparent": GIVEN, "tracestate": "a=b"}
    assert linked(recorded.only("send orders")) == [GIVEN]
    assert linked(recorded.only("receive orders")) == [GIVEN]
    context.producer("invoices").send(message)
    assert linked(recorded.only("send invoices")) == [GIVEN]


@pytest.mark.parametrize("value", ["nonsense", "", "00-0-0-00", 17, True])
def test_context_that_is_none_is_kept_and_links_to_nothing(recorded: Recorded, context: Context, value: object) -> None:
    """M5: it may come from any sender, so no receive fails for it."""
    context.producer("orders").send(text="x", properties={"traceparent": value})  # type: ignore[dict-item]
    assert received(context).properties["traceparent"] == value
    assert linked(recorded.only("receive orders")) == []


def test_tracestate_is_carried_and_baggage_is_not(recorded: Recorded, context: Context) -> None:
    """M5"""
    from opentelemetry import baggage

    parent = TraceContextTextMapPropagator().extract({"traceparent": GIVEN, "tracestate": "vendor=1"})
    with _attached(baggage.set_baggage("secret", "1", parent)):
        context.producer("orders").send(text="x")
    properties = received(context).properties
    assert set(properties) == {"traceparent", "tracestate"}
    assert properties["tracestate"] == "vendor=1"
    assert properties["traceparent"].split("-")[1] == GIVEN.split("-")[1]


class _attached:
    def __init__(self, context: Any) -> None:
        self._context = context

    def __enter__(self) -> None:
        from opentelemetry import context

        self._token = context.attach(self._context)

    def __exit__(self, *_: object) -> None:
        from opentelemetry import context

        context.detach(self._token)


def plain(context: Context) -> int:
    messages = [{"text": "a"}, Message(text="b"), {"text": "c", "properties": {"traceparent": GIVEN}}]
    return context.producer("orders").send_many(messages, chunk_messages=2).messages


def unit(context: Context) -> int:
    messages = [{"text": "a"}, Message(text="b"), {"text": "c", "properties": {"traceparent": GIVEN}}]
    return context.producer("orders").send_unit_of_work(messages).messages


def table_of_maps(context: Context) -> int:
    maps = pa.array([None, [("k", "v")], [("traceparent", GIVEN)]], pa.map_(pa.string(), pa.string()))
    return context.producer("orders").send_table(pa.table({"text": ["a", "b", "c"], "properties": maps})).messages


def table_of_structs(context: Context) -> int:
    structs = pa.array([{"k": 1, "traceparent": None}, {"k": 2}, {"k": 3, "traceparent": GIVEN}])
    return context.producer("orders").send_table(pa.table({"text": ["a", "b", "c"], "properties": structs})).messages


@pytest.mark.parametrize("send", [plain, unit, table_of_maps, table_of_structs])
def test_many_messages_have_one_span(recorded: Recorded, context: Context, send: Callable[[Context], int]) -> None:
    """M5: its context is that of each message without one."""
    assert send(context) == 3
    span = recorded.only("send orders")
    assert span.attributes is not None
    assert span.attributes[names.MESSAGING_BATCH_MESSAGE_COUNT] == 3
    found = {message.text: message.properties for message in context.browser("orders")}
    own = context_of(span)
    assert {text: properties["traceparent"] for text, properties in found.items()} == {"a": own, "b": own, "c": GIVEN}


def test_table_without_properties_gets_the_context(recorded: Recorded, context: Context) -> None:
    """M5"""
    context.producer("orders").send_table(pa.table({"text": ["a", "b"]}))
    own = context_of(recorded.only("send orders"))
    assert [message.properties for message in context.browser("orders")] == [{"traceparent": own}] * 2


def test_errors_of_wrong_messages_are_the_same(recorded: Recorded, context: Context) -> None:
    """M5: tracing touches only what can be a message."""
    producer = context.producer("orders")
    for wrong in (["text"], [{"text": "x", "properties": 3}], [17]):
        with pytest.raises(MessageFormatError):
            producer.send_many(wrong)  # type: ignore[arg-type]
    with pytest.raises(MessageFormatError):
        producer.send_table(pa.table({"text": ["a"], "properties": [3]}))
    assert {span.status.status_code for span in recorded.named("send orders")} == {StatusCode.ERROR}


def test_unit_of_work_links_to_each_of_its_messages(recorded: Recorded) -> None:
    """M5, T12"""
    policy = {"kind": "queue", "unit_of_work_handling_policy": "SingleMessageDelivery"}
    with memory_domain(orders=policy) as root, spark_jms.connect(root, housekeeping=False) as context:
        unit(context)
        received(context)
    receive, own = recorded.only("receive orders"), context_of(recorded.only("send orders"))
    assert linked(receive) == [own, own, GIVEN]
    assert receive.attributes is not None
    assert receive.attributes[names.MESSAGING_BATCH_MESSAGE_COUNT] == 3


def test_failed_send_ends_its_span_with_the_error(recorded: Recorded, context: Context) -> None:
    """M5"""
    pause(domain_of(context), "orders", ["insertion"])
    with pytest.raises(InsertionPausedError):
        context.producer("orders", send_timeout=0).send(text="x")
    span = recorded.only("send orders")
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "InsertionPausedError"
    assert [event.name for event in span.events] == ["exception"]


def test_span_of_an_asynchronous_send_ends_with_its_completion(recorded: Recorded, context: Context) -> None:
    """M5, T11: also with an error."""

    class Seen(CompletionListener):
        spans = 0

        def on_completion(self, message: Message, /) -> None:
            self.spans = len(recorded.named("send orders"))

        def on_exception(self, message: Message, error: Exception, /) -> None:
            self.spans = len(recorded.named("send orders"))

    producer, seen = context.producer("orders", send_timeout=0), Seen()
    producer.send(text="x", completion=seen)
    wait_until(lambda: seen.spans == 1, LIMIT_S)
    (message,) = context.browser("orders")
    assert message.properties["traceparent"] == context_of(recorded.only("send orders"))
    pause(domain_of(context), "orders", ["insertion"])
    producer.send(text="y", completion=seen)
    wait_until(lambda: seen.spans == 2, LIMIT_S)
    assert [span.status.status_code for span in recorded.named("send orders")] == [StatusCode.UNSET, StatusCode.ERROR]


def test_one_way_send_has_a_span(recorded: Recorded, root: str) -> None:
    """M5, T11"""
    factory = spark_jms.client.ConnectionFactory(one_way_send_mode="enabled", one_way_send_window_size=100)
    with spark_jms.connect(root, housekeeping=False, connection_factory=factory) as context:
        with context.producer("orders") as producer:
            producer.send(text="x", delivery_mode="NON_PERSISTENT")
        assert producer.statistics().one_way == 1
        (message,) = context.browser("orders")
    assert message.properties["traceparent"] == context_of(recorded.only("send orders"))


def test_listener_works_inside_a_span(recorded: Recorded, context: Context) -> None:
    """M5: which links to the sender; what the listener sends is a child. An error of the listener is the span's."""
    fails = [True]

    def listener(message: Message) -> None:
        if fails:
            raise ValueError(fails.pop())
        context.producer("invoices").send(text="y")

    context.producer("orders").send(text="x")
    with context.consumer("orders", listener=listener, acknowledge="auto"):
        wait_until(lambda: len(recorded.named("process orders")) == 2, LIMIT_S)
        wait_until(lambda: bool(recorded.named("acknowledge orders")), LIMIT_S)
    first, second = recorded.named("process orders")
    assert first.kind is second.kind is SpanKind.CONSUMER
    assert linked(first) == linked(second) == [context_of(recorded.only("send orders"))]
    assert first.status.status_code is StatusCode.ERROR
    child = recorded.only("send invoices")
    assert child.parent is not None
    assert second.context is not None
    assert child.parent.span_id == second.context.span_id
    assert not recorded.named("receive orders")


def test_message_of_a_transacted_session_carries_the_span_of_its_send(recorded: Recorded, context: Context) -> None:
    """M5, T16: the span ends before the commit, so it does not know the member."""
    with context.transacted_session() as session:
        sent = session.producer("orders").send(text="x")
        assert sent is not None
        session.commit()
    span = recorded.only("send orders")
    assert span.attributes is not None
    assert span.attributes[names.MESSAGING_MESSAGE_ID] == sent.message_id
    assert names.MESSAGING_DESTINATION_PARTITION_ID not in span.attributes
    assert received(context).properties == {"traceparent": context_of(span)}


def test_receive_without_a_message_has_no_span(recorded: Recorded, context: Context) -> None:
    """M5: an application that polls makes no spans by that."""
    with context.consumer("orders") as consumer:
        assert consumer.receive(0) is None
    assert not recorded.exporter.get_finished_spans()


def test_acknowledging_many_at_once_is_one_span(recorded: Recorded, context: Context) -> None:
    """M5: and acknowledging nothing is none."""
    context.producer("orders").send_many([{"text": "x"}] * 3)
    with context.consumer("orders") as consumer:
        messages = [consumer.receive(LIMIT_S) for _ in range(3)]
        assert messages[2] is not None
        messages[2].acknowledge()
        messages[2].acknowledge()
    span = recorded.only("acknowledge orders")
    assert span.attributes is not None
    assert span.attributes[names.MESSAGING_BATCH_MESSAGE_COUNT] == 3
    assert names.MESSAGING_MESSAGE_ID not in span.attributes


def test_temporary_destination_is_not_in_a_name(recorded: Recorded, context: Context) -> None:
    """M5, C15: spans are grouped by name, and its name is never used again."""
    queue = context.create_temporary_queue()
    context.producer(queue.name).send(text="x")
    span = recorded.only("send (temporary)")
    assert span.attributes is not None
    assert span.attributes[names.MESSAGING_DESTINATION_TEMPORARY] is True
    assert span.attributes[names.MESSAGING_DESTINATION_NAME] == queue.name


def test_coroutines_have_their_own_context(recorded: Recorded, root: str) -> None:
    """M5, M7: what runs in a thread for a coroutine is inside of the coroutine's span."""

    async def work() -> None:
        async with aio.connect(root, housekeeping=False) as context:
            with trace.get_tracer("application").start_as_current_span("work"):
                async with context.producer("orders") as producer:
                    await producer.send(text="x")
                async with context.consumer("orders") as consumer:
                    message = await consumer.receive(LIMIT_S)
                    assert message is not None
                    await message.acknowledge()

    asyncio.run(work())
    work_span = recorded.only("work").get_span_context()
    assert work_span is not None
    spans = [recorded.only(f"{name} orders") for name in ("send", "receive", "acknowledge")]
    assert [span.parent and span.parent.span_id for span in spans] == [work_span.span_id] * 3


def test_moved_message_keeps_its_context(recorded: Recorded, context: Context) -> None:
    """M5, C18: a transfer keeps all properties."""
    context.producer("orders").send(text="x")
    move(domain_of(context), records_of(context), MoveOrder("orders", "invoices"), wait_s=LIMIT_S)
    (message,) = context.browser("invoices")
    assert message.properties["traceparent"] == context_of(recorded.only("send orders"))


def test_without_a_tracer_provider_messages_stay_as_they_are(context: Context) -> None:
    """M5: opentelemetry is imported, as by another part of the application."""
    assert tracing.active_tracing() is None
    context.producer("orders").send(text="x")
    assert received(context).properties == {}


def test_variable_switches_tracing_off(recorded: Recorded, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """M5: JMSQ_TRACING, for an application whose provider is for other things."""
    monkeypatch.setenv("JMSQ_TRACING", "false")
    context.producer("orders").send(text="x")
    assert received(context).properties == {}
    assert not recorded.exporter.get_finished_spans()
