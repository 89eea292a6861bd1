"""Names in rs_daemons.cfg are resolved (R1, R18)."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from spark_jms.store.errors import DaemonConfigError
from spark_jms.store.regions.directory import global_directory
from spark_jms.store.regions.directory.global_directory import (
    NAME_KEPT_S,
    UNKNOWN_KEPT_S,
    GlobalDirectory,
    ResolvedNames,
)


class NameServer:
    """`known`: name -> numbers. `is_away`: it does not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.known: dict[str, list[str]] = {}
        self.is_away, self.asked, self.now_s = False, 0, 0.0
        monkeypatch.setattr(socket, "getaddrinfo", self._answer)
        self.names = ResolvedNames(lambda: self.now_s)
        monkeypatch.setattr(global_directory, "NAMES", self.names)

    def _answer(self, name: str, port: Any, **how: Any) -> list[Any]:
        self.asked += 1
        if self.is_away or name not in self.known:
            raise socket.gaierror(socket.EAI_AGAIN, "no answer")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (number, 0)) for number in self.known[name]]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> NameServer:
    return NameServer(monkeypatch)


def directory(path: Path, text: str) -> GlobalDirectory:
    (path / "rs_daemons.cfg").write_text(text)
    return GlobalDirectory(str(path))


def test_local_daemon_is_found_by_its_name(tmp_path: Path, server: NameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """R1, R18: a name of DNS or of the hosts file; it was refused as of no machine here."""
    server.known = {"east": ["10.1.0.1"], "west": ["10.1.0.2"]}
    monkeypatch.setattr(global_directory, "machine_addresses", lambda: frozenset({"10.1.0.2", "127.0.0.1"}))
    shared = directory(tmp_path, "east 7100 1 64M\nwest 7100 1 64M\n")
    assert shared.local_daemon(shared.config(), 0).address == "west"


def test_two_names_of_one_machine_are_refused(tmp_path: Path, server: NameServer) -> None:
    """R1: with the number, and the line."""
    server.known = {"east": ["10.1.0.1"], "also-east": ["10.1.0.1"]}
    with pytest.raises(DaemonConfigError, match=r":2: address 'also-east' \(10.1.0.1\) and port 7100"):
        directory(tmp_path, "east 7100 1 64M\nalso-east 7100 2 64M\n").config()


def test_answers_are_kept_and_outlive_the_name_server(server: NameServer) -> None:
    """R1: a minute; afterwards the last answer counts as long as none comes, and an unknown name is asked again soon."""
    server.known = {"east": ["10.1.0.1"]}
    for _ in range(3):
        assert server.names.numbers("east") == {"10.1.0.1"}
        assert server.names.numbers("unknown") == frozenset()
    assert server.asked == 2
    server.is_away, server.now_s = True, NAME_KEPT_S + 1
    assert server.names.numbers("east") == {"10.1.0.1"}
    server.is_away, server.known["east"] = False, ["10.1.0.9"]
    server.now_s += UNKNOWN_KEPT_S + 1
    assert server.names.numbers("east") == {"10.1.0.9"}
