"""The log lines about a daemon's memory: one for each 10 % that its use passes, up or down. Pure.

Increment k is reached at exactly k * 10 %. A line is WARNING when the use is 80 % or more, and INFO below. At trace levels
below 3 no line is logged, but the passed increments are remembered.

Features: R5 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

INCREMENT_PERCENT = 10
WARNING_PERCENT = 80
TRACE_LEVEL = 3  # the lowest that logs utilization


class Level(IntEnum):
    """The numbers are those of the logging module."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True)
class LogLine:
    """A line for the caller to log."""

    level: Level
    text: str


def percent_text(used: int, total: int) -> str:
    """Two decimal places, as `storeadmin lsd` shows it."""
    return f"{used * 100 / total:.2f}" if total else "0.00"


class UtilizationLog:
    """Is fed the daemon's memory use at every change, and yields the lines that are due."""

    def __init__(self, limit_bytes: int, trace_level: int) -> None:
        if limit_bytes < 1:
            raise ValueError(f"a limit of {limit_bytes} bytes")
        self._limit_bytes = limit_bytes
        self._speaks = trace_level >= TRACE_LEVEL
        self._increments = 0

    def feed(self, used_bytes: int) -> Iterator[LogLine]:
        """The passed increments are remembered even when the caller does not read the lines."""
        before, now = self._increments, used_bytes * 100 // (self._limit_bytes * INCREMENT_PERCENT)
        self._increments = now
        return self._lines(before, now, used_bytes) if self._speaks else iter(())

    def _lines(self, before: int, now: int, used_bytes: int) -> Iterator[LogLine]:
        warns = used_bytes * 100 >= self._limit_bytes * WARNING_PERCENT
        usage = f"{used_bytes >> 20} of {self._limit_bytes >> 20} MB ({percent_text(used_bytes, self._limit_bytes)} %)"
        passed = range(before + 1, now + 1) if now > before else range(before, now, -1)
        for increment in passed:
            word = "above" if now > before else "below"
            text = f"memory utilization went {word} {increment * INCREMENT_PERCENT} %: {usage}"
            yield LogLine(Level.WARNING if warns else Level.INFO, text)
