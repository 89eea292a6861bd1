"""The client's interface as a person meets it: arguments, representations, iteration, rejecting (C2, C8, C11)."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from importlib import resources
from typing import Any, get_type_hints

import pytest

import spark_jms
from spark_jms.client import Consumer, Context, Message, MessageArguments, Producer
from spark_jms.errors import (
    DomainError,
    IllegalStateException,
    InvalidDestinationError,
    MessageFormatError,
    OptionError,
)
from spark_jms.testing import memory_domain, wait_until
from tests.harness.messages.shorthands import send_texts, texts


@pytest.fixture
def context() -> Iterator[Context]:
    with memory_domain(orders="queue", prices="topic") as root, spark_jms.connect(root) as opened:
        yield opened


def received(consumer: Consumer) -> Message:
    message = consumer.receive(timeout=10)
    assert message is not None
    return message


# -- arguments ---------------------------------------------------------------------------------------------------------
def test_package_ships_its_types() -> None:
    """C11: tests/typed holds the types, and `make lint` reads it."""
    assert resources.files(spark_jms).joinpath("py.typed").is_file()


def test_send_declares_each_argument_of_a_message() -> None:
    """C11: an editor completes them."""
    parameters = inspect.signature(Producer.send).parameters
    named = {name for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}
    assert named == {"completion", "sequence", *get_type_hints(MessageArguments)}


@pytest.mark.parametrize("wrong", [None, 5, 1.5, b"s", [], {}, timezone.utc, "../x", "a\0b", "\ud800", ""])
def test_wrong_names_and_factories_raise_named_errors(wrong: Any) -> None:
    """C11, C14: never an AttributeError or a ValueError from within."""
    with memory_domain(prices="topic") as root, spark_jms.connect(root) as context:
        with pytest.raises(InvalidDestinationError):
            context.unsubscribe("prices", wrong)
        with pytest.raises(InvalidDestinationError):
            context.producer(wrong)
        if wrong is not None:
            with pytest.raises(OptionError):
                context.consumer("prices", subscription=wrong)
            with pytest.raises(OptionError):
                spark_jms.connect(root, client_id=wrong)
            with pytest.raises((OptionError, DomainError), match=r"connection.factory"):
                spark_jms.connect(root, connection_factory=wrong)


PUBLIC = {
    Context: "browser changes close closed consumer create_temporary_queue create_temporary_topic destinations last_resource metrics "
    "producer "
    "request reset_statistics statistics subscriptions transacted_session unsubscribe",
    Producer: "close closed last_sequence producer_id reset_statistics resume send send_many send_table send_unit_of_work statistics",
    Consumer: "close closed messages receive recover reset_statistics statistics",
}


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: kind.__name__)
def test_only_what_applications_call_is_public(kind: type) -> None:
    """C11"""
    assert {name for name in vars(kind) if not name.startswith("_")} == set(PUBLIC[kind].split())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("hello", "send takes the text of a message by name: send(text=…)"),
        ({"text": "hello"}, "send takes the arguments of a dict by name: send(**…); send_many takes dicts"),
        (5, "send was given an object of type int: give a Message, or arguments by name"),
    ],
)
def test_send_names_the_right_form(context: Context, given: Any, says: str) -> None:
    """C2, C11"""
    with pytest.raises(MessageFormatError) as caught:
        context.producer("orders").send(given)
    assert str(caught.value) == says


def test_send_many_names_the_wrong_item(context: Context) -> None:
    """C2, C11"""
    with pytest.raises(MessageFormatError, match="item 1 of send_many is a str, but must be a Message or a dict"):
        context.producer("orders").send_many([{"text": "a"}, "b"])  # type: ignore[list-item]
    with pytest.raises(MessageFormatError, match="has no 'txt': did you mean text"):
        context.producer("orders").send(txt="a")  # type: ignore[call-overload]


@pytest.mark.parametrize("wrong", ["5", "soon", -1, True, float("nan"), float("inf")])
def test_wrong_durations_are_refused_by_name(context: Context, wrong: Any) -> None:
    """C11"""
    consumer = context.consumer("orders")
    with pytest.raises(OptionError, match="^timeout: "):
        consumer.receive(timeout=wrong)
    with pytest.raises(OptionError, match="^idle_timeout: "):
        consumer.messages(idle_timeout=wrong)


@pytest.mark.parametrize("given", [0.05, "50 ms", timedelta(milliseconds=50), 0])
def test_durations_are_text_timedelta_or_seconds(context: Context, given: Any) -> None:
    """C11"""
    assert context.consumer("orders").receive(timeout=given) is None


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        ("earliest", "abc"),
        ({"sequence": 2}, "bc"),
        ({"sequence": {0: 3}}, "c"),
        ('{"sequence": 2}', "bc"),
        ({"time": 0}, "abc"),
        (datetime(2020, 1, 1, tzinfo=timezone.utc), "abc"),
        (datetime(2100, 1, 1, tzinfo=timezone.utc), ""),
    ],
)
def test_starting_positions_in_python(context: Context, position: Any, expected: str) -> None:
    """C6, C10: the forms that the error for a wrong one lists."""
    for value in "abc":
        send_texts(context, value, to="prices")
    consumer = context.consumer("prices", subscription="s", starting_position=position, acknowledge="auto")
    assert texts(consumer, len(expected)) == list(expected)
    assert consumer.receive(0) is None


@pytest.mark.parametrize("wrong", [object(), {"sequence": {0, 1}}])
def test_wrong_starting_position_is_refused(context: Context, wrong: Any) -> None:
    """C10"""
    with pytest.raises(OptionError, match='must be "latest", "earliest", a datetime'):
        context.consumer("prices", subscription="s", starting_position=wrong)


async def answer(message: Message) -> None:
    raise AssertionError(message)


@pytest.mark.parametrize("wrong", [5, "print", answer])
def test_listener_must_be_a_function(context: Context, wrong: Any) -> None:
    """C11"""
    with pytest.raises(OptionError, match="^listener is .* but must be a function of one argument that is not async"):
        context.consumer("orders", listener=wrong)
    with pytest.raises(OptionError, match="^exception_listener is "):
        context.consumer("orders", listener=print, exception_listener=wrong)


def test_raising_listener_logs_the_traceback(context: Context, caplog: pytest.LogCaptureFixture) -> None:
    """C11, C20: without an exception listener."""

    def listen(message: Message) -> None:
        if not message.redelivered:
            raise ValueError("no such order")

    with caplog.at_level(logging.WARNING, "spark_jms"), context.consumer("orders", listener=listen) as consumer:
        send_texts(context, "a")
        wait_until(lambda: consumer.statistics().received == 2)
    assert "will be delivered again" in caplog.text
    assert "Traceback" in caplog.text
    assert 'raise ValueError("no such order")' in caplog.text


# -- representations ---------------------------------------------------------------------------------------------------
def test_representations_say_what_a_person_wants_to_know(context: Context) -> None:
    """C11"""
    producer, consumer = context.producer("orders"), context.consumer("orders", acknowledge="auto")
    producer.send(text="hello", properties={"color": "red"}, group_id="k1")
    message = received(consumer)
    assert repr(context) == f"<Context {context.root}: 1 producer(s), 1 consumer(s)>"
    assert repr(producer) == "<Producer of orders: 1 messages in 1 commits>"
    assert repr(consumer) == f"<Consumer {consumer.name} of orders: auto, 1 received, 1 unacknowledged>"
    assert repr(context.browser("orders", selector="color = 'red'")) == "<Browser of orders, selector color = 'red'>"
    assert repr(message) == (
        "Message(text='hello', properties={'color': 'red'}, group_id='k1', "
        f"delivery_time_ms={message.delivery_time_ms}, message_id='{message.message_id}', "
        f"timestamp_ms={message.timestamp_ms}, destination='orders', delivery_count=1, member=0, sequence=1)"
    )
    consumer.close()
    assert "closed, auto" in repr(consumer)
    context.close()
    assert repr(context) == f"<Context {context.root}: closed>"


def test_representation_of_a_large_message_is_short() -> None:
    """C11"""
    assert repr(Message(body=b"x" * 2000)) == "Message(body=<2,000 bytes>)"
    assert repr(Message(text="x" * 2000)) == f"Message(text='{'x' * 59}…)"


def test_times_of_a_message_are_datetimes(context: Context) -> None:
    """C12, C17: in UTC; a Message that was not sent has none."""
    sent = context.producer("orders").send(text="x", time_to_live="1 h", delay=timedelta(minutes=1))
    assert sent.timestamp is not None
    assert sent.timestamp.tzinfo is timezone.utc
    assert sent.expiration == sent.timestamp + timedelta(hours=1)
    assert sent.delivery_time == sent.timestamp + timedelta(minutes=1)
    assert (Message().timestamp, Message().expiration, Message().delivery_time) == (None, None, None)


# -- receiving ---------------------------------------------------------------------------------------------------------
def test_messages_ends_after_an_idle_time(context: Context) -> None:
    """C11: also when the loop is left before."""
    send_texts(context, *"abc")
    with context.consumer("orders", acknowledge="auto") as consumer:
        assert next(consumer.messages(idle_timeout=10)).text == "a"
        assert [m.text for m in consumer.messages(idle_timeout="50 ms")] == ["b", "c"]
    assert list(context.browser("orders")) == []
    assert list(consumer.messages(idle_timeout=0)) == []


def test_browser_shows_finished_messages_on_request(context: Context) -> None:
    """C11, C14"""
    send_texts(context, *"ab")
    with context.consumer("orders", acknowledge="individual") as consumer:
        received(consumer).acknowledge()
    assert [m.text for m in context.browser("orders")] == ["b"]
    assert [m.text for m in context.browser("orders", include_finished=True)] == ["a", "b"]
    with pytest.raises(OptionError, match="include_finished"):
        context.browser("prices", subscription="s", include_finished=True)


# -- subscriptions -----------------------------------------------------------------------------------------------------
def test_unsubscribe_drops_the_subscription_and_its_backlog(context: Context) -> None:
    """C10: a new one of the same name starts where it is asked to."""
    consumer = context.consumer("prices", subscription="s", selector="n > 1")
    (found,) = context.subscriptions("prices")
    assert (found.name, found.selector) == ("s", "n > 1")
    context.producer("prices").send(text="a", properties={"n": 2})
    received(consumer)
    with pytest.raises(IllegalStateException, match="subscription s of prices is in use by .*nothing was dropped"):
        context.unsubscribe("prices", "s")
    consumer.close()
    context.unsubscribe("prices", "s")
    assert context.subscriptions("prices") == context.subscriptions("orders") == []
    assert context.consumer("prices", subscription="s").receive(0) is None
    with pytest.raises(InvalidDestinationError, match="no subscription 'other'"):
        context.unsubscribe("prices", "other")
    with pytest.raises(InvalidDestinationError, match="only a topic has subscriptions"):
        context.unsubscribe("orders", "s")


# -- rejecting ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["client", "individual", "auto", "dups-ok"])
def test_rejected_message_comes_again_before_later_ones(context: Context, mode: Any) -> None:
    """C8: flagged and counted, in each mode; the others stay as they are."""
    send_texts(context, *"abc")
    with context.consumer("orders", acknowledge=mode) as consumer:
        assert texts(consumer, 1) == ["a"]
        received(consumer).reject()
        again = received(consumer)
        assert (again.text, again.redelivered, again.delivery_count) == ("b", True, 2)
        again.acknowledge()
        last = received(consumer)
        assert (last.text, last.redelivered) == ("c", False)


def test_rejected_message_with_a_delay_waits_and_lets_others_pass(context: Context) -> None:
    """C8, C12: no consumer gets it before the delay is over, and then any."""
    send_texts(context, *"abc")
    with context.consumer("orders", acknowledge="individual") as consumer, context.consumer("orders") as other:
        received(consumer).reject(delay="300 ms")
        assert texts(consumer, 2) == ["b", "c"]
        assert other.receive(0) is None
        again = consumer.receive(0.01) or received(other)
        while not again:
            again = consumer.receive(0.01) or other.receive(0.01)
        assert (again.text, again.redelivered, again.delivery_count) == ("a", True, 2)


def test_unit_of_order_waits_for_its_rejected_message(context: Context) -> None:
    """C8, T10: no later message of the unit passes it, whoever asks, also not a prefetched one."""
    producer = context.producer("orders")
    producer.send_many({"text": f"{group}{n}", "group_id": group} for n in range(3) for group in "xy")
    with context.consumer("orders", acknowledge="individual") as consumer:
        first = received(consumer)
        assert first.text == "x0"
        first.reject(delay=0.5)
        assert texts(consumer, 3) == ["y0", "y1", "y2"]
        with context.consumer("orders") as other:
            assert other.receive(0) is None
        assert texts(consumer, 3) == ["x0", "x1", "x2"]


@pytest.mark.parametrize("how", ["recover", "close"])
def test_delay_outlives_recover_and_close(context: Context, how: str) -> None:
    """C8: the record set keeps the delay, so it binds every consumer."""
    send_texts(context, *"ab")
    consumer = context.consumer("orders")
    received(consumer).reject(delay="1 h")
    getattr(consumer, how)()
    again = context.consumer("orders") if how == "close" else consumer
    assert received(again).text == "b"
    assert again.receive(timeout=0) is None


def test_listener_may_reject(context: Context) -> None:
    """C8, C11: the message is not acknowledged when the listener returns; nor is it an error to raise afterwards."""
    seen: list[tuple[str | None, int]] = []

    def listen(message: Message) -> None:
        seen.append((message.text, message.delivery_count))
        if message.text == "a" and message.delivery_count < 3:
            message.reject(delay=0.01 * (message.delivery_count - 1))
            if message.delivery_count == 2:
                raise ValueError("after rejecting")

    with context.consumer("orders", acknowledge="auto", listener=listen, exception_listener=lambda error: None) as to:
        send_texts(context, "a")
        wait_until(lambda: to.statistics().acknowledged == 1)
    assert seen == [("a", 1), ("a", 2), ("a", 3)]


def test_only_a_delivered_message_can_be_rejected(context: Context) -> None:
    """C8"""
    send_texts(context, "a")
    with context.consumer("orders") as consumer:
        message = received(consumer)
        with pytest.raises(OptionError, match="^delay: "):
            message.reject(delay="5")
        message.acknowledge()
        with pytest.raises(IllegalStateException, match="was acknowledged, rejected or released before"):
            message.reject()
    with pytest.raises(IllegalStateException, match="nothing to reject"):
        Message(text="x").reject()
