"""A receiver as a child process: started, observed, killed, and always ended at the end."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from spark_jms.demo.errors import DemoError
from spark_jms.demo.received import Received, ReceivedBatch

READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0


class ReceiverProcess:
    """One receiver's process and its reports. Thread-safe to read; a thread of its own fills it."""

    def __init__(self, name: str, work: Path, batch: int, master: str) -> None:
        self.name, self._work, self._batch, self._master = name, work, batch, master
        self.log = work / "logs" / f"receiver-{name}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.received = Received()
        self.pids: list[int] = []
        self._events: queue.Queue[str] = queue.Queue()
        self._process: subprocess.Popen[str] | None = None
        self._expected_end = False

    def start(self) -> None:
        """Start it in a session of its own: Ctrl-C reaches only the demo, and the session finds every process the driver starts."""
        command = [
            sys.executable,
            "-m",
            "spark_jms.demo.receiver",
            "--name",
            self.name,
            "--work",
            str(self._work),
            "--batch",
            str(self._batch),
            "--master",
            self._master,
        ]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            )
        self._expected_end = False
        self._events = queue.Queue()
        self.pids.append(self._process.pid)
        assert self._process.stdout is not None
        threading.Thread(target=self._listen, args=(self._process.stdout, self._events), daemon=True).start()

    def _listen(self, source: IO[str], events: queue.Queue[str]) -> None:
        for line in source:
            told = json.loads(line)
            event = told.pop("event")
            if event == "batch":
                self.received.add(ReceivedBatch(**told))
            else:
                events.put(event)
        events.put("ended")

    def check(self) -> None:
        """Raises DemoError if the process has ended by itself."""
        if self._process is not None and self._process.poll() is not None and not self._expected_end:
            raise DemoError(
                f"receiver {self.name} ended by itself with code {self._process.returncode}:\n{self._tail()}"
            )

    def wait_until(self, event: str, timeout_s: float, meanwhile: Callable[[], None]) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            meanwhile()
            try:
                told = self._events.get(timeout=0.2)
            except queue.Empty:
                continue
            if told == event:
                return
            if told == "ended":
                raise DemoError(f"receiver {self.name} ended before it was {event}:\n{self._tail()}")
        raise DemoError(f"receiver {self.name} was not {event} within {timeout_s:.0f} s:\n{self._tail()}")

    def receive_subscription(self, name: str) -> None:
        """Let it receive what waits for a subscription of the topic; then it reports the event `name`."""
        self._order(name)

    def go(self) -> None:
        self._order("go")

    def stop(self) -> None:
        self._expected_end = True
        self._order("stop")

    def _order(self, order: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{order}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise DemoError(f"receiver {self.name} has ended:\n{self._tail()}") from None

    def kill_9(self) -> None:
        """Kill the driver, Python and JVM at once: no process remains that could clean up."""
        assert self._process is not None
        self._expected_end = True
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def clean_up(self) -> None:
        """End every process that the receiver started, in whatever state it is."""
        self._expected_end = True
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for leader in self.pids:
            end_session(leader)

    def _tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def end_session(leader: int) -> None:
    """End all processes of the session that this process began, which may have ended itself."""
    _kill([process.pid for process in _running() if process.session == leader])


def end_descendants() -> None:
    """End all descendants of this process, including a JVM whose launch was interrupted."""
    running = _running()
    family = {os.getpid()}
    while grown := {process.pid for process in running if process.parent in family} - family:
        family |= grown
    _kill(sorted(family - {os.getpid()}))


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    session: int


def _running() -> list[_Process]:
    """Read from /proc (elsewhere empty; then only the receiver's process group is ended). The receiver's session is
    used and not its group, because Spark's Python workers leave the group."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if state != "Z":
            found.append(_Process(int(entry.name), int(parent), int(session)))
    return found


def _kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
