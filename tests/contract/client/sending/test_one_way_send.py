"""One-way sends of a producer: the window, upgrades, deleted messages, failures (T11)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from spark_jms import apply, connect
from spark_jms.admin.destinations import pause, resume
from spark_jms.admin.servers import start_server, stop_server
from spark_jms.client import ConnectionFactory, Context, Message, Producer
from spark_jms.client.sending.producer import flow_of
from spark_jms.core.destinations.pause import PRODUCTION
from spark_jms.core.destinations.servers import LeaseTerm
from spark_jms.errors import (
    ClosedError,
    MessageFormatError,
    ModuleFileError,
    OptionError,
    ProductionPausedError,
    QuotaExceededError,
    ServerDownError,
    ServerLostError,
)
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.servers import follow_term
from spark_jms.store.errors import ResourceAllocationException
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import asynchronous_sends_of, commits_held, domain_of
from tests.harness.domains.servers import applied, queue_on
from tests.harness.messages.completions import Hold, in_thread, numbers

LIMIT_S = 30
FOUR = {"kind": "distributed-queue", "members": 4}


def one_way(window: int = 300, mode: str = "enabled") -> ConnectionFactory:
    return ConnectionFactory(one_way_send_mode=mode, one_way_send_window_size=window)


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain(orders="queue", prices="topic", spread=FOUR, units={"kind": "queue"}) as where:
        yield where


@pytest.fixture
def opened(root: str) -> Iterator[Callable[..., Context]]:
    contexts: list[Context] = []

    def open_context(factory: ConnectionFactory | str | None = None) -> Context:
        contexts.append(connect(root, housekeeping=False, connection_factory=factory or one_way()))
        return contexts[-1]

    yield open_context
    for context in contexts:
        context.close()


def send(producer: Producer, text: str = "a", **more: Any) -> Message:
    return producer.send(text=text, delivery_mode="NON_PERSISTENT", **more)


def texts(context: Context, destination: str = "orders") -> list[str | None]:
    return [message.text for message in context.browser(destination)]


@contextmanager
def refuse(context: Context, error: Exception) -> Iterator[None]:
    """Every commit of `orders` fails with this error meanwhile."""

    def admit(servers: object) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(domain_of(context).log("orders"), "admit", admit)
        yield


def test_every_send_of_the_window_waits_for_those_before_it(opened: Callable[..., Context]) -> None:
    """T11: four return at once, without an id; the fifth returns when all five are in the table, in order."""
    context = opened(one_way(5))
    producer = context.producer("orders")
    for start in (0, 5):
        hold = Hold(context)
        for number in range(start, start + 4):
            message = send(producer, str(number))
            assert (message.text, message.message_id, message.member, message.sequence) == (str(number), "", -1, 0)
            assert message.timestamp_ms > 0
            assert message.destination == "orders"
        last: list[Message] = []
        waiting = in_thread(lambda: last.append(send(producer, str(start + 4))))  # noqa: B023
        hold.wait_until_held()
        assert last == []
        hold.open()
        waiting.join(LIMIT_S)
        assert last[0].sequence == start + 5
        assert texts(context) == numbers(0, start + 5)
    assert (producer.statistics().messages, producer.statistics().one_way, producer.statistics().deleted) == (10, 8, 0)


def test_one_way_is_off_by_default_and_with_a_window_of_one(opened: Callable[..., Context]) -> None:
    """T11"""
    for factory in (ConnectionFactory(), ConnectionFactory(one_way_send_mode="enabled"), one_way(300, "disabled")):
        with opened(factory).producer("orders") as producer:
            assert send(producer).message_id
            assert producer.statistics().one_way == 0
    with pytest.raises(OptionError, match="oneWaySendMode"):
        ConnectionFactory(one_way_send_mode="sometimes")
    with pytest.raises(OptionError, match="oneWaySendWindowSize"):
        ConnectionFactory(one_way_send_window_size=0)


def test_upgraded_sends_wait(opened: Callable[..., Context]) -> None:
    """T11: persistent ones, units of order and of work, a distributed destination, requests; and every call for many."""
    context = opened()
    producer = context.producer("orders")
    assert producer.send(text="persistent").message_id
    assert send(producer, group_id="customer-7").message_id
    assert send(producer, properties={"JMS_BEA_UnitOfWork": "u"}).message_id
    assert send(context.producer("spread")).message_id
    assert producer.send_many([{"text": "many", "delivery_mode": 1}]).sequences
    assert producer.statistics().one_way == 0
    assert not send(producer).message_id
    producer.close()
    assert producer.statistics().one_way == 1
    with context.consumer("units", listener=lambda m: m.reply(text="yes"), acknowledge="auto"):
        assert context.request("units", text="?", delivery_mode="NON_PERSISTENT", timeout=LIMIT_S).text == "yes"
    with refuse(context, OSError("the network is down")), pytest.raises(OSError, match="the network is down"):
        context.request("orders", text="?", delivery_mode="NON_PERSISTENT", timeout=LIMIT_S)


def test_topic_only_sends_to_queues_wait(opened: Callable[..., Context]) -> None:
    """T11"""
    context = opened(one_way(300, "topicOnly"))
    assert send(context.producer("orders")).message_id
    assert not send(context.producer("prices")).message_id


def test_factory_of_the_module_file(root: str, opened: Callable[..., Context]) -> None:
    """T11, T18: with the text's names."""
    module = {"destinations": {"prices": {"kind": "topic"}}}
    keys = {"oneWaySendMode": "topicOnly", "oneWaySendWindowSize": 300}
    apply(root, {**module, "connectionFactories": {"fast": keys}})
    assert not send(opened("fast").producer("prices")).message_id
    with pytest.raises(ModuleFileError, match="oneWaySendMode"):
        apply(root, {**module, "connectionFactories": {"fast": {"oneWaySendMode": "always"}}})


