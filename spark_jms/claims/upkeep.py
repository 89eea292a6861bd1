"""What goes on beside a running source or client: hand-over at least 4 times a second, outbox once a second, and the
domain's housekeeping. One daemon thread; its first error is raised to the user at the next call (nothing is swallowed)."""

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


class Upkeep:
    def __init__(self, name: str) -> None:
        self._tasks: list[_Task] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._loop, name=f"jmsq-upkeep {name}", daemon=True)

    def add(self, run: Callable[[], object], every_s: float) -> None:
        with self._lock:
            self._tasks.append(_Task(run, every_s, time.monotonic() + every_s))
            if not self._thread.is_alive() and not self._stop.is_set():
                self._thread.start()

    def remove(self, run: Callable[[], object]) -> None:
        with self._lock:
            self._tasks = [task for task in self._tasks if task.run != run]

    def check(self) -> None:
        """Raise what went wrong in the background, once."""
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
                except Exception as error:  # noqa: BLE001 - kept for check(); the thread goes on with the other tasks
                    if self._error is None:
                        self._error = error
