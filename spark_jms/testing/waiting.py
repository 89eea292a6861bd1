"""Wait for another thread or process: until a condition holds, never for a fixed time."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

_POLL_S = 0.005
# A limit says what a quiet machine needs at most. A busy one may need several times as long, which is no fault of what is waited for.
PATIENCE = int(os.environ.get("JMSQ_PATIENCE", "1"))


def wait_until(condition: Callable[[], object], timeout_s: float = 10.0, what: str | Callable[[], str] = "") -> None:
    """Return as soon as `condition()` is true; after `PATIENCE` times the time-out, AssertionError with `what`, evaluated then."""
    timeout_s *= PATIENCE
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            told = what() if callable(what) else what
            raise AssertionError(f"not within {timeout_s:g} s: {told or condition}")
        time.sleep(_POLL_S)


def is_waiting(thread: threading.Thread) -> bool:
    """The thread waits for an event or a condition now."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code is threading.Condition.wait.__code__
