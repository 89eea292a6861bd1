"""One engine_host for all hosts: each takes its own address (S3, S7, R15)."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jms.store.errors import SecurityConfigError, SettingInvalidError
from spark_jms.store.jdbc.settings import parse_jdbc
from spark_jms.store.jdbc.store import JdbcFinder
from spark_jms.store.net import addresses
from spark_jms.store.net.addresses import address_here
from spark_jms.store.net.sockets import ServingAddress

OWN = {
    "lo": ["127.0.0.1", "::1"],
    "eth0": ["fe80::1", "10.1.2.3", "10.1.0.9"],
    "ib0": ["192.168.7.1", "fd00::7"],
    "down0": [],
}
NAMES = {
    "node.test": ["10.1.0.9"],
    "mq.test": ["192.168.7.2", "192.168.7.1"],
    "debian.test": ["127.0.1.1"],
    "far.test": ["10.9.9.9"],
    "localhost": ["::1", "127.0.0.1"],
}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "interfaces", lambda: OWN)
    monkeypatch.setattr(addresses, "numbers_of", lambda name: NAMES.get(name, []))
    monkeypatch.setattr("socket.gethostname", lambda: "node.test")


@pytest.mark.parametrize(
    ("host", "number"),
    [
        ("10.0.0.0/8", "10.1.0.9"),
        ("10.1.2.0/24", "10.1.2.3"),
        ("fd00::/8", "fd00::7"),
        ("0.0.0.0/0", "10.1.0.9"),
        ("127.0.0.0/8", "127.0.0.1"),
        ("eth0", "10.1.0.9"),
        ("ib0", "192.168.7.1"),
        ("lo", "127.0.0.1"),
        ("hostname", "10.1.0.9"),
        ("mq.test", "192.168.7.1"),
        ("localhost", "127.0.0.1"),
        ("127.0.0.1", "127.0.0.1"),
    ],
)
def test_host_means_an_address_of_this_machine(host: str, number: str) -> None:
    """S3, R15: a network, an interface, its name, a name that has another number on each machine."""
    assert address_here("engine_host", host) == number


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("172.16.0.0/12", "no address of this machine is in it; it has lo 127.0.0.1"),
        ("10.0.0.0/99", "not a network"),
        ("down0", "the interface has no address"),
        ("far.test", "stands for 10.9.9.9, which is no address by which others reach this machine"),
        ("debian.test", "stands for 127.0.1.1, which is no address by which others"),
        ("eth7", "is no interface, and no name that is known here"),
        ("203.0.113.7", "this machine cannot listen there .*; it has lo 127.0.0.1"),
    ],
)
def test_host_without_an_address_here_is_refused_by_name(host: str, said: str) -> None:
    """S3: with the addresses that the machine has."""
    with pytest.raises(SettingInvalidError, match=f"engine_host={host}: .*{said}"):
        address_here("engine_host", host)


@pytest.mark.parametrize("host", ["10.0.0.0/8", "eth0", "hostname", "node.test"])
def test_address_beyond_this_machine_needs_a_certificate(host: str) -> None:
    """R17: whatever it turns out to be."""
    with pytest.raises(SecurityConfigError, match="there is no engine_certificate"):
        ServingAddress.of(host, 0, "", "")


def test_process_that_cannot_serve_takes_no_lock_and_fails_by_name(tmp_path: Path) -> None:
    """S3, S4: the address of another host in the URI; it was a bare OSError 99. As a client, the process needs no address."""
    uri = f"jdbc:sqlite:///{tmp_path}/store.db"
    finder = JdbcFinder(parse_jdbc(uri), session_timeout_ms=3_000)
    finder.serving = ServingAddress("203.0.113.7", 0)
    with pytest.raises(SettingInvalidError, match=r"engine_host=203.0.113.7: this machine cannot listen there"):
        finder.find()
    other = JdbcFinder(parse_jdbc(uri), session_timeout_ms=3_000)
    assert other.find() is not None
    assert finder.find() is not None  # the other one's address
    other.close()
    finder.close()
