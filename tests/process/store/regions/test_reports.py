"""What the logs of daemons and stores have of what was refused and failed (R5, R12, R17)."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

import spark_jms
from spark_jms.claims.servers.stores import open_stores
from spark_jms.log.destinations.domain import DOMAIN_FILE, Domain
from spark_jms.store import ForeignOwnerError, Put, StoreFullError, open_store
from spark_jms.store.regions.admin.api import Admin
from spark_jms.testing.domain import wait_until
from tests.harness.stores.regions_cluster import Make


def test_two_domains_with_a_store_of_one_name_clash_by_name(make_daemons: Make, tmp_path: Path) -> None:
    """R17, R5: the second one is refused, and the log of its daemon says so as an error."""
    daemons = make_daemons(2)
    uri = f"replicated://{daemons.path}?region_mb=1"
    queue = {"destinations": {"orders": {"kind": "queue"}}}
    for name, store in (("first", uri), ("second", "file")):
        spark_jms.apply(str(tmp_path / name), {"store": store, **queue})
    first, file = Domain(str(tmp_path / "first")), tmp_path / "second" / DOMAIN_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), "store": uri}))
    with spark_jms.connect(first.root), pytest.raises(ForeignOwnerError):
        open_stores(Domain(str(tmp_path / "second")))

    def lines() -> str:
        return "".join(path.read_text() for path in daemons.path.glob("**/rs_daemon_*.log"))

    wait_until(lambda: f"belongs to domain {first.id}, not to domain" in lines(), what=lines)
    (line,) = [line for line in lines().splitlines() if "belongs to domain" in line]
    assert "ERROR" in line
    assert "reports:" in line


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def test_store_that_fails_by_force_logs_an_error(make_daemons: Make, caplog: pytest.LogCaptureFixture) -> None:
    """R4, R5: its daemon is shut down by force while it has the store open."""
    daemons = make_daemons(2)
    with open_store(daemons.uri("forced")) as store, store.connect() as session:
        handle = session.open("r")
        handle.commit([Put("k", b"1")])
        assert not errors(caplog)
        with Admin(str(daemons.path), 0) as admin:
            admin.shutdown("0", force=True)
        wait_until(lambda: errors(caplog), what="the store has failed")
        assert "store forced has failed and is closed" in errors(caplog)[0]
        handle.commit([Put("k", b"2")])  # at the other daemon
        assert store.peek("r") == {"k": b"2"}


def test_store_that_finds_no_memory_for_a_region_logs_an_error(
    make_daemons: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """R12, R5: once, until it grows again. Only the writes that need room are refused."""
    daemons = make_daemons(2, "8M")
    with open_store(daemons.uri("full", region_mb=4)) as store, store.connect() as session:
        handle = session.open("r")
        handle.commit([Put("first", b"1")])

        def fill(name: str) -> None:
            for number in range(1000):
                handle.commit([Put(f"{name}.{number}", bytes(30_000))])

        for name in "abc":
            with pytest.raises(StoreFullError):
                fill(name)
        assert len([text for text in errors(caplog) if "store full cannot grow" in text]) == 1
        assert handle.read("first") == b"1"
