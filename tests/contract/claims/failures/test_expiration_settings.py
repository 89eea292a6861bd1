"""Expiration in the module file, the commands and housekeeping (T6): test_expiration.py has the search and its policies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_jms import apply, connect
from spark_jms.admin.services import Rounds
from spark_jms.admin.statistics import collect
from spark_jms.cli.__main__ import cli
from spark_jms.errors import ModuleFileError
from spark_jms.log.tables.storage import now_ms
from spark_jms.testing.domain import wait_until
from spark_jms.testing.inside import domain_of, records_of


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
    with pytest.raises(ModuleFileError, match=r"expirationScanInterval is 30, but must be"):
        apply(root, {"destinations": queues, "expirationScanInterval": 30})


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
