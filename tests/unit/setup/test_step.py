"""What set-up shows: one line a step; what its commands print is in a log that a failed step names."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jms.setup import step as step_module
from spark_jms.setup.__main__ import main
from spark_jms.setup.machine import DeltaJarsMissingError, DeltaJarsResolveError, PostgresqlNotFoundError
from spark_jms.setup.step import Countable, output_to, step
from tests.harness.project import PROJECT

SCRIPT = Path(step_module.__file__)
VENV = PROJECT / "spark_jms" / "setup" / "venv.sh"
NOISE = "echo to the screen; echo NOTE: Picked up JDK_JAVA_OPTIONS >&2"


def shown(*arguments: str) -> subprocess.CompletedProcess[str]:
    """By a Python without any package, as the first step of all."""
    command = [sys.executable, "-I", "-S", str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_step_is_one_line_with_its_time(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "noisy.log"
    done = shown("A noisy step", str(log), "--", "bash", "-c", NOISE)
    assert done.returncode == 0
    assert re.fullmatch(r"== A noisy step +\d+ s\n", done.stdout)
    assert done.stderr == ""
    assert log.read_text() == "to the screen\nNOTE: Picked up JDK_JAVA_OPTIONS\n"


def test_a_failed_step_shows_the_end_of_its_log_and_names_it(tmp_path: Path) -> None:
    log = tmp_path / "failed.log"
    done = shown("A step", str(log), "--", "bash", "-c", "seq 1 40; printf %0300d 0; echo; echo no network >&2; exit 7")
    assert done.returncode == 7
    title, *rest = done.stdout.splitlines()
    assert re.fullmatch(r"== A step +\d+ s  failed", title)
    assert rest == [
        *(f"   {n}" for n in range(31, 41)),
        f"   {'0' * 160}",
        "   no network",
        f"   All that the step printed: {log}",
    ]


def test_a_step_whose_command_is_missing_fails_by_name(tmp_path: Path) -> None:
    done = shown("A step", str(tmp_path / "log"), "--", "no-such-command")
    assert done.returncode == 1
    assert "No such file or directory: 'no-such-command'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_step_begins_with_an_empty_log(tmp_path: Path) -> None:
    """The log is of the last try."""
    for said in ("first", "second"):
        shown("A step", str(tmp_path / "log"), "--", "echo", said)
    assert (tmp_path / "log").read_text() == "second\n"


def test_a_terminal_shows_a_bar_that_grows(tmp_path: Path) -> None:
    go = tmp_path / "go"
    os.mkfifo(go)
    program = f"echo part 1; echo part 2; cat {go}; echo part 3; echo part 4"
    mine, theirs = pty.openpty()
    arguments = ["A long step", str(tmp_path / "log"), "--count", "^part", "--of", "4", "--", "bash", "-c", program]
    child = subprocess.Popen([sys.executable, "-I", "-S", str(SCRIPT), *arguments], stdout=theirs, stderr=theirs)
    os.close(theirs)
    half = f"[{'#' * 10}{'.' * 10}]"
    printed = b""
    while half not in printed.decode():
        printed += os.read(mine, 4096)
    go.write_text("")  # as soon as the program reads it
    assert child.wait(30) == 0
    while True:
        try:
            printed += os.read(mine, 4096)
        except OSError:  # the terminal's other side is closed
            break
    os.close(mine)
    lines = [line for line in re.split(r"[\r\n]+(?:\x1b\[K)?", printed.decode()) if line]
    assert all(line.startswith("== A long step") and len(line) < 80 for line in lines)
    assert re.fullmatch(r"== A long step +\d+ s", lines[-1])


@pytest.mark.parametrize(
    ("log", "done"), [("", 0.0), ("x\nfound a\n", 0.25), ("found a\nfound b\n", 0.5), ("found a\n" * 9, 1.0)]
)
def test_a_bar_counts_lines_of_the_log(log: str, done: float) -> None:
    assert Countable("^found", 4).done(log) == done


def test_a_step_in_this_process_takes_what_its_children_print(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"
    with step("A step", log):
        subprocess.run(["bash", "-c", NOISE], check=True)
    printed = capfd.readouterr()
    assert re.fullmatch(r"== A step +\d+ s\n", printed.out)
    assert printed.err == ""
    assert "to the screen\nNOTE: Picked up JDK_JAVA_OPTIONS\n" in log.read_text()


def test_output_to_gives_the_screen_back(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with output_to(tmp_path / "log", (2,)):
        os.write(1, b"seen\n")
        os.write(2, b"hidden\n")
    os.write(2, b"seen again\n")
    assert capfd.readouterr() == ("seen\n", "seen again\n")
    assert (tmp_path / "log").read_text() == "hidden\n"


# -- the steps ---------------------------------------------------------------------------------------------------------
def test_jars_that_cannot_be_fetched_name_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ivy's lines are in the log, the reason is on the screen."""

    def nothing(verify: bool = False) -> list[str]:
        raise DeltaJarsMissingError

    def refuse(scratch: Path, log: Path) -> list[Path]:
        log.write_text(":: resolving dependencies ::\n")
        raise DeltaJarsResolveError("Ivy could not fetch it")

    monkeypatch.setenv("JMSQ_CACHE", str(tmp_path))
    monkeypatch.setattr("spark_jms.setup.__main__.delta_jars", nothing)
    monkeypatch.setattr("spark_jms.setup.__main__.resolve_by_ivy", refuse)
    assert main(["jars"]) == 1
    printed = capfd.readouterr()
    assert "== Delta's jars" in printed.out
    assert f"All that the step printed: {tmp_path / 'logs' / 'jars.log'}" in printed.out
    assert "DeltaJarsResolveError: Ivy could not fetch it" in printed.err


