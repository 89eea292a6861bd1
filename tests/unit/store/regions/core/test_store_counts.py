"""Daemons know the counts of every open store (R14)."""

from __future__ import annotations

from spark_jms.store.regions.protocol.messages import ConnectionRow, StoreRow, Stores
from tests.models.regions.stepwise import StepCluster, opened

ROW = StoreRow("s", 7, (ConnectionRow("messaging.jmsServer.s", 1, 2, 3, 4, 5),))


def shown(cluster: StepCluster, daemon: int) -> list[StoreRow]:
    return list(cluster.client(daemon).ask(Stores))


def test_every_daemon_shows_the_counts_of_an_open_store() -> None:
    """R14: also one that connects later; and nothing once the store is closed."""
    cluster = StepCluster(3)
    client, _ = opened(cluster)
    client.report(ROW)
    cluster.run(2_000)
    assert [shown(cluster, daemon) for daemon in range(3)] == [[ROW]] * 3
    cluster.kill(2)
    cluster.start(2)
    cluster.run(3_000)
    assert shown(cluster, 2) == [ROW]
    client.leave()
    cluster.run(2_000)
    assert [shown(cluster, daemon) for daemon in range(3)] == [[]] * 3


def test_only_the_opener_of_a_store_reports_its_counts() -> None:
    """R14: another client's counts are ignored."""
    cluster = StepCluster(2)
    opened(cluster)
    cluster.client(0).report(ROW)
    cluster.run(2_000)
    assert shown(cluster, 0) == []


def test_counts_are_forgotten_with_the_regions() -> None:
    """R14: a store of that name that is made later begins with its own."""
    cluster = StepCluster(2)
    client, _ = opened(cluster)
    client.report(ROW)
    client.leave()
    cluster.run(2_000)
    cluster.client(0).remove("s.000")
    cluster.run(2_000)
    opened(cluster)
    cluster.run(2_000)
    assert [shown(cluster, daemon) for daemon in (0, 1)] == [[], []]
