"""Load balancing of senders by connection factories, and what a lost member does to it (D2, D9)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

import spark_jms
from spark_jms.admin.backup import back_up, restore
from spark_jms.admin.servers import start_server, stop_server
from spark_jms.claims.upkeep import views
from spark_jms.client import ConnectionFactory, Context
from spark_jms.core.destinations.routing import Balancing
from spark_jms.errors import DomainError, ModuleFileError, OptionError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.spark.options import parse_options
from spark_jms.spark.sink import JmsqStreamWriter, JmsqWriter, StagedMessage
from tests.harness.domains.servers import SERVERS, applied

TEXT = StructType([StructField("text", StringType())])
FACTORIES = {
    "once": {"loadBalancingEnabled": False},
    "anywhere": {"serverAffinityEnabled": False},
    "one-a-server": {"producerLoadBalancingPolicy": "Per-JVM", "pinReceivers": True},
}


def module(*servers: str, **factories: Any) -> dict[str, Any]:
    return {
        "servers": SERVERS,
        "connectionFactories": {**FACTORIES, **factories},
        "destinations": {
            "orders": {"kind": "distributed-queue", "servers": list(servers)},
            "at-home": {"kind": "distributed-queue", "members": 3},
        },
    }


@pytest.fixture
def root(tmp_path: Path) -> str:
    return applied(tmp_path, module("a", "b", "c"))


@pytest.fixture
def connected(root: str) -> Iterator[Any]:
    """Opens contexts."""
    opened: list[Context] = []

    def connect(**arguments: Any) -> Context:
        opened.append(spark_jms.connect(root, housekeeping=False, **arguments))
        return opened[-1]

    yield connect
    for one in opened:
        one.close()


def sent(producer: Any, count: int = 12) -> set[int]:
    members = {producer.send(text="x").member for _ in range(count)}
    members |= producer.send_many({"text": "y"} for _ in range(3)).sequences.keys()
    return members | producer.send_many({"text": "z"} for _ in range(300)).sequences.keys()


def test_balancing_is_per_message_unless_it_is_off(connected: Any) -> None:
    """D2: by default each message goes to a member of its own; with loadBalancingEnabled: false a producer keeps the one of its
    first message, and units of order go to their own members all the same."""
    assert sent(connected().producer("orders")) == {0, 1, 2}
    assert sent(connected(connection_factory="anywhere").producer("orders")) == {0, 1, 2}
    context = connected(connection_factory="once")
    kept = [sent(context.producer("orders")) for _ in range(60)]  # one of three members without any: 1 run in 10**10
    assert {len(members) for members in kept} == {1}
    assert set.union(*kept) == {0, 1, 2}
    producer = context.producer("orders")
    assert {producer.send(text="u", group_id=str(n)).member for n in range(30)} == {0, 1, 2}


def test_producer_fails_over_whatever_the_option(root: str, connected: Any) -> None:
    """D9: when the member that a producer keeps goes down, the producer takes another one, and stays there; also when it was
    routed before the stop. A member that comes to the destination changes nothing."""
    producer = connected(connection_factory="once").producer("orders")
    first = producer.send(text="1").member
    stop_server(Domain(root), "abc"[first])
    (second,) = sent(producer)
    assert second != first
    start_server(Domain(root), "abc"[first])
    assert sent(producer) == {second}
    spark_jms.apply(root, module("a", "b", "c", "home"))
    assert sent(producer) == {second}


def test_home_server_is_preferred(root: str, connected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """D2: with affinity, producers and pinned receivers use the member on their home server, given by connect or the
    environment; others while it is down. Without affinity, or where the destination is not on it, any."""
    context = connected(server="b")
    assert sent(context.producer("orders")) == {1}
    assert context.producer("at-home").send(text="x").member in {0, 1, 2}
    receivers = [context.consumer("orders", pin=True) for _ in range(2)]
    got = receivers[0].receive(30)
    assert got is not None
    assert got.member == 1
    for one in receivers:
        one.close()
    stop_server(Domain(root), "b")
    assert sent(context.producer("orders")) == {0, 2}
    start_server(Domain(root), "b")
    monkeypatch.setenv("JMSQ_SERVER", "c")
    assert sent(connected().producer("orders")) == {2}
    assert sent(connected(connection_factory="anywhere").producer("orders")) == {0, 1, 2}
    assert sent(connected(server="a").producer("orders")) == {0}
    assert sent(connected().producer("b@orders")) == {1}
    with pytest.raises(DomainError, match="no server 'd'"):
        connected(server="d")


def test_policy_per_jvm_takes_one_member_of_each_server(connected: Any) -> None:
    """D2: [W] Per-JVM is one candidate on each server; where each has one member it is the same as Per-Member."""
    context = connected(connection_factory="one-a-server")
    assert sent(context.producer("at-home")) == {0}
    assert sent(context.producer("orders")) == {0, 1, 2}
    assert sent(connected().producer("at-home")) == {0, 1, 2}


def test_connection_factory_pins_receivers(connected: Any) -> None:
    """D3: pinReceivers is the default of consumers and browsers of a connection; pin=False overrides it."""
    sent(connected().producer("orders"), 30)
    context = connected(connection_factory="one-a-server")
    assert len({message.member for message in context.browser("orders")}) == 1
    assert len({message.member for message in context.browser("orders", pin=False)}) == 3
    with context.consumer("orders", acknowledge="auto") as pinned:
        got = [pinned.receive(30) for _ in range(30)]
    assert len({message.member for message in got if message}) == 1


def test_connection_factory_is_made_in_python_or_changed_by_apply(root: str, connected: Any) -> None:
    """D2: both ways mean the same; applying a changed one concerns connections opened after that."""
    context = connected(connection_factory=ConnectionFactory(load_balancing_enabled=False))
    assert len(sent(context.producer("orders"))) == 1
    before = connected(connection_factory="once")
    spark_jms.apply(root, module("a", "b", "c", once={"loadBalancingEnabled": True}))
    assert len(sent(before.producer("orders"))) == 1
    assert len(sent(connected(connection_factory="once").producer("orders"))) == 3
    with pytest.raises(DomainError, match="no connection factory 'twice' .*anywhere, once, one-a-server"):
        connected(connection_factory="twice")
    with pytest.raises(OptionError, match="loadBalancingEnabled of a connection factory is 'no'"):
        ConnectionFactory(load_balancing_enabled="no")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"x": {"loadBalancing": False}}, "unknown key 'loadBalancing' in connectionFactories.x: did you mean"),
        ({"x": {"loadBalancingEnabled": "yes please"}}, "connectionFactories.x.loadBalancingEnabled is 'yes please'"),
        ({"x": {"producerLoadBalancingPolicy": "Per-Host"}}, "must be one of per-member, per-jvm"),
        ({"a/b": {}}, "'a/b' cannot be the name of a connection factory"),
        ([], "connectionFactories is"),
    ],
)
def test_wrong_connection_factories_are_refused(tmp_path: Path, wrong: Any, said: str) -> None:
    """D2, C16: the error names the key and what is allowed, before anything changes."""
    with pytest.raises(ModuleFileError, match=said):
        spark_jms.apply(str(tmp_path), {"destinations": {"q": {"kind": "queue"}}, "connectionFactories": wrong})


def test_sink_options_override_the_connection_factory(root: str) -> None:
    """D2: the sink takes a connection factory by name, and single settings instead of its own."""

    def writer(**options: str) -> JmsqWriter:
        return JmsqWriter(parse_options({"root": root, "destination": "orders", **options}), TEXT, False)

    assert writer().factory == ConnectionFactory()
    assert writer(connectionFactory="once").factory == ConnectionFactory(load_balancing_enabled=False)
    made = writer(
        connectionFactory="once", loadBalancingEnabled="true", producerLoadBalancingPolicy="Per-JVM", server="b"
    )
    assert made.factory == ConnectionFactory(producer_load_balancing_policy="per-jvm")
    assert made.home == "b"
    with pytest.raises(DomainError, match="no connection factory 'x'"):
        writer(connectionFactory="x")
    with pytest.raises(DomainError, match="no server 'x'"):
        writer(server="x")


@pytest.mark.parametrize("factory", [None, "once"])
def test_senders_lose_and_double_nothing_while_servers_go_down(root: str, connected: Any, factory: str | None) -> None:
    """D9, C5: threads send one by one, in batches and in transactions while one server after the other is stopped and started:
    each send succeeds, and each message is in the table once, in the order of its sender within each member."""
    context, domain = connected(connection_factory=factory), Domain(root)
    errors: list[Exception] = []
    stopping = threading.Event()

    def stops() -> None:
        while not stopping.is_set():
            for server in "abc":
                stop_server(domain, server)
                start_server(domain, server)

    def sends(name: int) -> None:
        try:
            with context.producer("orders") as producer:
                for n in range(10):
                    producer.send(text=f"{name}/{n}")
                producer.send_many({"text": f"{name}/{n}"} for n in range(10, 20))
                for _ in range(2):
                    rows = [{"text": f"{name}/{n}"} for n in range(20, 150)]
                    producer.send_many(rows, transaction=(f"sender {name}", 1))
        except Exception as error:  # noqa: BLE001 - it is asserted below
            errors.append(error)

    senders = [threading.Thread(target=sends, args=(name,)) for name in range(3)]
    stopper = threading.Thread(target=stops)
    for thread in (stopper, *senders):
        thread.start()
    for thread in senders:
        thread.join()
    stopping.set()
    stopper.join()
    assert errors == []
    found = [(message.member, message.sequence, message.text) for message in context.browser("orders")]
    assert Counter(text for _, _, text in found) == Counter(f"{name}/{n}" for name in range(3) for n in range(150))
    for name in range(3):
        for member in range(3):
            own = [int(text.split("/")[1]) for m, _, text in found if m == member and text.startswith(f"{name}/")]
            assert own == sorted(own)


def test_batch_of_the_sink_is_committed_once_on_other_members(root: str) -> None:
    """D9, C5: the member of a staged batch goes down before the commit, and Spark repeats the commit after it has staged the batch
    again: the messages are there once, on members that are up."""
    domain = Domain(root)
    log = domain.log("orders")
    writer = JmsqStreamWriter(parse_options({"root": root, "destination": "orders"}), TEXT, False)

    def staged(balancing: Balancing) -> StagedMessage:
        snapshot = log.refresh()
        files = MessageWriter(log.storage, snapshot.destination, 0, routing=balancing.routing(snapshot.destination))
        files.write(pa.record_batch([pa.array([b"1", b"2"], pa.binary())], names=["body"]))
        return StagedMessage(0, "query", snapshot.route_id, files.close(), balancing)

    sender = Balancing(sender="query")
    first = staged(sender)
    (kept,) = {file.member for file in first.files}
    stop_server(domain, "abc"[kept])
    writer.commit([first], 7)
    writer.commit([staged(sender)], 7)
    with spark_jms.connect(root) as context:
        shown = [(message.member, message.body) for message in context.browser("orders")]
    assert sorted(body for _, body in shown) == [b"1", b"2"]
    assert len({member for member, _ in shown}) == 1
    assert kept not in {member for member, _ in shown}


def test_backup_has_the_connection_factories(root: str, tmp_path: Path) -> None:
    """C19, D2: a restored domain has them."""
    domain = Domain(root)
    with views.opened_store(domain) as store:
        back_up(domain, store, str(tmp_path / "backup"))
    restore(str(tmp_path / "backup"), str(tmp_path / "restored"))
    restored = Domain(str(tmp_path / "restored"))
    assert restored.connection_factories.names() == sorted(FACTORIES)
    assert restored.connection_factories.get("once") == ConnectionFactory(load_balancing_enabled=False)
