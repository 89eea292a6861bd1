"""Finding a PostgreSQL server for the tests of the JDBC store, or installing Debian's (S7)."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jms.setup import machine
from spark_jms.setup.machine import PostgresqlInstallError, PostgresqlNotFoundError


def server(place: Path, programs: tuple[str, ...] = machine.PROGRAMS) -> Path:
    place.mkdir(parents=True)
    for program in programs:
        (place / program).touch(mode=0o755)
    return place


@pytest.fixture(autouse=True)
def nothing_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_: None)


def test_the_newest_whole_one_is_taken(tmp_path: Path) -> None:
    """S7"""
    server(tmp_path / "9" / "bin")
    newest = server(tmp_path / "15" / "bin")
    server(tmp_path / "17" / "bin", ("postgres",))
    assert machine.find_postgresql([str(tmp_path / "*" / "bin")]) == newest


def test_none_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(PostgresqlNotFoundError, match="Run: "):
        machine.find_postgresql([str(tmp_path / "*")])

    def which(name: str) -> str | None:
        return "/usr/bin/apt-get" if name == "apt-get" else None

    assert "--no-install-recommends postgresql" in machine.postgresql_command("linux", which)


def test_only_this_package_is_installed_and_nothing_upgraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S7: Java, above all, stays as it is."""
    monkeypatch.setattr(machine, "can_install", lambda: True)
    asked: list[list[str]] = []

    def run(command: list[str]) -> int:
        asked.append(command)
        if "install" in command:
            server(tmp_path / "15" / "bin")
        return 0

    places = [str(tmp_path / "*" / "bin")]
    assert machine.install_postgresql(run, places) == tmp_path / "15" / "bin"
    assert asked[1][1:] == ["install", "-y", "-qq", "--no-upgrade", "--no-install-recommends", "postgresql"]
    assert machine.install_postgresql(run, places) == tmp_path / "15" / "bin"
    assert len(asked) == 2
    with pytest.raises(PostgresqlInstallError):
        machine.install_postgresql(lambda command: 1, [str(tmp_path / "none")])


def test_who_may_not_install_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "can_install", lambda: False)
    with pytest.raises(PostgresqlNotFoundError):
        machine.install_postgresql(lambda command: 0, [str(tmp_path / "none")])
