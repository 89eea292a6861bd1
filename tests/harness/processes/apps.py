"""Spark applications as child processes. Each is one process session, and keeps all its files in one directory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.harness.processes.crash import PLUGIN
from tests.harness.project import PROGRAMS, PROJECT

_POLL_S = 0.05


class TooLateError(AssertionError):
    """A condition did not become true within its time limit."""


def until(
    what: str, condition: Callable[[], Any], timeout_s: float, *, or_fail: Callable[[], None] = lambda: None
) -> Any:
    """Poll until the condition is true and return its value. `or_fail` raises once waiting is pointless."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        or_fail()
        if time.monotonic() > deadline:
            raise TooLateError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(_POLL_S)


class App:
    """One child application: driver, JVM and Python workers form one process session."""

    def __init__(
        self,
        directory: Path,
        streams: dict[str, Any],
        *,
        crash: Path | None = None,
        tune: dict[str, Any] | None = None,
        restart: bool = True,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        config = {"name": directory.name, "directory": str(directory), "streams": streams, "restart": restart}
        (directory / "config.json").write_text(json.dumps(config, indent=1))
        self._crash, self._tune = crash, tune
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    def start(self) -> App:
        (self.directory / "stop").unlink(missing_ok=True)
        self.starts += 1
        environment = {
            **os.environ,
            "PYTHONPATH": f"{PLUGIN}:{PROJECT}",
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONUNBUFFERED": "1",
            "SPARK_LOCAL_DIRS": str(self.directory / "spark"),
            "JMSQ_CRASH_DIR": str(self._crash or ""),
            "JMSQ_TUNE": json.dumps(self._tune or {}),
        }
        command = [sys.executable, str(PROGRAMS / "spark_app.py"), str(self.directory / "config.json")]
        with open(self.directory / f"output-{self.starts}.log", "wb") as output:
            self._process = subprocess.Popen(
                command, env=environment, cwd=self.directory, stdout=output, stderr=output, start_new_session=True
            )
        return self

    # -- observing ------------------------------------------------------------------------------------------------
    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def started(self) -> bool:
        return self._process is not None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def processes(self) -> list[psutil.Process]:
        """All processes of this start, including orphans."""
        if self._process is None:
            return []
        out = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.pid:
                    out.append(process)
            except (ProcessLookupError, PermissionError):
                continue
        return out

    def events(self, what: str | None = None, query: str | None = None) -> list[dict[str, Any]]:
        try:
            lines = (self.directory / "events.jsonl").read_text().splitlines()
        except FileNotFoundError:
            return []
        found = [json.loads(line) for line in lines]
        return [e for e in found if what in (None, e["event"]) and query in (None, e["query"])]

    def tail(self, lines: int = 40) -> str:
        log = self.directory / f"output-{self.starts}.log"
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""

    def check_alive(self) -> None:
        assert self.alive, f"application {self.directory.name} ended unexpectedly:\n{self.tail()}"

    # -- controlling ----------------------------------------------------------------------------------------------
    def restart_query(self, name: str) -> None:
        (self.directory / f"restart-{name}").touch()

    def kill(self) -> None:
        """kill -9 the driver: its Python process and its JVM. The Python workers notice and end."""
        drivers = [p for p in self.processes() if p.pid == self.pid or _name(p) == "java"]
        for process in drivers:
            _signal(process.pid, signal.SIGKILL)
        self.reap()

    def reap(self) -> None:
        """Wait for a driver that is dead or dying."""
        assert self._process is not None
        self._process.wait(timeout=30)

    def freeze(self) -> None:
        """Send SIGSTOP to every process, until no new one appears."""
        stopped: set[int] = set()
        while fresh := {p.pid for p in self.processes()} - stopped:
            for pid in fresh:
                _signal(pid, signal.SIGSTOP)
            stopped |= fresh

    def thaw(self) -> None:
        for process in self.processes():
            _signal(process.pid, signal.SIGCONT)

    def stop(self, timeout_s: float = 60.0) -> None:
        """Stop cleanly: the application stops its queries and closes its session."""
        if self.alive:
            (self.directory / "stop").touch()
            assert self._process is not None
            code = self._process.wait(timeout=timeout_s)
            assert code == 0, f"application {self.directory.name} ended with {code}:\n{self.tail()}"

    def sweep(self) -> None:
        """Kill every remaining process."""
        for process in self.processes():
            _signal(process.pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait(timeout=30)


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


@contextmanager
def running(*apps: App) -> Iterator[None]:
    """Run the applications during the block; afterwards none of their processes is left."""
    try:
        for app in apps:
            app.start()
        yield
    finally:
        for app in apps:
            app.sweep()
