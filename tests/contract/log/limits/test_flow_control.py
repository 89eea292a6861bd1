"""Flow control, as administrators, senders and queries meet it (T5)."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import attrs
import pytest

from spark_jms import aio, apply, connect
from spark_jms.admin.destinations import drop_destination
from spark_jms.client import Context, Message
from spark_jms.client.sending.producer import flow_of
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.limits.flow_control import FlowThreshold, FlowThresholds
from spark_jms.core.limits.quota import MemberUsage, MessageUsage, PublishedUsage
from spark_jms.errors import ClosedError, ModuleFileError, OptionError
from spark_jms.log.destinations import domain as log_domain
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import Domain, watched_of
from spark_jms.log.limits import usage
from spark_jms.log.limits.usage import FLOW
from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.spark.sink import SinkFlow
from spark_jms.testing import memory_domain
from spark_jms.testing.domain import wait_until
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.domains.servers import queue_on

FAST = ConnectionFactory(flow_maximum=2000, flow_minimum=1000, flow_interval_ms=0)  # armed: at once to the minimum
SLOW = ConnectionFactory(flow_maximum=1, flow_minimum=1)
GENTLE = ConnectionFactory(flow_maximum=100, flow_minimum=10, flow_interval_ms=20_000, flow_steps=2)
TEN: dict[str, Any] = {"kind": "queue", "messages_threshold_high": 10, "messages_threshold_low": 5}
QUEUES: dict[str, Any] = {
    "orders": TEN,
    "large": {"kind": "queue", "bytes_threshold_high": 50_000, "bytes_threshold_low": 20_000},
    "prices": {**TEN, "kind": "topic"},
    "free": "queue",
}


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(usage, "LOOK_EVERY_S", 0.0)
    with memory_domain(**QUEUES) as made:
        yield made


@pytest.fixture
def context(root: str) -> Iterator[Context]:
    with connect(root, housekeeping=False, connection_factory=FAST) as made:
        yield made


class Completions:
    def on_completion(self, message: Message) -> None:
        pass

    def on_exception(self, message: Message, error: Exception) -> None:
        raise error


def send(context: Context, destination: str, count: int, text: str = "x") -> None:
    context.producer(destination).send_many({"text": text} for _ in range(count))


def consume(context: Context, destination: str, count: int) -> None:
    """So many messages, acknowledged; returns once the usage without them is published."""
    before = domain_of(context).usage_of(destination).messages
    with context.consumer(destination, acknowledge="individual") as consumer:
        for _ in range(count):
            message = consumer.receive(10)
            assert message is not None
            message.acknowledge()
        wait_until(lambda: domain_of(context).usage_of(destination).messages <= before - count)


def test_senders_slow_down_above_and_are_free_below(context: Context, caplog: pytest.LogCaptureFixture) -> None:
    """T5: by what the consumers have not finished."""
    producer = context.producer("orders")
    send(context, "orders", 10)
    producer.send(text="the eleventh")
    assert not producer.statistics().flow.armed
    producer.send(text="the twelfth")
    assert producer.statistics().flow.armed
    assert producer.statistics().flow.limit == 1000
    consume(context, "orders", 5)
    producer.send(text="still above the low threshold")
    assert producer.statistics().flow.armed
    consume(context, "orders", 4)
    producer.send(text="free")
    assert not producer.statistics().flow.armed
    assert producer.statistics().flow.limit is None
    assert "orders exceeds its messagesThresholdHigh: senders slow down (11 messages" in caplog.text


def test_bytes_arm_too(context: Context) -> None:
    """T5: those of the data files."""
    producer = context.producer("large")
    producer.send(body=os.urandom(100_000))
    producer.send(text="x")
    assert producer.statistics().flow.armed


def test_topic_counts_a_message_once(context: Context) -> None:
    """T5: until all its subscriptions have finished it."""
    for name in ("a", "b"):
        context.consumer("prices", subscription=name).close()
    producer = context.producer("prices")
    send(context, "prices", 9)
    producer.send(text="the tenth")
    producer.send(text="x")
    assert not producer.statistics().flow.armed


def test_batches_are_paced_by_their_messages(root: str) -> None:
    """T5: send_many and send_table owe what they have sent."""
    with connect(root, housekeeping=False, connection_factory=SLOW) as context:
        send(context, "orders", 11)
        producer = context.producer("orders")
        producer.send_many({"text": str(n)} for n in range(7))
        assert producer.statistics().flow.debt == pytest.approx(7, abs=1)
        owing = context.producer("orders")
        owing._keep_pace(0)
        owing.close()
        with pytest.raises(ClosedError, match="closed"):
            owing.send(text="x")


def test_coroutines_keep_the_pace_without_blocking_their_loop(root: str) -> None:
    """T5, M7: others run while a send waits; a send that is cancelled meanwhile has sent nothing."""

    async def course() -> tuple[int, float]:
        async with await aio.connect(root, connection_factory=SLOW) as context, context.producer("orders") as producer:
            await producer.send_many({"text": "x"} for _ in range(12))
            await producer.send(text="armed now")
            await producer.send_many({"text": "x"} for _ in range(300))
            waiting = asyncio.create_task(producer.send(text="never"))
            while producer.statistics().flow.debt < 300:
                await asyncio.sleep(0.001)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            return producer.statistics().messages, producer.statistics().flow.debt

    messages, debt = asyncio.run(course())
    assert messages == 313
    assert debt > 100


def test_cancelled_coroutine_owes_nothing(root: str) -> None:
    """T5, M7: the message that it did not send is not paid for by later ones."""

    async def course() -> float:
        async with await aio.connect(root, connection_factory=SLOW) as context, context.producer("orders") as producer:
            await producer.send_many({"text": "x"} for _ in range(12))
            await producer.send(text="armed now")
            await producer.send_many({"text": "x"} for _ in range(300))
            before = producer.statistics().flow.debt
            waiting = [asyncio.create_task(producer.send(text="never")) for _ in range(100)]
            while producer.statistics().flow.debt < before + 90:
                await asyncio.sleep(0.001)
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
            while producer.statistics().flow.debt > before:
                await asyncio.sleep(0.001)
            return producer.statistics().flow.debt - before

    assert asyncio.run(asyncio.wait_for(course(), 30)) <= 0


def test_interrupted_wait_owes_nothing(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T5: Ctrl-C while flow control keeps a send back: nothing was sent."""
    with connect(root, housekeeping=False, connection_factory=SLOW) as context:
        send(context, "orders", 12)
        producer = context.producer("orders")
        producer.send(text="armed now")
        producer.send_many({"text": "x"} for _ in range(300))
        flow = flow_of(producer)
        assert flow is not None
        before = producer.statistics().flow.debt

        def interrupt(_: float) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(flow, "_sleep", interrupt)
        for _ in range(3):
            with pytest.raises(KeyboardInterrupt):
                producer.send_many({"text": "x"} for _ in range(100))
        assert before - 100 < producer.statistics().flow.debt <= before


