"""The pipeline of consumers, and the performance preference of destinations (T9, T13)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_jms
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.client import ConnectionFactory, Consumer, Context
from spark_jms.client.receiving.pipeline import BatchReader
from spark_jms.core.records import batch as core_batch
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.errors import ModuleFileError, OptionError
from spark_jms.spark.options import parse_options
from spark_jms.spark.source import JmsqStreamReader
from spark_jms.store import Handle
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import (
    acknowledgement_writer_of,
    domain_of,
    members_of,
    records_of,
    subscriber_of,
)

WORK = {"kind": "queue", "unit_of_work_handling_policy": "SingleMessageDelivery"}
LONG_MS = 3_600_000


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain(
        orders="queue",
        prices="topic",
        spread={"kind": "distributed-queue", "members": 2},
        work=WORK,
        single={"kind": "queue", "messaging_performance_preference": 0},
        patient={"kind": "queue", "messaging_performance_preference": 100},
    ) as where:
        yield where


@pytest.fixture
def open_context(root: str) -> Iterator[Any]:
    opened: list[Context] = []

    def connect(**factory: Any) -> Context:
        made = spark_jms.connect(root, housekeeping=False, connection_factory=ConnectionFactory(**factory))
        opened.append(made)
        return made

    yield connect
    for context in opened:
        context.close()


def send(context: Context, destination: str, *sizes: int) -> None:
    context.producer(destination).send_many({"body": bytes(size)} for size in sizes)


def claims(consumer: Consumer) -> Iterator[list[int]]:
    """The sizes of the messages that the consumer has at a time, until there are no more."""
    while (first := consumer.receive(0)) is not None:
        more = [consumer.receive(0) for _ in range(consumer.statistics().prefetched)]
        yield [len(m.body or b"") for m in (first, *more) if m is not None]


# -- T9 ----------------------------------------------------------------------------------------------------------------
def test_consumer_claims_as_many_messages_as_its_connection_factory_says(open_context: Any) -> None:
    """T9: 10 where it says nothing; `prefetch` comes first."""
    plain, few = open_context(), open_context(messages_maximum=3)
    send(plain, "orders", *[1] * 24)
    for context, arguments, claimed in ((plain, {}, 10), (few, {}, 3), (few, {"prefetch": 5}, 5)):
        with context.consumer("orders", **arguments) as consumer:
            assert len(next(claims(consumer))) == consumer.prefetch == claimed
            assert consumer.statistics().messages_maximum == claimed


def test_consumer_without_a_limit_claims_what_has_room(open_context: Any) -> None:
    """T9: messagesMaximum -1, and maxMessageSize."""
    context = open_context(messages_maximum=-1, max_message_bytes=100_000)
    send(context, "orders", *[30_000] * 7)
    with context.consumer("orders") as consumer:
        assert list(claims(consumer)) == [[30_000] * 3, [30_000] * 3, [30_000]]
        assert consumer.prefetch == -1


def test_claimed_messages_never_exceed_the_maximum_message_size(open_context: Any) -> None:
    """T9: a larger message arrives alone, and what is returned was not delivered: in order, and not flagged."""
    context = open_context(max_message_bytes=1000)
    sizes = [400, 500, 100, 1, 5000, 200, 900, 100, 999, 2]
    send(context, "orders", *sizes)
    with context.consumer("orders", acknowledge="auto") as consumer:
        found = list(claims(consumer))
        assert consumer.statistics().redelivered == consumer.statistics().returned == 0
    assert found == [[400, 500, 100], [1], [5000], [200], [900, 100], [999], [2]]


def test_returned_messages_go_to_other_consumers(open_context: Any) -> None:
    """T9"""
    context = open_context(max_message_bytes=1000)
    send(context, "orders", 900, 800, 700)
    with context.consumer("orders") as one, context.consumer("orders") as two:
        first, second = one.receive(10), two.receive(10)
        assert first is not None
        assert second is not None
        assert [(len(m.body or b""), m.redelivered) for m in (first, second)] == [(900, False), (800, False)]


def test_returned_messages_are_not_overtaken_by_later_ones_of_their_unit(
    open_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T9, T10: also while an administrator has the record open, so that they cannot be returned at once."""
    context = open_context(messages_maximum=-1, max_message_bytes=20_500)
    context._background.close()
    producer = context.producer("orders")
    producer.send_many({"body": bytes(1000), "group_id": "u", "correlation_id": str(n)} for n in range(40))
    administrator, opened = records_of(context).connect("jmsq move"), list[Handle]()
    with context.consumer("orders") as one:
        read, writer, losses = BatchReader.read, acknowledgement_writer_of(one), iter([True])
        write, record = writer.write, members_of(subscriber_of(one)).record(0)

        def read_and_lose_the_record(*arguments: Any) -> Any:
            found = read(*arguments)
            if next(losses, False):
                opened.append(administrator.open(record))
            return found

        def get_it_back_too_late(*arguments: Any) -> None:
            write(*arguments)
            while opened:
                opened.pop().close()

        monkeypatch.setattr(BatchReader, "read", read_and_lose_the_record)
        received = [one.receive(0) for _ in range(20)]
        producer.send(body=bytes(1000), group_id="u", correlation_id="40")
        monkeypatch.setattr(writer, "write", get_it_back_too_late)
        while len(received) < 41 and (message := one.receive(10)) is not None:
            received.append(message)
        assert [m.correlation_id for m in received if m is not None] == [str(n) for n in range(41)]


