"""Expiration in the module file, the commands and housekeeping (T6): test_expiration.py has the search and its policies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spark_jms import apply, connect
from spark_jms.admin.services import Rounds
from spark_jms.admin.statistics import collect
from spark_jms.cli.__main__ import cli
from spark_jms.errors import ModuleFileError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms
from spark_jms.testing.domain import wait_until
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.domains.expirations import Search
from tests.harness.domains.servers import applied


def test_redirect_needs_an_error_destination(tmp_path: Path) -> None:
    """T6: it is refused by name, as is dropping the one it has; other policies need none."""
    destination = {"kind": "queue", "expirationPolicy": "Redirect"}
    with pytest.raises(ModuleFileError, match=r"expirationPolicy is Redirect, but there is no errorDestination"):
        apply(str(tmp_path), {"destinations": {"orders": destination}})
    with pytest.raises(ModuleFileError, match="Discard, Log, Redirect"):
        apply(str(tmp_path), {"destinations": {"orders": {**destination, "expirationPolicy": "Drop"}}})
    with pytest.raises(ModuleFileError, match="did you mean JMSPriority"):
        apply(
            str(tmp_path),
            {"destinations": {"orders": {"kind": "queue", "expirationLoggingPolicy": "JMSPrioritty"}}},
        )


def test_interval_is_a_key_of_the_module_file(tmp_path: Path) -> None:
    """T6: a file without it leaves it unchanged."""
    root, queues = str(tmp_path), {"orders": {"kind": "queue"}}
    apply(root, {"destinations": queues, "expirationScanInterval": "2 min"})
    apply(root, {"destinations": queues})
    with connect(root, housekeeping=False) as context:
        assert domain_of(context).expiration_scan_interval_ms() == 120_000
    with pytest.raises(ModuleFileError, match=r"expirationScanInterval is '30 weeks', but must be"):
        apply(root, {"destinations": queues, "expirationScanInterval": "30 weeks"})


@pytest.mark.parametrize("forwarding", ["partitioned", "replicated", None])
def test_server_has_an_interval_of_its_own(tmp_path: Path, forwarding: str | None) -> None:
    """T6, D1: whose default is the domain's; 0 searches none of the record sets on it. Of a replicated topic those are the record sets
    of its subscriptions, in every member."""
    servers = {"a": {"store": "file", "expirationScanInterval": "5 s"}, "b": {"store": "file"}, "c": {"store": "file"}}
    kind: dict[str, Any] = {"kind": "distributed-queue"}
    if forwarding is not None:
        kind = {"kind": "distributed-topic", "forwarding": forwarding}
    orders = {"orders": {**kind, "servers": ["a", "b", "c"]}}
    module = {"destinations": orders, "servers": {**servers, "c": {"store": "file", "expirationScanInterval": "0"}}}
    root = applied(tmp_path, module)
    with connect(root, housekeeping=False) as context:
        if forwarding == "replicated":
            for server in "abc":
                context.consumer(f"{server}@orders", subscription="s").close()
        elif forwarding is not None:
            context.consumer("orders", subscription="s").close()
        search, found = Search(context, "orders"), []
        for seconds in (0, 4, 5, 29, 30):
            for server in "abc":
                context.producer(f"{server}@orders").send(text="x", time_to_live="1 h")
            search.monotonic_s = seconds
            found.append(search.scan.run())
        # a: at 0, 5 and 29; b: at 0 and 30; c: never
        each = 3 if forwarding == "replicated" else 1
        assert found == [each * n for n in (2, 0, 2, 1, 4)]
        assert search.run() == each  # of a
        apply(root, {"destinations": orders, "servers": servers})  # c has that of the domain again
        assert domain_of(context).expiration_scan_intervals_ms("abc") == {"a": 5_000, "b": 30_000, "c": 30_000}
        assert search.run() == each * 5
    apply(root, {"destinations": orders})
    assert Domain(root).expiration_scan_intervals_ms(["a", "home"]) == {"a": 5_000, "home": 30_000}, (
        "it names no server"
    )


def test_home_is_a_server_with_an_interval(tmp_path: Path) -> None:
    """T6: of what the domain's own store has."""
    module = {"destinations": {"orders": {"kind": "queue"}}, "servers": {"home": {"expirationScanInterval": "1 min"}}}
    root = applied(tmp_path, module)
    with connect(root, housekeeping=False) as context:
        search, found = Search(context, "orders"), []
        for seconds in (0, 30, 60):
            context.producer("orders").send(text="x", time_to_live="1 h")
            search.monotonic_s = seconds
            found.append(search.scan.run())
        assert found == [1, 0, 2]
    with pytest.raises(ModuleFileError, match=r"servers.home.expirationScanInterval is -1, but must be"):
        apply(root, {**module, "servers": {"home": {"expirationScanInterval": -1}}})


def test_housekeeping_searches(tmp_path: Path) -> None:
    """T6, C13: one process at a time, under the lease; a round tells how many have expired."""
    apply(str(tmp_path), {"destinations": {"orders": {"kind": "queue"}}})
    with connect(str(tmp_path), housekeeping=False) as context:
        gone = context.producer("orders").send(text="gone", time_to_live=0.001)
        wait_until(lambda: now_ms() > gone.expiration_ms)
        rounds = Rounds(domain_of(context), records_of(context), clean_up=True)
        assert [done.expired_messages for done in rounds.run(["orders"])] == [1]
        assert [done.expired_messages for done in rounds.run(["orders"])] == [0]
        rounds.close()
        assert collect(domain_of(context), records_of(context), "orders").expired == 1


def test_counts_are_shown(tmp_path: Path) -> None:
    """T6, C14: by `jmsq stat` and `jmsq subscriptions`; without expired messages `stat` has no such table."""
    root = str(tmp_path)
    apply(root, {"destinations": {"orders": {"kind": "queue"}}})

    def shown(*arguments: str) -> str:
        return CliRunner().invoke(cli, [*arguments, "--root", root]).output

    with connect(root, housekeeping=False) as context:
        assert "Expired messages" not in shown("stat")
        gone = context.producer("orders").send(text="gone", time_to_live=0.001)
        wait_until(lambda: now_ms() > gone.expiration_ms)
        assert context.consumer("orders").receive(0) is None
    assert "Expired messages" in shown("stat")
    assert json.loads(shown("stat", "--json"))["destinations"][0]["expired"] == 1
    assert json.loads(shown("subscriptions", "--json"))[0]["expired"] == 1
