"""What a daemon's log has of the clients that were refused (R17, R5)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import spark_jms
from spark_jms.claims.servers.stores import open_stores
from spark_jms.log.destinations.domain import DOMAIN_FILE, Domain
from spark_jms.store import ForeignOwnerError
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