def test_members_take_turns_when_one_of_them_fills_the_pipeline(open_context: Any) -> None:
    """T9: the messages of the second member do not wait until the first is empty."""
    context = open_context(max_message_bytes=1000)
    producer = context.producer("spread")
    for _ in range(20):
        producer.send(body=bytes(1000))
    members = []
    with context.consumer("spread", acknowledge="auto") as consumer:
        while (message := consumer.receive(0)) is not None:
            members.append(message.member)
    assert sorted(members) == [0] * 10 + [1] * 10
    assert len(set(members[:4])) == 2


def test_unit_of_work_is_not_parted(open_context: Any) -> None:
    """T9, T12: a unit of work counts as one message."""
    context = open_context(max_message_bytes=1000)
    producer = context.producer("work")
    for _ in range(2):
        producer.send_unit_of_work([{"body": bytes(600)} for _ in range(3)])
    with context.consumer("work") as consumer:
        for left in (0, 0):
            unit = consumer.receive(10)
            assert unit is not None
            assert len(unit.unit_of_work) == 3
            assert consumer.statistics().prefetched == left


def test_synchronous_consumers_may_take_single_messages(open_context: Any) -> None:
    """T9: listeners prefetch as before."""
    context = open_context(synchronous_prefetch_mode="topicSubscriberOnly")
    with context.consumer("orders") as queue, context.consumer("prices", subscription="s") as topic:
        assert (queue.prefetch, topic.prefetch) == (1, 10)
    with context.consumer("orders", listener=lambda message: None) as listening:
        assert listening.prefetch == 10


def test_statistics_advise_a_maximum(open_context: Any) -> None:
    """T9: 2 * interval + 1, of what the application acknowledges at a time."""
    context = open_context(messages_maximum=100)
    send(context, "orders", *[1] * 60)
    with context.consumer("orders") as consumer:
        assert consumer.statistics().advised_maximum is None
        received = [consumer.receive(10) for _ in range(50)]
        assert received[-1] is not None
        received[-1].acknowledge()
        received[-1].acknowledge()  # nothing new
        assert consumer.statistics().advised_maximum == 101


@pytest.mark.parametrize("prefetch", [0, -2, 10_001, True, "10"])
def test_wrong_prefetch_is_refused(open_context: Any, prefetch: Any) -> None:
    """C11, T9"""
    with pytest.raises(OptionError, match="prefetch is .* must be -1 for no limit, or a whole number of 1 to 10,000"):
        open_context().consumer("orders", prefetch=prefetch)


def test_keys_of_the_pipeline_are_in_the_module_file(tmp_path: Path) -> None:
    """T9, T18"""
    orders = {"destinations": {"orders": {"kind": "queue", "messagingPerformancePreference": 75}}}
    factory = {"messagesMaximum": 101, "maxMessageSize": "1 MB", "synchronousPrefetchMode": "disabled"}
    spark_jms.apply(str(tmp_path), {**orders, "connectionFactories": {"slow": factory}})
    with spark_jms.connect(str(tmp_path), connection_factory="slow") as context:
        with context.consumer("orders") as receiving:
            assert receiving.prefetch == 1
        with context.consumer("orders", listener=lambda message: None) as listening:
            assert listening.prefetch == 101
    for wrong in (30, "25 ", 25.5, True):
        with pytest.raises(ModuleFileError, match="must be one of 0, 25, 50, 75, 100"):
            spark_jms.apply(
                str(tmp_path), {"destinations": {"q": {"kind": "queue", "messagingPerformancePreference": wrong}}}
            )


