"""What a context tells of itself.

Features: T7, T17 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_jms.core.health import BackgroundFailure
from spark_jms.core.message_buffer import NOTHING_BUFFERED, BufferStatistics


@dataclass(frozen=True)
class ContextStatistics:
    """`…_high` and `…_total`: the most that were open at once, and how many were opened, since the context was opened or its
    statistics were reset."""

    producers: int
    consumers: int
    destinations: tuple[str, ...]  # those under this context's housekeeping
    failures: tuple[BackgroundFailure, ...] = ()  # background work that fails now
    failed_attempts: int = 0  # of background work, since the context was opened
    producers_high: int = 0
    consumers_high: int = 0
    producers_total: int = 0
    consumers_total: int = 0
    listener_failures: int = 0  # completion listeners that raised
    buffer: BufferStatistics = NOTHING_BUFFERED  # messages that wait, in memory and paged

    @property
    def healthy(self) -> bool:
        return not self.failures
