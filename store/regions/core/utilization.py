"""What a daemon says of its own memory: one line for each 10 % that its use passes, up or down (R5).

The k-th increment is reached at exactly k * 10 %. A line is WARNING when the use it tells is 80 % or more, and INFO
otherwise. At trace levels below 3 nothing is said, but what is passed is remembered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

INCREMENT_PERCENT = 10
WARNING_PERCENT = 80
TRACE_LEVEL = 3  # the least at which utilization is logged


class Level(IntEnum):
    """With the numbers of the standard library's logging."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True)
class LogLine:
    """A line that a pure module wants logged."""

    level: Level
    text: str


def percent_text(used: int, total: int) -> str:
    """With two places, as `storeadmin lsd` shows it."""
    return f"{used * 100 / total:.2f}" if total else "0.00"


class UtilizationLog:
    """Fed the daemon's memory use at every change; yields the lines that are due."""

    def __init__(self, limit_bytes: int, trace_level: int) -> None:
        if limit_bytes < 1:
            raise ValueError(f"a limit of {limit_bytes} bytes")
        self._limit_bytes = limit_bytes
        self._speaks = trace_level >= TRACE_LEVEL
        self._increments = 0

    def feed(self, used_bytes: int) -> Iterator[LogLine]:
        """The increments passed are remembered even when the lines are not consumed."""
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
