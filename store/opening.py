"""How long the opening of a store may wait, and whether anybody still waits for it.

Features: S5 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from spark_jms.store.errors import StoreBusyError

_LOOK_S = 0.25


class StoreOpening:
    """Thread-safe. `limit_s` bounds the waits for what is away or held, None: each wait has its own limit; work that proceeds is not
    interrupted. A cancelled opening ends before its next attempt. Each opening has an object of its own."""

    def __init__(self, limit_s: float | None = None) -> None:
        self.limit_s = limit_s
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """From any thread: nobody waits for it any more."""
        self._cancelled.set()

    def within(self, limit_s: float) -> float:
        return limit_s if self.limit_s is None else min(limit_s, self.limit_s)

    def check(self) -> None:
        """Raises StoreBusyError when it was cancelled."""
        if self._cancelled.is_set():
            raise StoreBusyError("the opening of the store was given up")

    @contextmanager
    def alone(self, lock: threading.Lock) -> Iterator[None]:
        """Holds `lock`, which another opening of the same store may hold. Raises StoreBusyError at the limit."""
        begun_s = time.monotonic()
        while not lock.acquire(timeout=self.within(_LOOK_S)):
            self.check()
            if self.limit_s is not None and time.monotonic() - begun_s >= self.limit_s:
                raise StoreBusyError(
                    f"another opening of the store by this process has been under way for {self.limit_s:g} s"
                )
        try:
            yield
        finally:
            lock.release()
