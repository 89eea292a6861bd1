"""Flow control, as administrators and senders meet it (T5); how sinks wait is in test_paced_sinks.py."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest

from spark_jms import aio, apply, connect
from spark_jms.admin.transfer import MoveOrder, move
from spark_jms.client import Context, Message
from spark_jms.client.sending.flow_control import ProducerFlow
from spark_jms.client.sending.producer import flow_of
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.limits.flow_control import FlowThreshold, FlowThresholds
from spark_jms.core.limits.quota import MessageUsage
from spark_jms.errors import ClosedError, ModuleFileError, OptionError
from spark_jms.log.destinations import limits
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.limits import watched_of
from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.spark.sink import SinkFlow
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.domains.flow_thresholds import FAST, GENTLE, TEN, consume, look_always, send, watched_domain
from tests.harness.domains.servers import queue_on

STEADY = ConnectionFactory(flow_maximum=50, flow_minimum=50)
SLOW = ConnectionFactory(flow_maximum=1, flow_minimum=1)


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with watched_domain(monkeypatch) as made:
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
    """T5: the first one of a producer too. `send_many` goes in parts of what a second allows, a table waits as a whole."""
    with connect(root, housekeeping=False, connection_factory=STEADY) as context:
        send(context, "orders", 11)
        producer = context.producer("orders")
        assert producer.send_many({"text": str(n)} for n in range(120)).commits == 3
        assert producer.statistics().flow.waited_s >= 119 / 50 - 0.1
        producer = context.producer("orders")
        assert producer.send_table(pa.table({"text": ["x"] * 40})).commits == 1
        assert producer.statistics().flow.waited_s >= 39 / 50 - 0.1
        assert producer.statistics().flow.debt <= 1
        owing = context.producer("orders")
        owing._keep_pace(0)
        owing.close()
        with pytest.raises(ClosedError, match="closed"):
            owing.send(text="x")


def test_coroutines_keep_the_pace_without_blocking_their_loop(root: str) -> None:
    """T5, M7: others run while a send waits; a send that is cancelled meanwhile has sent nothing."""

    async def course() -> tuple[int, int]:
        async with await aio.connect(root, connection_factory=SLOW) as context, context.producer("orders") as producer:
            await producer.send_many({"text": "x"} for _ in range(12))
            await producer.send(text="armed now")
            waiting = [asyncio.create_task(producer.send(text="never")) for _ in range(100)]
            while producer.statistics().flow.debt < 90:
                await asyncio.sleep(0.001)
            for task in waiting:
                task.cancel()
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            return producer.statistics().messages, sum(isinstance(one, asyncio.CancelledError) for one in ended)

    messages, cancelled = asyncio.run(course())
    assert cancelled > 50
    assert 113 - cancelled <= messages <= 114 - cancelled, "one may have been in its commit"


def test_cancelled_coroutine_owes_nothing(root: str) -> None:
    """T5, M7: the message that it did not send is not paid for by later ones."""

    async def course() -> float:
        async with await aio.connect(root, connection_factory=SLOW) as context, context.producer("orders") as producer:
            await producer.send_many({"text": "x"} for _ in range(12))
            await producer.send(text="armed now")
            before = producer.statistics().flow.debt
            waiting = [asyncio.create_task(producer.send(text="never")) for _ in range(100)]
            while producer.statistics().flow.debt < 90:
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
        flow = flow_of(producer)
        assert flow is not None
        flow.enter(300)
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
    look_always(monkeypatch)
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
    look_always(monkeypatch)
    monkeypatch.setattr(limits, "SERVERS_KEPT_S", 0.0)
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


def test_producers_of_a_destination_share_one_look(context: Context) -> None:
    """T5: a process looks once a second, however many producers it has."""
    watches = {id(context.producer(name)._flow._watch) for name in ("orders", "orders", "large")}  # type: ignore[union-attr]
    assert len(watches) == 2


def on_servers(root: Path, **thresholds: int) -> str:
    """`orders` and `returns` on a and b, `plain` on home; thresholds of messages by server, `low` is half of it."""
    keys = {s: {"messagesThresholdHigh": n, "messagesThresholdLow": n // 2} for s, n in thresholds.items()}
    module = queue_on("a", "b")
    module["servers"] = {
        **{name: {"store": "file", **keys.get(name, {})} for name in ("a", "b")},
        "home": keys.get("home", {}),
    }
    module["destinations"]["returns"] = {"kind": "distributed-queue", "servers": ["a", "b"]}
    module["destinations"]["plain"] = {"kind": "queue"}
    apply(str(root), module)
    return str(root)


def test_usage_of_a_server_is_that_of_its_members(tmp_path: Path) -> None:
    """T5: of all destinations on it, and of no other server; measured from the tables, so that senders alone see it."""
    root = on_servers(tmp_path / "root", a=1000)
    with connect(root, housekeeping=False) as context:
        for name, count in (("a@orders", 1), ("b@orders", 2), ("a@returns", 4), ("plain", 8)):
            send(context, name, count)
        inbox = context.create_temporary_queue()
        send(context, inbox.name, 16)
        domain = domain_of(context)
        assert [domain.usage_of_server(server).messages for server in ("a", "b", "home", "c")] == [5, 2, 24, 0]
        consume(context, "orders", 3)
        assert [domain.usage_of_server(server).messages for server in ("a", "b")] == [4, 0]


def test_unreadable_destination_of_a_server_counts_as_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T5: the others are measured."""
    root = on_servers(tmp_path / "root")
    with connect(root, housekeeping=False) as context:
        send(context, "a@orders", 2)
        send(context, "a@returns", 3)
        log = domain_of(context).log("orders")

        def unreadable() -> None:
            raise OSError("away")

        monkeypatch.setattr(log, "refresh", unreadable)
        assert domain_of(context).usage_of_server("a").messages == 3


