from __future__ import annotations

from pathlib import Path

import pytest

from spark_jms.setup import machine as java_module
from spark_jms.setup.__main__ import main
from spark_jms.setup.machine import (
    DEBIAN_PACKAGES,
    JavaInstallError,
    JavaNotFoundError,
    command_to_run,
    find_java,
    install_java,
    look_at,
    major_of,
)

NOTHING: tuple[str, ...] = ()


def make_java(home: Path, version: str = "17.0.15", modules: str | None = "java.base jdk.incubator.vector") -> Path:
    (home / "bin").mkdir(parents=True)
    binary = home / "bin" / "java"
    binary.write_text("#!/bin/sh\nexit 1\n")
    binary.chmod(0o755)
    lines = ['IMPLEMENTOR="Test"', f'JAVA_VERSION="{version}"']
    if modules is not None:
        lines.append(f'MODULES="{modules}"')
    (home / "release").write_text("\n".join(lines) + "\n")
    return home


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.15", 17), ("25", 25), ("21-ea", 21), ("1.8.0_402", 8), ("11.0.2", 11), ("", 0), ("unknown", 0)],
)
def test_major_of(version: str, major: int) -> None:
    assert major_of(version) == major


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    named, on_path = make_java(tmp_path / "named"), make_java(tmp_path / "on_path", "25.0.3")
    environment = {"JAVA_HOME": str(named), "PATH": str(on_path / "bin")}
    assert find_java(environment, NOTHING).home == named
    assert find_java({"PATH": str(on_path / "bin")}, NOTHING).home == on_path


def test_a_link_on_the_path_leads_to_its_home(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jvm" / "java-17")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    found = find_java({"PATH": str(tmp_path / "bin")}, NOTHING)
    assert (found.home, found.origin, found.major) == (home, "PATH", 17)


def test_an_old_java_home_is_passed_over(tmp_path: Path) -> None:
    old, good = make_java(tmp_path / "old", "11.0.2"), make_java(tmp_path / "usual" / "good", "21.0.1")
    assert find_java({"JAVA_HOME": str(old), "PATH": ""}, [str(tmp_path / "usual" / "*")]).home == good


def test_the_usual_places_give_the_version_tried_longest(tmp_path: Path) -> None:
    for name, version in (("a", "26"), ("b", "25.0.3"), ("c", "21.0.1"), ("d", "1.8.0_402")):
        make_java(tmp_path / name, version)
    assert find_java({"PATH": ""}, [str(tmp_path / "*")]).version == "21.0.1"


def test_a_java_newer_than_tried_is_taken_when_alone(tmp_path: Path) -> None:
    make_java(tmp_path / "a", "31.0.1")
    assert find_java({"PATH": ""}, [str(tmp_path / "*")]).major == 31


def test_none_found_names_what_was_looked_at_and_the_command(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "1.8.0_402")
    small = make_java(tmp_path / "small", "25.0.3", modules="java.base java.sql")
    environment = {"JAVA_HOME": str(old), "PATH": str(small / "bin")}
    with pytest.raises(JavaNotFoundError) as caught:
        find_java(environment, NOTHING)
    message = str(caught.value)
    assert f"{old} (JAVA_HOME) is Java 1.8.0_402, older than 17" in message
    assert f"{small} (PATH) lacks the module jdk.incubator.vector" in message
    assert f"Run: {command_to_run()}" in message


def test_a_java_home_that_is_no_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME is .*nowhere"):
        find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""}, NOTHING)


def test_without_a_release_file_java_itself_is_asked(tmp_path: Path) -> None:
    home = make_java(tmp_path / "plain")
    (home / "release").unlink()
    assert look_at(home, "found") is None  # it does not answer
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"21.0.4\" 2024-07-16' >&2\n")
    java = look_at(home, "found")
    assert java is not None
    assert (java.version, java.modules, java.unfit_because()) == ("21.0.4", None, None)


def test_install_tries_one_package_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_module, "can_install", lambda: True)
    ran: list[list[str]] = []

    def run(command: list[str]) -> int:
        ran.append(command)
        if command[-1] == DEBIAN_PACKAGES[1]:
            make_java(tmp_path / "jvm", "21.0.4")
            return 0
        return 100

    java = install_java(run, {"PATH": ""}, [str(tmp_path / "*")])
    assert java.major == 21
    assert [command[-1] for command in ran] == ["-qq", *DEBIAN_PACKAGES[:2]]


def test_a_java_that_fits_is_never_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """apt-get install upgrades what is installed, under the processes that run on it."""
    monkeypatch.setattr(java_module, "can_install", lambda: True)
    home = make_java(tmp_path / "jdk")
    found = install_java(lambda command: pytest.fail("nothing may run"), {"JAVA_HOME": str(home), "PATH": ""}, NOTHING)
    assert found.home == home


def test_install_never_upgrades(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_module, "can_install", lambda: True)
    ran: list[list[str]] = []
    with pytest.raises(JavaInstallError):
        install_java(lambda command: ran.append(command) or 100, {"PATH": ""}, NOTHING)
    assert all("--no-upgrade" in command for command in ran if "install" in command)


def test_install_that_fails_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_module, "can_install", lambda: True)
    with pytest.raises(JavaInstallError, match="Run: "):
        install_java(lambda command: 100, {"PATH": ""}, NOTHING)


def test_where_nothing_can_be_installed_the_command_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_module, "can_install", lambda: False)
    with pytest.raises(JavaNotFoundError, match="Run: "):
        install_java(lambda command: pytest.fail("nothing may run"), {"PATH": ""}, NOTHING)


@pytest.mark.parametrize(
    ("platform", "tool", "command"),
    [
        ("darwin", None, "brew install openjdk@17"),
        ("linux", "apt-get", "sudo apt-get update && sudo apt-get install -y openjdk-17-jre-headless"),
        ("linux", "dnf", "sudo dnf install -y java-17-openjdk-headless"),
        ("linux", None, "export JAVA_HOME=/path/to/java (17 or newer)"),
    ],
)
def test_command_to_run(platform: str, tool: str | None, command: str) -> None:
    assert command_to_run(platform, lambda name: f"/bin/{name}" if name == tool else None) == command


def test_the_command_writes_the_home_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, file = make_java(tmp_path / "jdk", "25.0.3"), tmp_path / "cache" / "java-home"
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert main(["java", "--write", str(file)]) == 0
    assert file.read_text() == f"{home}\n"
    assert "Java 25.0.3" in capsys.readouterr().out
    assert main(["java", "--write", str(file)]) == 0
    assert capsys.readouterr().out == ""
    assert main(["java"]) == 0
    assert capsys.readouterr().out == f"{home}\n"


def test_the_command_fails_by_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def nothing() -> None:
        raise JavaNotFoundError

    monkeypatch.setattr("spark_jms.setup.__main__.find_java", nothing)
    assert main(["java"]) == 1
    assert "JavaNotFoundError" in capsys.readouterr().err
