"""Spark applications as children: started, watched, killed and stopped by process session; everything in one folder."""

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

from tests.process.crash import PLUGIN

PROJECT = Path(__file__).parents[2]
_POLL_S = 0.05


class TooLateError(AssertionError):
    """Something did not happen within its deadline."""


def until(what: str, asked: Callable[[], Any], timeout_s: float, *, or_fail: Callable[[], None] = lambda: None) -> Any:
    """The first true answer. `or_fail` is asked as well and raises when waiting has become pointless."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = asked()
        if answer:
            return answer
        or_fail()
        if time.monotonic() > deadline:
            raise TooLateError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(_POLL_S)


class App:
    """One child application: its driver, its JVM and its Python workers are one process session."""

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
        command = [sys.executable, str(Path(__file__).with_name("spark_app.py")), str(self.directory / "config.json")]
        with open(self.directory / f"output-{self.starts}.log", "wb") as output:
            self._process = subprocess.Popen(
                command, env=environment, cwd=self.directory, stdout=output, stderr=output, start_new_session=True
            )
        return self

    # -- looking --------------------------------------------------------------------------------------------------
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
        """All that belong to this start, also those whose parent is gone."""
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
        assert self.alive, f"application {self.directory.name} ended by itself:\n{self.tail()}"

    # -- doing ----------------------------------------------------------------------------------------------------
    def restart_query(self, name: str) -> None:
        (self.directory / f"restart-{name}").touch()

    def kill(self) -> None:
        """kill -9 of the driver: its Python process and its JVM. The Python workers notice by themselves."""
        drivers = [p for p in self.processes() if p.pid == self.pid or _name(p) == "java"]
        for process in drivers:
            _signal(process.pid, signal.SIGKILL)
        self.reap()

    def reap(self) -> None:
        """The driver is dead or dying: collect it."""
        assert self._process is not None
        self._process.wait(timeout=30)

    def freeze(self) -> None:
        """SIGSTOP to all of it, until nothing new appears."""
        stopped: set[int] = set()
        while fresh := {p.pid for p in self.processes()} - stopped:
            for pid in fresh:
                _signal(pid, signal.SIGSTOP)
            stopped |= fresh

    def thaw(self) -> None:
        for process in self.processes():
            _signal(process.pid, signal.SIGCONT)

    def stop(self, timeout_s: float = 60.0) -> None:
        """In good order: queries stopped, session closed."""
        if self.alive:
            (self.directory / "stop").touch()
            assert self._process is not None
            code = self._process.wait(timeout=timeout_s)
            assert code == 0, f"application {self.directory.name} ended with {code}:\n{self.tail()}"

    def sweep(self) -> None:
        """Nothing of it is left, whatever state it is in."""
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
    """Starts them; whatever happens, none of their processes is left."""
    try:
        for app in apps:
            app.start()
        yield
    finally:
        for app in apps:
            app.sweep()