def test_refused_messages_are_deleted_and_counted(opened: Callable[..., Context]) -> None:
    """T11: over quota. The producer sends two-way, with the error, until one of its sends succeeds."""
    context = opened()
    producer = context.producer("orders")
    with refuse(context, ResourceAllocationException("over quota")):
        with commits_held(producer):  # the first is refused when all three are under way
            for number in range(3):
                assert not send(producer, f"lost {number}").message_id
        wait_until(lambda: producer.statistics().deleted == 3)
        for _ in range(2):
            with pytest.raises(ResourceAllocationException):
                send(producer, "refused")
    assert send(producer, "two-way").message_id
    assert not send(producer, "one-way").message_id
    producer.close()
    assert texts(context) == ["two-way", "one-way"]
    assert producer.statistics().deleted == 3


def test_quota_deletes_one_way_messages(opened: Callable[..., Context], root: str) -> None:
    """T11, T1: silently; the next two-way send gets the error, and succeeds once there is room."""
    apply(
        root,
        {
            "quotas": {"small": {"messagesMaximum": 2}},
            "destinations": {"orders": {"kind": "queue", "quota": "small"}},
        },
    )
    context = opened()
    producer = context.producer("orders", send_timeout=0)
    with commits_held(producer):
        for number in range(4):
            send(producer, str(number))
    wait_until(lambda: producer.statistics().deleted == 2)
    with pytest.raises(QuotaExceededError):
        send(producer, "refused")
    assert not producer.closed
    with context.consumer("orders", acknowledge="auto") as consumer:
        for number in range(2):
            message = consumer.receive(timeout=LIMIT_S)
            assert message is not None
            assert message.text == str(number)
        assert consumer.receive(timeout=0) is None
    assert send(context.producer("orders", send_timeout=LIMIT_S), "other").text == "other"
    producer.close()
    assert (producer.statistics().one_way, producer.statistics().deleted) == (2, 2)


def test_one_way_sends_are_not_slowed(opened: Callable[..., Context]) -> None:
    """T11, T5: flow control is off for connection factories with one-way sends."""
    assert flow_of(opened().producer("orders")) is None
    assert flow_of(opened(ConnectionFactory()).producer("orders")) is not None


def test_pause_makes_sends_two_way(opened: Callable[..., Context]) -> None:
    """T11, T14: a message that meets the pause is deleted; then the producer knows it."""
    context = opened()
    producer = context.producer("orders")
    pause(domain_of(context), "orders", [PRODUCTION])
    domain_of(context).log("orders").refresh()
    with pytest.raises(ProductionPausedError):
        send(producer)
    resume(domain_of(context), "orders", [PRODUCTION])
    send(producer, "after")
    producer.close()
    assert texts(context) == ["after"]


def test_failure_closes_the_producer_and_the_next_send_tells(
    opened: Callable[..., Context], caplog: pytest.LogCaptureFixture
) -> None:
    """T11: another producer of the context goes on."""
    context = opened()
    producer, other = context.producer("orders"), context.producer("orders")
    send(other, "before")
    other.send(text="wait")
    with caplog.at_level(logging.WARNING, "spark_jms"), refuse(context, OSError("the network is down")):
        send(producer, "lost")
        wait_until(lambda: producer.closed)
    with pytest.raises(ClosedError, match="1 one-way message.s. .* the network is down") as caught:
        send(producer)
    assert isinstance(caught.value.__cause__, OSError)
    producer.close()  # told
    assert len([record for record in caplog.records if "its producer is closed" in record.message]) == 1
    assert send(other, "after").text == "after"
    other.close()
    assert texts(context) == ["before", "wait", "after"]