def test_asynchronous_sends_keep_the_pace(root: str) -> None:
    """T5, T11: the caller waits; one-way sends turn flow control off."""
    one_way = attrs.evolve(SLOW, one_way_send_mode="enabled")
    with connect(root, housekeeping=False, connection_factory=SLOW) as context:
        send(context, "orders", 12)
        producer = context.producer("orders")
        producer.send(text="x", completion=Completions())
        assert producer.statistics().flow.armed
        assert producer.statistics().flow.debt > 0
    with connect(root, housekeeping=False, connection_factory=one_way) as context:
        assert flow_of(context.producer("orders")) is None


def test_connection_factory_turns_flow_control_off(root: str) -> None:
    """T5."""
    with connect(root, housekeeping=False, connection_factory=ConnectionFactory(flow_control_enabled=False)) as context:
        send(context, "orders", 30)
        producer = context.producer("orders")
        producer.send(text="x")
        assert flow_of(producer) is None
        assert not producer.statistics().flow.armed


def test_thresholds_change_while_senders_run(context: Context) -> None:
    """T5: a sender knows them with the next version of the table that it reads."""
    producer = context.producer("free")
    send(context, "free", 20)
    apply_destinations(domain_of(context), [Destination("free", **TEN)], lambda d, m: False)
    producer.send(text="x")
    producer.send(text="y")
    assert producer.statistics().flow.armed
    apply_destinations(domain_of(context), [Destination("free", "queue")], lambda d, m: False)
    producer.send(text="z")
    producer.send(text="z")
    assert producer.statistics().flow.limit is None


