"""Live consumers are counted, by destination and member, and queues that are not serviced are found (T17)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spark_jms import admin, connect
from spark_jms.admin.domain_sample import take
from spark_jms.admin.statistics import DestinationStatistics, collect
from spark_jms.cli.__main__ import cli
from spark_jms.client import Context
from spark_jms.console.history import History
from spark_jms.console.page import page
from spark_jms.metrics.declared import DOMAIN_METRICS
from spark_jms.spark.browser import VIEW_SCHEMAS, JmsqReader, ViewPartition
from spark_jms.spark.options import parse_options
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.domains.servers import applied, queue_on

MODULE = {
    "destinations": {
        "orders": {"kind": "distributed-queue", "members": 2},
        "idle": {"kind": "queue"},
        "prices": {"kind": "topic"},
    }
}


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    with connect(applied(tmp_path, MODULE), housekeeping=False) as opened:
        yield opened


def counted(context: Context, name: str) -> DestinationStatistics:
    return collect(domain_of(context), records_of(context), name)


def unserviced(context: Context) -> list[tuple[str, str, int]]:
    with admin.connect(context.root) as administrator:
        return [(row.destination, row.subscription, row.member) for row in administrator.unserviced()]


def stat(context: Context, *options: str) -> Any:
    done = CliRunner().invoke(cli, ["stat", "--root", context.root, *options])
    assert done.exit_code == 0, done.output
    return done.output


def test_consumers_are_counted_by_destination_and_member(context: Context) -> None:
    """T17: one that has not received yet counts for the destination, one that is pinned for its member; a closed one for none."""
    assert (counted(context, "orders").consumers, counted(context, "idle").consumers) == (0, 0)
    everything = context.consumer("orders")
    assert counted(context, "orders").consumers == 1
    assert everything.receive(0) is None
    assert [member.consumers for member in counted(context, "orders").members] == [1, 1]
    pinned = context.consumer("home.1@orders")
    found = counted(context, "orders")
    assert (found.consumers, [member.consumers for member in found.members]) == (2, [1, 2])
    assert [counted(context, f"home.{n}@orders").consumers for n in (0, 1)] == [1, 2]
    pinned.close()
    assert counted(context, "orders").consumers == 1
    everything.close()
    found = counted(context, "orders")
    assert (found.consumers, [member.consumers for member in found.members]) == (0, [0, 0])


def test_consumers_of_a_topic_are_counted_by_subscription(context: Context) -> None:
    """T17"""
    context.consumer("prices", subscription="left").close()
    shared = [context.consumer("prices", subscription="shared") for _ in range(2)]
    alone = context.consumer("prices")
    for one in (*shared, alone):
        assert one.receive(0) is None
    found = counted(context, "prices")
    assert found.consumers == 3
    assert {row.subscription: len(row.consumers) for row in found.subscriptions} == {"left": 0, "shared": 2, "~~1": 1}


def test_consumer_of_several_servers_is_one(tmp_path: Path) -> None:
    """T17, M10: it has a session on each."""
    with connect(applied(tmp_path, queue_on("a", "b", "c")), housekeeping=False) as context:
        assert context.consumer("orders").receive(0) is None
        found = counted(context, "orders")
        assert (found.consumers, [member.consumers for member in found.members]) == (1, [1, 1, 1])


def test_queues_that_are_not_serviced_are_a_filter(context: Context) -> None:
    """T17: messages wait, and no live consumer takes them: in Python, by `jmsq stat --unserviced`, and as a view; a member that its
    consumers leave out is one."""
    assert unserviced(context) == []
    assert "live consumers take the messages of every destination" in stat(context, "--unserviced")
    assert json.loads(stat(context, "--unserviced", "--json"))["destinations"] == []
    context.consumer("prices", subscription="left").close()
    for name in ("idle", "prices", "home.0@orders", "home.1@orders"):
        context.producer(name).send(text="x")
    assert unserviced(context) == [("idle", "-", 0), ("orders", "-", 0), ("orders", "-", 1), ("prices", "left", 0)]
    pinned = context.consumer("home.0@orders", acknowledge="individual")
    message = pinned.receive(30)
    assert message is not None
    message.acknowledge()
    idle = context.consumer("idle")
    assert idle.receive(30) is not None
    assert unserviced(context) == [("orders", "-", 1), ("prices", "left", 0)]
    shown = json.loads(stat(context, "--unserviced", "--json"))["destinations"]
    assert [one["destination"] for one in shown] == ["orders", "prices"]
    assert [member["consumers"] for member in shown[0]["members"]] == [1, 0]
    table = stat(context, "--unserviced")
    assert "idle" not in table
    assert "consumers" in table
    reader = JmsqReader(parse_options({"root": context.root, "destination": "orders", "view": "subscriptions"}))
    (partition,) = reader.partitions()
    assert isinstance(partition, ViewPartition)
    at = [column.split()[0] for column in VIEW_SCHEMAS["subscriptions"].split(", ")].index("consumers")
    assert [len(row[at]) for row in partition.rows] == [1, 0]
    context.consumer("orders").receive(30)
    assert unserviced(context) == [("prices", "left", 0)]


def test_metrics_and_console_have_them(context: Context) -> None:
    """T17, M5, M8"""
    context.producer("idle").send(text="x")
    assert context.consumer("orders").receive(0) is None
    sample = take(domain_of(context), records_of(context))
    values = {
        (metric.name, *value.labels): value.value
        for metric in DOMAIN_METRICS
        for value in metric.values(sample)
        if "consumers" in metric.name or "unserviced" in metric.name
    }
    assert values["jmsq_destination_consumers", "orders"] == 1
    assert values["jmsq_destination_consumers", "idle"] == 0
    assert values["jmsq_destination_member_consumers", "orders", "1"] == 1
    assert values["jmsq_destination_unserviced_messages", "idle"] == 1
    assert values["jmsq_destination_unserviced_messages", "orders"] == 0
    history = History()
    history.add(sample)
    assert page(history, 2).count("<th>consumers</th>") == 5, (
        "of all destinations, of the members of each, and of subscriptions"
    )
