"""The background thread of a source or a client: hand-over, outbox, housekeeping.

A failed task is a statistic, a log line and a growing pause (`core/health.py`). Two tasks endanger a promise when they
fail, so their errors also reach the application, once for each series of failures:

    task                                       its error reaches
    ----                                       -----------------
    hand-over, overdue acknowledgements        the next call of its consumer; the next plan of its query
    writing the acknowledgement table          the same, once the table could not be written for a minute
    the limit of a subscription                the log and the statistics; each plan applies the limit too
    housekeeping, the life-cycle log           the log, the statistics and `jmsq stat` alone

Features: C9, C13 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from spark_jms.core.health import Health
from spark_jms.log.monitor import Monitor

TABLE_EVERY_S = 1.0
ROOM_EVERY_S = 1.0
HAND_OVER_LONGEST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0
TABLE_RAISES_AFTER_S = 60.0


@dataclass(eq=False)
class _Task:
    what: str
    run: Callable[[], object]
    every_s: float
    due_s: float
    longest_pause_s: float
    raises_after_s: float | None
    owner: str
    failing_since_s: float | None = None
    raised_for_s: float | None = None  # the beginning of the series whose error was kept for check()
    failures: int = 0


class BackgroundThread:
    """Runs tasks at intervals in one daemon thread, which the first task starts."""

    def __init__(self, name: str, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._tasks: list[_Task] = []
        self._unreported: dict[_Task, Exception] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._clock_s = clock_s
        self._monitor = Monitor(name)
        self._thread = threading.Thread(target=self._loop, name=f"jmsq-background {name}", daemon=True)

    def add(
        self,
        what: str,
        run: Callable[[], object],
        every_s: float,
        *,
        longest_pause_s: float = LONGEST_PAUSE_S,
        raises_after_s: float | None = None,
        owner: str = "",
    ) -> None:
        """`check(owner)` raises an error of this task when the task has failed for `raises_after_s` (None: never)."""
        task = _Task(
            what,
            run,
            every_s,
            self._clock_s() + every_s,
            max(longest_pause_s, every_s),
            raises_after_s,
            owner,
        )
        with self._lock:
            self._tasks.append(task)
            if not self._thread.is_alive() and not self._stop.is_set():
                self._thread.start()

    def add_consumer(
        self,
        name: str,
        hand_over: Callable[[], object],
        every_s: float,
        flush_outbox: Callable[[], object],
        make_room: Callable[[], object],
        flush_life_cycle: Callable[[], object],
    ) -> None:
        """The tasks of a consumer. `check(name)` raises their errors as the table above says."""
        self.add(
            f"hand-over of {name}",
            hand_over,
            every_s,
            longest_pause_s=HAND_OVER_LONGEST_PAUSE_S,
            raises_after_s=0.0,
            owner=name,
        )
        self.add(
            f"acknowledgement table of {name}",
            flush_outbox,
            TABLE_EVERY_S,
            raises_after_s=TABLE_RAISES_AFTER_S,
            owner=name,
        )
        self.add(f"limit of the subscription of {name}", make_room, ROOM_EVERY_S, owner=name)
        self.add(f"life-cycle log of {name}", flush_life_cycle, TABLE_EVERY_S)

    def remove(self, run: Callable[[], object]) -> None:
        with self._lock:
            for task in [task for task in self._tasks if task.run == run]:
                self._tasks.remove(task)
                self._unreported.pop(task, None)
                self._monitor.forget([task.what])

    def check(self, owner: str = "") -> None:
        """Raise the error of a task of `owner` that still fails, once for each series of failures."""
        if not self._unreported:  # as nearly always: clients ask twice for each message
            return
        with self._lock:
            task = next((task for task in self._unreported if task.owner == owner), None)
            error = self._unreported.pop(task) if task is not None else None
        if error is not None:
            raise error

    @property
    def health(self) -> Health:
        return self._monitor.health

    def close(self) -> None:
        self._stop.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    def tick(self) -> None:
        """Run the tasks that are due."""
        now = self._clock_s()
        with self._lock:
            due = [task for task in self._tasks if task.due_s <= now]
        for task in due:
            try:
                task.run()
            except Exception as error:  # noqa: BLE001 - the monitor logs it, and check() may raise it
                self._failed(task, error, now)
            else:
                task.due_s = now + task.every_s
                if task.failures:
                    with self._lock:
                        task.failures, task.failing_since_s = 0, None
                        self._unreported.pop(task, None)
                    self._monitor.succeeded(task.what)

    def _failed(self, task: _Task, error: Exception, now: float) -> None:
        with self._lock:
            if task not in self._tasks:
                return  # removed meanwhile
            before = task.failing_since_s
            task.failures += 1
            since = now if before is None else before
            task.failing_since_s = since
            after = task.raises_after_s
            if after is not None and now - since >= after and task.raised_for_s != since:
                task.raised_for_s, self._unreported[task] = since, error
            task.due_s = now + min(task.longest_pause_s, task.every_s * 2 ** min(task.failures, 20))
        self._monitor.failed(task.what, error, int(task.every_s * 2000), int(task.longest_pause_s * 1000))

    def _loop(self) -> None:
        while not self._stop.wait(0.05):
            self.tick()
