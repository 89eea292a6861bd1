"""Whether a store answers soon enough for its users. Pure.

A consumer waits READ_MS for a server's part of a batch, and WRITE_MS for its claim; a server that needs longer is left out of the
batch. A *sample* asks a store as much as one delivery does. Its *effort* is the share of that time which the store took for the
questions or for the writes, whichever is the larger.

    the lease is    a sample speaks for the store with an effort of at most
    ------------    --------------------------------------------------------
    held            HOLD_EFFORT
    lapsed          RETURN_EFFORT

In between the lease remains what it is. So a store whose delay is constant is up or down, and never both in turn.

Features: D4 (docs/FEATURES.md)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

READ_MS, WRITE_MS = 2_000.0, 5_000.0
HOLD_EFFORT, RETURN_EFFORT = 0.8, 0.4
VALID_MS = READ_MS + WRITE_MS + 1_000.0  # so long after its begin a sample tells something
FAILED = math.inf
_SHORTEST_PAUSE_MS, _LONGEST_PAUSE_MS = 300.0, 10_000.0
_REST = 2.0  # a sample is followed by a pause of so many times its length, so that samples do not make a store slow


class Promptness(Enum):
    """Of a store's answers, as far as samples tell."""

    GOOD = "soon enough"
    SLOW = "too late for a delivery"
    UNKNOWN = "there is no sample"


def effort(read_ms: float, write_ms: float) -> float:
    return max(read_ms / READ_MS, write_ms / WRITE_MS)


def allowed_effort(*, lapsed: bool) -> float:
    return RETURN_EFFORT if lapsed else HOLD_EFFORT


@dataclass(frozen=True)
class Samples:
    """What one process knows by its samples of a store. Times are of its monotonic clock, in ms. `under_way_ms`: when the one began
    that has not ended."""

    under_way_ms: float | None = None
    begun_ms: float | None = None  # of the last one that ended
    ended_ms: float = 0.0
    effort: float = 0.0

    def begin(self, now_ms: float) -> Samples:
        return replace(self, under_way_ms=now_ms)

    def end(self, effort: float, now_ms: float) -> Samples:
        return Samples(None, self.under_way_ms, now_ms, effort)

    def is_due(self, now_ms: float) -> bool:
        if self.under_way_ms is not None or self.begun_ms is None:
            return self.under_way_ms is None
        pause_ms = _REST * (self.ended_ms - self.begun_ms)
        return now_ms - self.ended_ms >= min(max(pause_ms, _SHORTEST_PAUSE_MS), _LONGEST_PAUSE_MS)

    def promptness(self, now_ms: float, since_ms: float, *, lapsed: bool) -> Promptness:
        """Only a sample that began at `since_ms` or later, and not long ago, shows that a store is fast; an older one still shows
        that it is slow."""
        allowed = allowed_effort(lapsed=lapsed)
        if self.under_way_ms is not None and now_ms - self.under_way_ms > allowed * (READ_MS + WRITE_MS):
            return Promptness.SLOW
        if self.begun_ms is None:
            return Promptness.UNKNOWN
        if self.effort > allowed:
            return Promptness.SLOW
        return Promptness.GOOD if self.begun_ms >= max(since_ms, now_ms - VALID_MS) else Promptness.UNKNOWN