def test_error_counts_what_was_lost_since_the_last_two_way_send(opened: Callable[..., Context]) -> None:
    """T11: not the messages that were deleted before it."""
    context = opened()
    producer = context.producer("orders")
    with refuse(context, ProductionPausedError("paused")):
        send(producer, "deleted")
        wait_until(lambda: producer.statistics().deleted == 1)
    assert send(producer, "two-way").message_id
    with refuse(context, OSError("the network is down")):
        send(producer, "lost")
        wait_until(lambda: producer.closed)
    with pytest.raises(ClosedError, match=r" 1 one-way message.s. "):
        send(producer)
    assert producer.statistics().deleted == 2


@pytest.mark.parametrize("way", ["send", "send_many"])
def test_two_way_send_does_not_pass_a_failure_that_it_waits_for(opened: Callable[..., Context], way: str) -> None:
    """T11: the producer is closed by then, so nothing behind the lost message is sent."""
    context = opened()
    producer = context.producer("orders")
    calls: dict[str, Callable[[], object]] = {
        "send": lambda: producer.send(text="behind"),
        "send_many": lambda: producer.send_many([{"text": "behind"}] * 101),
    }
    hold, errors = Hold(context), list[Exception]()
    first = in_thread(lambda: context.producer("orders").send(text="held"))
    hold.wait_until_held()

    def behind() -> None:
        try:
            calls[way]()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)

    with refuse(context, OSError("the network is down")):
        send(producer, "lost")
        waiting = in_thread(behind)
        wait_until(lambda: asynchronous_sends_of(context).waiting_calls)
        hold.open()
        waiting.join(LIMIT_S)
    first.join(LIMIT_S)
    assert [type(error) for error in errors] == [ClosedError]
    assert texts(context) == ["held"]


def test_failure_reaches_the_exception_listener(opened: Callable[..., Context]) -> None:
    """T11: once, and close does not raise it again."""
    context = opened()
    told: list[Exception] = []
    producer = context.producer("orders", exception_listener=told.append)
    with refuse(context, OSError("the network is down")):
        send(producer)
        wait_until(lambda: told)
    producer.close()
    assert [str(error) for error in told] == ["the network is down"]
    with pytest.raises(ClosedError):
        send(producer)
    with pytest.raises(OptionError, match="exception_listener"):
        context.producer("orders", exception_listener=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("why", ["stopped", "lapsed"])
def test_lost_server_closes_the_producer_and_a_stopped_one_does_not(tmp_path: Path, why: str) -> None:
    """T11: a hardware failure reaches the exception listener, and the producer is closed; when an administrator stops the server,
    messages are deleted, as by the text's undeployment."""
    root = applied(tmp_path, queue_on("a", "b"))
    told: list[Exception] = []
    with connect(root, housekeeping=False, connection_factory=one_way(), server="a") as context:
        producer = context.producer("a@orders", exception_listener=told.append)
        send(producer, "before")
        assert producer.send(text="two-way").sequence == 2
        with commits_held(producer):
            assert not send(producer, "lost").message_id
            other = Domain(root)
            if why == "stopped":
                stop_server(other, "a")
            else:
                assert follow_term(other.log("orders"), "a", LeaseTerm(1, 5))
        wait_until(lambda: producer.statistics().deleted == 1)
        if why == "stopped":
            with pytest.raises(ServerDownError, match="stopped server a"):
                send(producer)
            assert not producer.closed
            assert told == []
            start_server(Domain(root), "a")
        else:
            wait_until(lambda: bool(told))
            assert [type(error) for error in told] == [ServerLostError]
            assert producer.closed
            with pytest.raises(ClosedError, match="1 one-way message.s. .* Server a is away") as caught:
                send(producer)
            assert isinstance(caught.value.__cause__, ServerLostError)
        producer.close()
        assert texts(context) == ["before", "two-way"]


def test_close_tells_a_failure_that_nothing_else_told(opened: Callable[..., Context]) -> None:
    """T11"""
    context = opened()
    producer = context.producer("orders")
    with refuse(context, OSError("the network is down")):
        send(producer)
        with pytest.raises(ClosedError, match="the network is down"):
            producer.close()
    producer.close()


def test_bad_properties_are_refused_at_once(opened: Callable[..., Context]) -> None:
    """T11: an error of the arguments is no failure of the send."""
    context = opened()
    with context.producer("orders") as producer:
        with pytest.raises(MessageFormatError):
            send(producer, properties={"a-b": 1})
        assert not producer.closed


def test_producers_without_one_way_sends_have_no_thread(opened: Callable[..., Context]) -> None:
    """T11: off costs nothing."""
    context = opened(ConnectionFactory())
    before = threading.active_count()
    send(context.producer("orders"))
    assert threading.active_count() == before