def test_a_complete_cache_of_jars_is_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JMSQ_CACHE", str(tmp_path))
    monkeypatch.setattr("spark_jms.setup.__main__.delta_jars", lambda verify=False: ["a.jar"])
    assert main(["jars"]) == 0
    assert capfd.readouterr() == ("", "")


def test_postgresql_that_cannot_be_installed_is_said_in_one_message(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Set-up continues."""

    def nothing() -> Path:
        raise PostgresqlNotFoundError("none\nRun: apt-get install")

    monkeypatch.setattr("spark_jms.setup.__main__.find_postgresql", nothing)
    monkeypatch.setattr("spark_jms.setup.__main__.can_install", lambda: False)
    assert main(["postgresql", "--install"]) == 0
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "will be skipped: none\nRun: apt-get install" in printed.err


def fake_python(directory: Path, version: str, works: bool) -> Path:
    """A `python3` that runs what the real one does, but for its version and its `-m venv`."""
    python = directory / "python3"
    python.write_text(
        f"""#!/usr/bin/env bash
case "$1 ${{2:-}}" in
    "-c "*) exit {0 if works else 1} ;;
    "--version "*) echo "Python {version}" ;;
    "-m venv") echo "making it"; mkdir -p "$3" ;;
    *) exec "{sys.executable}" "$@" ;;
esac
"""
    )
    python.chmod(0o755)
    return python


def test_the_first_step_makes_the_virtual_environment(tmp_path: Path) -> None:
    python, log = fake_python(tmp_path, "3.12.1", works=True), tmp_path / "venv.log"
    command = ["bash", str(VENV), str(python), str(tmp_path / "made"), str(log)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert re.fullmatch(rf"== Virtual environment {tmp_path / 'made'} \(Python 3\.12\.1\) +\d+ s\n", done.stdout)
    assert (tmp_path / "made").is_dir()
    assert log.read_text() == "making it\n"


def test_the_first_step_names_a_python_that_is_too_old(tmp_path: Path) -> None:
    python = fake_python(tmp_path, "3.8.10", works=False)
    command = ["bash", str(VENV), str(python), str(tmp_path / "made"), str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "needs Python 3.10 or newer" in done.stderr
    assert "(found: Python 3.8.10)" in done.stderr
    assert not (tmp_path / "made").exists()


def test_no_recipe_of_set_up_prints_beside_its_step() -> None:
    """Pip, apt-get and the archive of classes run as steps."""
    recipes = (PROJECT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    noisy = [
        line
        for line in recipes.splitlines()
        if line.startswith("\t") and re.search(r"PIP_INSTALL|apt-get|class_archive", line)
    ]
    assert len(noisy) == 6
    assert all("$(STEP)" in line for line in noisy)
