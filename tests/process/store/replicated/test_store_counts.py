"""What a domain has done to its replicated store, as its administrators see it (R14)."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from spark_jms import apply, connect
from spark_jms.cli.__main__ import cli
from spark_jms.store.contract import StoreInfo
from spark_jms.store.regions.admin.api import Admin
from spark_jms.testing.domain import wait_until
from tests.harness.stores.regions_cluster import Make

SERVER, SUBSCRIPTIONS = "messaging.jmsServer.fast", "messaging.jmsServer.durablesubs.fast"


def test_counts_of_a_domain_reach_every_administrator(make_daemons: Make, tmp_path: Path) -> None:
    """R14: `jmsq stat`, `storeadmin lsc` and Admin show them; each daemon of the cluster knows them."""
    daemons = make_daemons(2)
    root = str(tmp_path / "domain")
    module = {
        "store": daemons.uri("fast"),
        "destinations": {"orders": {"kind": "queue"}, "prices": {"kind": "topic"}},
    }
    apply(root, module)
    with connect(root) as context:
        consumers = [context.consumer("orders"), context.consumer("prices", subscription="billing")]
        for name, consumer in zip(("orders", "prices"), consumers, strict=True):
            context.producer(name).send(text="one")
            message = consumer.receive(timeout=30)
            assert message is not None
            message.acknowledge()

        def store(daemon: int) -> StoreInfo | None:
            with Admin(str(daemons.path), daemon) as admin:
                return next(iter(admin.stores("fast")), None)

        def is_counted(daemon: int) -> bool:
            found = store(daemon)
            return found is not None and all(each.create_count > 0 < each.object_count for each in found.connections)

        for daemon in range(2):
            wait_until(lambda daemon=daemon: is_counted(daemon), 30.0)  # type: ignore[misc]
        found = store(0)
        assert found is not None
        assert [connection.name for connection in found.connections] == [SERVER, SUBSCRIPTIONS]
        assert found.physical_write_count > 0
        shown = CliRunner().invoke(cli, ["stat", "--root", root, "--json"])
        assert shown.exit_code == 0, shown.output
        counted = json.loads(shown.stdout)["store"]
        assert [connection["name"] for connection in counted["connections"]] == [SERVER, SUBSCRIPTIONS]
        assert counted["connections"][0]["create_count"] >= found.connections[0].create_count
        table = CliRunner().invoke(cli, ["stat", "--root", root])
        assert SERVER in table.output
        assert "PhysicalWriteCount" in table.output
    wait_until(lambda: store(0) is None, 30.0)
