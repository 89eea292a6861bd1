"""The background thread of a source or a client: hand-over, outbox, housekeeping (C9, C13)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class _Task:
    run: Callable[[], object]
    every_s: float
    due_s: float


class BackgroundThread:
    """Runs tasks at intervals in one daemon thread, which the first task starts. `check` raises the first error of a task
    to the user; the thread continues with the other tasks."""

    def __init__(self, name: str) -> None:
        self._tasks: list[_Task] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, name=f"jmsq-background {name}", daemon=True)

    def add(self, run: Callable[[], object], every_s: float) -> None:
        with self._lock:
            self._tasks.append(_Task(run, every_s, time.monotonic() + every_s))
            if not self._thread.is_alive() and not self._stop.is_set():
                self._thread.start()

    def remove(self, run: Callable[[], object]) -> None:
        with self._lock:
            self._tasks = [task for task in self._tasks if task.run != run]

    def check(self) -> None:
        """Raise a task's error, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    def _loop(self) -> None:
        while not self._stop.wait(0.05):
            now = time.monotonic()
            with self._lock:
                due = [task for task in self._tasks if task.due_s <= now]
            for task in due:
                task.due_s = now + task.every_s
                try:
                    task.run()
                except Exception as error:  # noqa: BLE001 - check() raises it
                    if self._error is None:
                        self._error = error
