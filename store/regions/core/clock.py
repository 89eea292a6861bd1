"""The time of one daemon. Pure: the driver tells it with every event."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class DaemonClock:
    now_ms: float  # never goes back
    now_us: int  # since the epoch, for people
