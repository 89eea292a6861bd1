"""An orphaned lock falls by the server's own keepalive (S8): a host that vanishes, as a network namespace whose link goes
down. Nothing replaces the keepalive here. The test needs root and `ip`; elsewhere it is skipped with a reason.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_jms.setup.machine import PostgresqlNotFoundError
from spark_jms.testing.postgresql import PrivatePostgresql
from tests.harness.stores.jdbc_writers import WriterProcess, check_account, engine_pids, schema_of

ORPHAN_LIMIT_S = 7


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)


@dataclass(frozen=True)
class OtherHost:
    """`name` of the network namespace; `link`: this end of the cable to it."""

    name: str
    link: str
    here: str

    @property
    def run(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name)

    def vanish(self) -> None:
        ip("link", "set", self.link, "down")


@pytest.fixture
def other_host() -> Iterator[OtherHost]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("a host that vanishes is a network namespace: that needs root and `ip` (package iproute2)")
    mark = secrets.token_hex(3)
    name, ours, theirs = f"jmsq-{mark}", f"jq{mark}a", f"jq{mark}b"
    net = f"10.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}"
    try:
        ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not allowed here: {error.stderr.decode().strip()}")
    try:
        ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        ip("addr", "add", f"{net}.1/30", "dev", ours)
        ip("link", "set", ours, "up")
        ip("-n", name, "addr", "add", f"{net}.2/30", "dev", theirs)
        ip("-n", name, "link", "set", theirs, "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield OtherHost(name, ours, f"{net}.1")
    finally:
        subprocess.run(["ip", "link", "del", ours], capture_output=True, check=False, timeout=20)
        ip("netns", "del", name)


@pytest.fixture
def server(other_host: OtherHost) -> Iterator[PrivatePostgresql]:
    try:
        made = PrivatePostgresql(
            settings={"listen_addresses": f"127.0.0.1,{other_host.here}"}, trusted_network=f"{other_host.here}/30"
        )
    except PostgresqlNotFoundError as error:
        pytest.skip(f"no PostgreSQL server: {error}")
    yield made
    made.close()


def test_the_servers_keepalive_drops_an_orphaned_lock(
    other_host: OtherHost, server: PrivatePostgresql, tmp_path: Path
) -> None:
    """S8, S5, S7: the host of the engine vanishes; another process waits for the orphaned lock until it falls, in time."""
    uri = server.uri(orphan_limit_s=ORPHAN_LIMIT_S, retry_interval_ms=100, verify_interval_ms=200, statement_limit_s=2)
    there = uri.replace("@127.0.0.1:", f"@{other_host.here}:")
    a = WriterProcess(there, "a", tmp_path, prefix=other_host.run).wait_ready()
    try:
        a.wait_writes()
        b = WriterProcess(uri, "b", tmp_path)
        try:
            b.wait_log("waiting for the lock of the data store")
            begun_s = time.monotonic()
            other_host.vanish()
            a.kill()
            assert len(engine_pids(server, schema_of(uri))) == 1  # the orphan
            b.wait_ready()
            took_s = time.monotonic() - begun_s
            b.wait_writes()
            b.stop()
        finally:
            b.close()
    finally:
        a.close()
    check_account(uri, [a, b])
    assert 1 < took_s < 3 * ORPHAN_LIMIT_S
    print(f"orphan_limit_s={ORPHAN_LIMIT_S}: the lock of a vanished host was free, and taken, after {took_s:.1f} s")