def test_factories_and_thresholds_that_do_not_fit_are_named(tmp_path: Path) -> None:
    """T5, C3."""

    def refusal(**changed: Any) -> str:
        module = {"destinations": {"orders": {"kind": "queue"}}, **changed}
        with pytest.raises((ModuleFileError, OptionError)) as raised:
            apply(str(tmp_path / "root"), module)
        return str(raised.value)

    assert "flowMinimum of a connection factory is 50, but must be at most its flowMaximum, 10" in refusal(
        connectionFactories={"slow": {"flowMaximum": 10}}
    )
    assert "messagesThresholdLow is 20, but must be 1 to 9" in refusal(
        destinations={"orders": {"kind": "queue", "messagesThresholdHigh": 10, "messagesThresholdLow": 20}}
    )
    assert "servers.a.bytesThresholdLow is missing, but must be 1 to 99" in refusal(
        servers={"a": {"store": "file", "bytesThresholdHigh": 100}}
    )


def test_server_slows_the_senders_of_its_destinations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T5: its usage is that of all its members; and a server without thresholds is not looked at."""
    monkeypatch.setattr(usage, "LOOK_EVERY_S", 0.0)
    module = queue_on("a", "b")
    module["servers"]["a"] |= {"messagesThresholdHigh": 10, "messagesThresholdLow": 5}
    root = str(tmp_path / "root")
    apply(root, module)
    domain = Domain(root)
    assert domain.servers.entry("a").thresholds == FlowThresholds(FlowThreshold(10, 5))
    assert not domain.servers.entry("b").thresholds
    used = {"a": 11, "b": 10**6}
    monkeypatch.setattr(Domain, "usage_of_server", lambda self, server: MessageUsage(used[server], 0))
    log = domain.log("orders")
    log.refresh()
    assert [one.name for one in watched_of(domain, log)] == ["orders", "server a", "server b"]
    with connect(root, housekeeping=False, connection_factory=FAST) as context:
        producer = context.producer("orders")
        producer.send(text="x")
        assert producer.statistics().flow.armed
        used["a"] = 4
        producer.send(text="x")
        assert not producer.statistics().flow.armed


def test_thresholds_that_cannot_be_read_fail_no_send(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T5: they stay as they are, and the log names the server."""
    monkeypatch.setattr(usage, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(log_domain, "_SERVERS_KEPT_S", 0.0)
    module = queue_on("a", "b")
    module["servers"]["a"] |= {"messagesThresholdHigh": 10, "messagesThresholdLow": 5}
    root = str(tmp_path / "root")
    apply(root, module)
    monkeypatch.setattr(Domain, "usage_of_server", lambda self, server: MessageUsage(11, 0))
    with connect(root, housekeeping=False, connection_factory=FAST) as context:
        producer = context.producer("orders")
        producer.send(text="x")

        def unreadable(self: object, server: str) -> object:
            raise OSError(f"the file of {server} is away")

        monkeypatch.setattr(type(Domain(root).servers), "entry", unreadable)
        producer.send(text="x")
        assert producer.statistics().flow.armed
    assert "server a: its thresholds cannot be read" in caplog.text


@dataclass
class Sink:
    """The commits of a query, each by a new process, with a clock that its waits advance."""

    root: str
    factory: ConnectionFactory = GENTLE
    now_ms: int = 1_000_000
    slept: list[float] = field(default_factory=list)

    def commit(
        self, batch: int, messages: int, destination: str = "orders", query: str = "q", longest_s: float = 3600.0
    ) -> float:
        def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            self.now_ms += round(seconds * 1000)

        domain = Domain(self.root)
        log = domain.log(destination)
        log.refresh()
        return SinkFlow(domain, log, self.factory, lambda: self.now_ms, sleep).wait(query, batch, messages, longest_s)

    def stored(self, query: str = "q") -> dict[str, Any] | None:
        domain = Domain(self.root)
        data = domain.storage.get(f"{FLOW}/{domain.log('orders').refresh().table_id}/{query}")
        return None if data is None else json.loads(data)


def test_sink_waits_for_what_its_batches_owe(context: Context, root: str) -> None:
    """T5: its debt stands under the query's id, so the next process continues with it; the rate falls by steps, and a commit
    waits half a minute at most."""
    send(context, "orders", 11)
    sink = Sink(root)
    assert sink.commit(0, 500) == 0
    assert sink.commit(1, 50) == pytest.approx(5, abs=0.1)
    assert sink.commit(1, 50) == pytest.approx(0.5, abs=0.1), "repeated by Spark, it owes once"
    assert sink.commit(2, 5000) < 0.1
    assert sink.commit(3, 1) == pytest.approx(30)
    stored = sink.stored()
    assert stored is not None
    assert stored["pace"]["limit"] == 10
    assert stored["batch"] == 3
    assert sink.commit(0, 100, query="another") == 0


def test_sink_does_not_wait_for_a_clock_that_was_set_back(context: Context, root: str) -> None:
    """T5: what is owed is paid for by the time that passes from now on."""
    send(context, "orders", 11)
    sink = Sink(root)
    sink.commit(0, 500)
    sink.now_ms -= 3_600_000
    assert sink.commit(1, 1) == pytest.approx(5, abs=0.1)


def test_sink_is_free_again_below_the_threshold(context: Context, root: str) -> None:
    """T5: then nothing is stored."""
    send(context, "orders", 11)
    sink = Sink(root)
    sink.commit(0, 500)
    consume(context, "orders", 9)
    sink.now_ms += 5_000
    assert sink.commit(1, 10) == pytest.approx(0, abs=0.1)
    assert sink.stored() is not None
    sink.now_ms += 60_000
    assert sink.commit(2, 10_000) == 0
    assert sink.stored() is None


def test_sink_waits_no_longer_than_its_files_are_safe(context: Context, root: str) -> None:
    """T5, C13: clean-up deletes staged files that are too old."""
    send(context, "orders", 11)
    sink = Sink(root)
    sink.commit(0, 5000)
    assert sink.commit(1, 1, longest_s=2.0) == pytest.approx(2)


def test_sink_stays_armed_between_the_thresholds(context: Context, root: str) -> None:
    """T5: by what its last batch knew, although a new process commits."""
    send(context, "orders", 11)
    sink = Sink(root)
    sink.commit(0, 1)
    consume(context, "orders", 4)
    sink.now_ms += 20_000
    sink.commit(1, 1)
    stored = sink.stored()
    assert stored is not None
    assert stored["armed"] == {"orders": [True, False]}
    assert stored["pace"]["limit"] == 10


def test_sink_without_flow_control_is_free(context: Context, root: str) -> None:
    """T5: its connection factory turns it off."""
    send(context, "orders", 11)
    sink = Sink(root, attrs.evolve(GENTLE, flow_control_enabled=False))
    sink.commit(0, 5000)
    assert sink.commit(1, 5000) == 0
    assert sink.stored() is None


def test_producers_of_a_destination_share_one_look(context: Context) -> None:
    """T5: a process looks once a second, however many producers it has."""
    watches = {id(context.producer(name)._flow._watch) for name in ("orders", "orders", "large")}  # type: ignore[union-attr]
    assert len(watches) == 2


def test_usage_of_a_server_is_that_of_its_members(context: Context) -> None:
    """T5: of all destinations on it, and of no other server."""
    usages = domain_of(context).usages

    def publish(table: str, *servers: str) -> None:
        members = {m: MemberUsage(9, MessageUsage(m + 1, 10), server) for m, server in enumerate(servers)}
        assert usages.publish(table, lambda: PublishedUsage(table, members))

    publish("one", "a", "b")
    publish("two", "b")
    publish("three", "a", "a")
    assert usages.of_server("a") == MessageUsage(1 + 1 + 2, 30)
    assert usages.of_server("b") == MessageUsage(2 + 1, 20)
    assert usages.of_server("c") == MessageUsage()


def test_sink_without_thresholds_reads_and_writes_nothing(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T5: default off costs nothing."""
    domain = Domain(root)
    log = domain.log("free")
    log.refresh()

    def fail(*_: object) -> None:
        raise AssertionError("a file was touched")

    for name in ("get", "put", "create", "exists", "list", "delete"):
        monkeypatch.setattr(type(domain.storage), name, fail)
    assert SinkFlow(domain, log, ConnectionFactory()).wait("q", 1, 1000, 60.0) == 0


def test_damaged_pace_counts_as_missing(context: Context, root: str, caplog: pytest.LogCaptureFixture) -> None:
    """T5: it is only a pace."""
    send(context, "orders", 11)
    sink, domain = Sink(root), Domain(root)
    domain.storage.put(f"{FLOW}/{domain.log('orders').refresh().table_id}/q", b"{")
    assert sink.commit(5, 10) == 0
    assert "is damaged and counts as missing" in caplog.text
    stored = sink.stored()
    assert stored is not None
    assert stored["batch"] == 5


def test_drop_removes_the_pace_of_queries(context: Context, root: str) -> None:
    """T5, C3."""
    send(context, "orders", 11)
    sink, domain = Sink(root), Domain(root)
    sink.commit(0, 500)
    table_id = domain.log("orders").refresh().table_id
    drop_destination(domain, records_of(context), "orders", force=True)
    assert not list(domain.storage.list(f"{FLOW}/{table_id}"))