# -- T13 ---------------------------------------------------------------------------------------------------------------
def test_preference_0_delivers_single_messages(open_context: Any) -> None:
    """T13: whatever the prefetch."""
    context = open_context()
    send(context, "single", 1, 2, 3)
    with context.consumer("single", prefetch=10) as consumer:
        assert list(claims(consumer)) == [[1], [2], [3]]


def test_batch_that_is_not_full_waits(open_context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """T13: until it is full; then it is made at once."""
    monkeypatch.setitem(core_batch.WAITS_MS, 100, LONG_MS)
    context = open_context()
    subscriber = Subscriber(domain_of(context), records_of(context), "patient", "-", "q", ConsumerSettings())
    limits = core_batch.client_limits(100, 3, 10_000)
    send(context, "patient", 1, 1)
    assert subscriber.next_batch(Batch("q"), limits) is None
    assert subscriber.lingers
    assert not subscriber.is_due()
    send(context, "patient", 1, 1)
    batch = subscriber.next_batch(Batch("q"), limits)
    assert batch is not None
    assert batch.count == 3
    assert not subscriber.lingers
    subscriber.close()


def test_waiting_batch_goes_when_its_time_is_over(open_context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """T13: the receiver wakes for it."""
    monkeypatch.setitem(core_batch.WAITS_MS, 100, 1)
    context = open_context()
    send(context, "patient", 1)
    with context.consumer("patient") as consumer:
        assert consumer.receive(30) is not None


def test_wait_continues_while_an_administrator_has_the_record(
    open_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T13, C9: it does not begin again when the record is closed."""
    monkeypatch.setitem(core_batch.WAITS_MS, 100, LONG_MS)
    now_s = [0.0]
    context, settings = open_context(), ConsumerSettings(replayable=False)
    one = Subscriber(
        domain_of(context), records_of(context), "patient", "-", "one", settings, monotonic_s=lambda: now_s[0]
    )
    limits = core_batch.client_limits(100, 3, 10_000)
    send(context, "patient", 1)
    assert one.next_batch(Batch("one"), limits) is None
    now_s[0] = LONG_MS / 3000
    with records_of(context).connect("jmsq move") as administrator, administrator.open(members_of(one).record(0)):
        assert one.next_batch(Batch("one"), limits) is None
    now_s[0] = LONG_MS / 1000
    batch = one.next_batch(Batch("one"), limits)
    assert batch is not None
    assert batch.count == 1
    one.close()


def test_receive_does_not_wait_longer_than_its_time_out(open_context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """T13, C11: a message that waits for others is received when the caller's time is up."""
    monkeypatch.setitem(core_batch.WAITS_MS, 100, LONG_MS)
    context = open_context()
    send(context, "patient", 1, 1)
    with context.consumer("patient") as consumer:
        assert consumer.receive(0) is not None
        assert consumer.statistics().prefetched == 1
        assert consumer.receive(0) is not None
        assert consumer.receive(0) is None


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        ({}, Limits(min_messages=core_batch.FULL_BATCH, linger_ms=500)),
        ({"maxMessagesPerTrigger": "5"}, Limits(5, min_messages=5, linger_ms=500)),
        ({"minMessagesPerTrigger": "1"}, Limits()),
        ({"minMessagesPerTrigger": "7", "maxTriggerDelay": "1 s"}, Limits(min_messages=7, max_delay_ms=1000)),
    ],
)
def test_query_follows_the_preference_unless_its_options_say_otherwise(
    open_context: Any, options: dict[str, str], limits: Limits
) -> None:
    """T13: latestOffset admits a batch by these limits."""
    context = open_context()
    subscriber = Subscriber(domain_of(context), records_of(context), "patient", "-", "q", ConsumerSettings())
    source = JmsqStreamReader(parse_options({"root": context.root, "destination": "patient", **options}))
    assert source.limits_for(subscriber) == limits
    subscriber.close()
