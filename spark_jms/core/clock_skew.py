"""How far a process's clock is from the one that all processes of a domain share. Pure.

That one is the clock of the file system or object store with the root: every process writes there, senders too, which open no
store. A process notes its own time, writes a file, notes its time again, and reads the time that the file got. So the skew
is known within bounds: the file was written between the two, and its time may be cut off to whole seconds.

Features: C17 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import dataclass

TOLERATED_SKEW_MS = 2_000


@dataclass(frozen=True)
class ClockReading:
    """This process's clock is `least_ms` to `most_ms` ahead of the root's; behind, where they are negative."""

    least_ms: int
    most_ms: int

    @staticmethod
    def of(before_ms: int, file_ms: int, after_ms: int) -> ClockReading:
        """`file_ms` is the time of a file that was written between `before_ms` and `after_ms` of the own clock."""
        cut_off_ms = 1_000 if file_ms % 1_000 == 0 else 1
        return ClockReading(min(before_ms, after_ms) - file_ms - cut_off_ms, max(before_ms, after_ms) - file_ms)

    @property
    def ahead_ms(self) -> int:
        """The middle."""
        return (self.least_ms + self.most_ms) // 2

    @property
    def is_tolerated(self) -> bool:
        """The skew may be within the tolerance."""
        return self.least_ms <= TOLERATED_SKEW_MS and self.most_ms >= -TOLERATED_SKEW_MS

    def __str__(self) -> str:
        sure = (self.most_ms - self.least_ms + 1) // 2
        return f"{abs(self.ahead_ms):,} ms {'behind' if self.ahead_ms < 0 else 'ahead'} (± {sure:,} ms)"
