"""The clocks of a daemon process.

Features: R10 (docs/FEATURES.md)
"""

from __future__ import annotations

import time

# It counts while the machine is suspended. On a clock that stands meanwhile, a primary that wakes would trust its lease
# although its secondary has taken over.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ms() -> float:
    """Never goes back within one boot of the machine."""
    return time.clock_gettime(_CLOCK) * 1000.0


def now_us() -> int:
    """Since the epoch, for people."""
    return time.time_ns() // 1000
