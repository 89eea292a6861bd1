"""Waiting for what another thread or process does: until it is so, never for a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable

_POLL_S = 0.005


def wait_until(condition: Callable[[], object], timeout_s: float = 10.0, what: str = "") -> None:
    """Return as soon as `condition()` is true; AssertionError with `what` when it is not within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what or condition}")
        time.sleep(_POLL_S)