def test_senders_alone_arm_their_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T5: no consumer and no housekeeping has to run; `home` has thresholds too."""
    look_always(monkeypatch)
    root = on_servers(tmp_path / "root", a=10, home=10)
    with connect(root, housekeeping=False, connection_factory=FAST) as context:
        for name, other in (("a@orders", "a@returns"), ("plain", "plain")):
            send(context, name, 11)
            producer = context.producer(other)
            producer.send(text="x")
            assert producer.statistics().flow.armed, name
    on_servers(tmp_path / "root")
    monkeypatch.setattr(limits, "_known", {})
    with connect(root, housekeeping=False, connection_factory=FAST) as context:
        producer = context.producer("plain")
        producer.send(text="x")
        assert not producer.statistics().flow.armed


def test_wrong_thresholds_of_home_are_named(tmp_path: Path) -> None:
    """T5, C3: it has the keys of the others but for those of a store of its own."""
    module = {"destinations": {"plain": {"kind": "queue"}}}
    for home, said in (
        ({"messagesThresholdHigh": 5}, "servers.home.messagesThresholdLow is missing, but must be 1 to 4"),
        ({"lease": "5 s"}, "unknown key 'lease' in servers.home"),
        ({"store": "file"}, "home is the domain's own store"),
    ):
        with pytest.raises(ModuleFileError, match=re.escape(said)):
            apply(str(tmp_path / "root"), {**module, "servers": {"home": home}})


def test_sender_to_one_member_does_not_slow_down_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T5, D3: neither for its server, nor for its messages; a sender to all members does."""
    look_always(monkeypatch)
    root = on_servers(tmp_path / "root", b=10)
    with connect(root, housekeeping=False, connection_factory=FAST) as context:
        send(context, "b@orders", 11)
        for name, slowed in (("a@orders", False), ("b@orders", True), ("orders", True)):
            producer = context.producer(name)
            producer.send(text="x")
            assert producer.statistics().flow.armed == slowed, name
        domain = Domain(root)
        log = domain.log("orders")
        log.refresh()
        for server, waits in (("a", False), ("b", True), (None, True)):
            flow = SinkFlow(domain, log, GENTLE, lambda: 0, lambda _: None, server)
            assert (flow.wait("", None, 100, 0.5) > 0) == waits


def test_thresholds_are_of_each_member(root: str) -> None:
    """T5, D1: as the text has them of each member of a distributed destination, and the log names it."""
    shared = {"kind": "distributed-queue", "members": 2}
    apply_destinations(Domain(root), [Destination("orders", **{**TEN, **shared})], lambda d, m: False)
    with connect(root, housekeeping=False, connection_factory=FAST) as context:
        producer = context.producer("orders")
        producer.send_many({"text": "x"} for _ in range(20))
        producer.send(text="ten on each")
        assert not producer.statistics().flow.armed
        producer.send_many({"text": "x"} for _ in range(2))
        producer.send(text="eleven on one")
        assert producer.statistics().flow.armed


def test_move_keeps_the_pace_of_its_target(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T5, C18: in parts of what a second allows; a move within a destination is not slowed."""
    shares: list[int] = []
    share = ProducerFlow.share

    def seen(self: ProducerFlow, messages: int) -> int:
        shares.append(share(self, messages))
        return shares[-1]

    monkeypatch.setattr(ProducerFlow, "share", seen)
    with connect(root, housekeeping=False, connection_factory=ConnectionFactory(flow_control_enabled=False)) as context:
        send(context, "orders", 11)
        send(context, "free", 600)
        assert move(domain_of(context), records_of(context), MoveOrder("free", "orders"), 10).moved == 600
        assert shares == [500] * 3
        assert len(list(context.browser("orders"))) == 611
