"""The four fail-over scenarios between two hosts with one URI (S4, S7): each host is a network namespace with an address of its own,
and `engine_host` names their network. They share one kernel, so a process that was killed is known as dead at once.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jms.setup.machine import PostgresqlNotFoundError
from spark_jms.store.jdbc.engine import read_published
from spark_jms.testing.domain import wait_until
from spark_jms.testing.postgresql import PrivatePostgresql
from tests.harness.services.certificates import certificate
from tests.harness.stores.jdbc_raw import Raw
from tests.harness.stores.jdbc_writers import LIMIT_S, Watch, WriterProcess, check_account, schema_of

HANG_LIMIT_S = 2


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)


class HostNetwork:
    """A switch in this namespace, with the database at .1, and hosts at .2 and .3."""

    def __init__(self) -> None:
        self.mark = secrets.token_hex(2)
        self.net = f"10.{secrets.randbelow(200) + 20}.{secrets.randbelow(250)}"
        self.here, self.cidr = f"{self.net}.1", f"{self.net}.0/24"
        self.addresses = [f"{self.net}.{number + 2}" for number in range(2)]
        ip("link", "add", f"jsw{self.mark}", "type", "bridge")
        ip("addr", "add", f"{self.here}/24", "dev", f"jsw{self.mark}")
        ip("link", "set", f"jsw{self.mark}", "up")
        for number, address in enumerate(self.addresses):
            name, cable = self._name(number), self._cable(number)
            ip("netns", "add", name)
            ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", cable, "master", f"jsw{self.mark}", "up")
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")

    def _name(self, number: int) -> str:
        return f"jmsq-{self.mark}-{number}"

    def _cable(self, number: int) -> str:
        return f"jc{self.mark}{number}"

    def run(self, number: int) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self._name(number))

    def plug(self, number: int, connected: bool) -> None:
        ip("link", "set", self._cable(number), "up" if connected else "down")

    def close(self) -> None:
        for number in range(2):
            for words in (("link", "del", self._cable(number)), ("netns", "del", self._name(number))):
                subprocess.run(["ip", *words], capture_output=True, check=False, timeout=20)
        subprocess.run(["ip", "link", "del", f"jsw{self.mark}"], capture_output=True, check=False, timeout=20)


class TwoHosts:
    """A is the engine, on host 0; B is its client over TLS, on host 1. Both have the same URI."""

    def __init__(self, network: HostNetwork, server: PrivatePostgresql, directory: Path, **options: object) -> None:
        cert, key = certificate(directory)
        self.network, self.server = network, server
        quick = {"retry_interval_ms": 100, "verify_interval_ms": 200, "statement_limit_s": 2, "orphan_limit_s": 60}
        secure = {"engine_host": network.cidr, "engine_certificate": cert, "engine_key": key}
        uri = server.uri(**{**quick, "hang_limit_s": HANG_LIMIT_S, **secure, **options})
        self.uri = uri.replace("@127.0.0.1:", f"@{network.here}:")
        self.watch = Watch(server, schema_of(uri))
        self.a = WriterProcess(self.uri, "a", directory, prefix=network.run(0)).wait_ready()
        self.b = WriterProcess(self.uri, "b", directory, prefix=network.run(1)).wait_ready()
        assert (self.a.is_engine_at_start, self.b.is_engine_at_start) == (True, False)
        assert self.engine() == network.addresses[0]
        for writer in (self.a, self.b):
            writer.wait_writes()

    def engine(self) -> str:
        """The address that the engine has published."""
        raw = Raw(self.uri)
        connection = raw.database.connect()
        published = read_published(connection, raw.tables)
        connection.close()
        raw.database.close()
        return published.host if published else ""

    def wait_take_over(self, begun_s: float) -> float:
        wait_until(lambda: self.engine() == self.network.addresses[1], LIMIT_S, "B serves at its own address")
        self.b.wait_writes()
        return time.monotonic() - begun_s

    def finish(self, name: str, took_s: float) -> None:
        self.a.close()
        self.b.stop()
        # The account is read by this process, which has an address in the network too.
        count = check_account(self.uri, [self.a, self.b])
        assert self.watch.most == 1, "two sessions held the engine's lock at once"
        print(f"two hosts, scenario {name}: take-over {took_s * 1000:.0f} ms, {count} acknowledged, 0 lost")

    def close(self) -> None:
        for writer in (self.a, self.b):
            writer.close()
        self.watch.close()


@pytest.fixture
def network() -> Iterator[HostNetwork]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("a host is a network namespace: that needs root and `ip` (package iproute2)")
    try:
        made = HostNetwork()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not allowed here: {error.stderr.decode().strip()}")
    yield made
    made.close()


@pytest.fixture
def hosts(network: HostNetwork, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TwoHosts]:
    try:
        server = PrivatePostgresql(
            settings={"listen_addresses": f"127.0.0.1,{network.here}"}, trusted_network=network.cidr
        )
    except PostgresqlNotFoundError as error:
        pytest.skip(f"no PostgreSQL server: {error}")
    try:
        made = TwoHosts(network, server, tmp_path, **getattr(request, "param", {}))
        yield made
        made.close()
    finally:
        server.close()


@pytest.mark.parametrize("hosts", [{}, {"engine_host": "eth0"}], indirect=True, ids=["network", "interface"])
def test_scenario_1_a_clean_stop(hosts: TwoHosts) -> None:
    """S7, S4: A releases the lock; the engine of the other host listens at that host's address."""
    begun_s = time.monotonic()
    hosts.a.stop()
    took_s = hosts.wait_take_over(begun_s)
    hosts.b.stop()
    assert "Traceback" not in hosts.b.log()
    assert hosts.watch.most == 1
    print(f"two hosts, scenario 1, clean stop: take-over {took_s * 1000:.0f} ms")


def test_scenario_2_an_abnormal_exit(hosts: TwoHosts) -> None:
    """S7: kill -9 of the process on the one host."""
    begun_s = time.monotonic()
    hosts.a.kill()
    hosts.finish("2, abnormal exit", hosts.wait_take_over(begun_s))


def test_scenario_3_a_hang(hosts: TwoHosts) -> None:
    """S7: SIGSTOP on the one host; after hang_limit_s the other one has the database end its sessions. It wakes as a client."""
    hosts.a.suspend()
    begun_s = time.monotonic()
    took_s = hosts.wait_take_over(begun_s)
    hosts.b.wait_log("has not used its lock for 2 s, so the database has ended its sessions")
    hosts.a.signal(signal.SIGCONT)
    hosts.a.wait_log("PANIC: .* is disabled and writes nothing any more")
    hosts.a.wait_writes()
    assert hosts.engine() == hosts.network.addresses[1]
    hosts.finish("3, hang", took_s)


def test_scenario_4_a_network_interruption(hosts: TwoHosts) -> None:
    """S7, S6: the cable of the one host is cut. Its engine is disabled, the other host takes over, and once the cable is back the
    first one continues as its client."""
    hosts.network.plug(0, False)
    begun_s = time.monotonic()
    took_s = hosts.wait_take_over(begun_s)
    hosts.a.wait_log("PANIC: .* is disabled and writes nothing any more")
    hosts.network.plug(0, True)
    hosts.a.wait_writes()
    assert hosts.engine() == hosts.network.addresses[1]
    hosts.finish("4, network interruption", took_s)
