"""Repeated attempts, bounded by time, with a log line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from spark_jms.store.engine.persistence import Clock
from spark_jms.store.engine.server import monotonic_ms

LOG_EVERY_MS = 10_000.0


@dataclass(frozen=True)
class Clocks:
    now_ms: Clock = monotonic_ms
    sleep_ms: Callable[[float], None] = lambda ms: time.sleep(ms / 1000.0)


class RetryLimit:
    """Measures the time since `start`, or since the first failure of a row of failures; `reset` ends the row."""

    def __init__(self, clocks: Clocks, limit_s: float, interval_ms: float) -> None:
        self.limit_s = limit_s
        self._clocks = clocks
        self._interval_ms = min(interval_ms, limit_s * 1000)
        self._since_ms: float | None = None
        self._logged_ms = -LOG_EVERY_MS

    def start(self) -> None:
        """Counts the first attempt, too, which a database that hangs makes long."""
        self._since_ms = self._clocks.now_ms()

    def waited_s(self) -> float:
        now_ms = self._clocks.now_ms()
        if self._since_ms is None:
            self._since_ms = now_ms
        return (now_ms - self._since_ms) / 1000

    def is_over(self) -> bool:
        return self.waited_s() >= self.limit_s

    def is_log_due(self) -> bool:
        """True once every LOG_EVERY_MS."""
        now_ms = self._clocks.now_ms()
        due = now_ms - self._logged_ms >= LOG_EVERY_MS
        if due:
            self._logged_ms = now_ms
        return due

    def pause(self) -> None:
        self._clocks.sleep_ms(self._interval_ms)

    def reset(self) -> None:
        self._since_ms = None
