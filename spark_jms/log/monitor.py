"""Watches background work: counts and logs its failures and paces the retries.

Features: C13 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from spark_jms.core.health import LONGEST_PAUSE_MS, Health
from spark_jms.log.storage import now_ms

log = logging.getLogger("spark_jms")
FIRST_PAUSE_MS = 2_000


class Monitor:
    """Thread-safe. `where` names the work in log lines: a destination or a thread."""

    def __init__(self, where: str, clock_ms: Callable[[], int] = now_ms) -> None:
        self.where = where
        self.health = Health()
        self._clock_ms = clock_ms
        self._lock = threading.Lock()

    def run(
        self,
        what: str,
        work: Callable[[], object],
        first_pause_ms: int = FIRST_PAUSE_MS,
        longest_ms: int = LONGEST_PAUSE_MS,
    ) -> None:
        """Do the work, unless it failed and its pause is not over. Its errors are recorded, not raised."""
        if not self.is_due(what):
            return
        try:
            work()
        except Exception as error:  # noqa: BLE001 - `failed` logs it; statistics and `jmsq stat` show it
            self.failed(what, error, first_pause_ms, longest_ms)
        else:
            self.succeeded(what)

    def is_due(self, what: str) -> bool:
        return self.health.is_due(what, self._clock_ms())

    def failed(
        self, what: str, error: Exception, first_pause_ms: int = FIRST_PAUSE_MS, longest_ms: int = LONGEST_PAUSE_MS
    ) -> None:
        with self._lock:
            known = self.health.failures.get(what)
            self.health = self.health.failed(what, error, self._clock_ms(), first_pause_ms, longest_ms)
            failure = self.health.failures[what]
        if known is None or known.kind != failure.kind:
            log.warning("%s: %s failed and will be retried: %s", self.where, what, failure.error)

    def succeeded(self, what: str) -> None:
        with self._lock:
            failure = self.health.failures.get(what)
            self.health = self.health.succeeded(what)
        if failure is not None:
            log.info("%s: %s works again after %d failure(s)", self.where, what, failure.count)

    def forget(self, whats: Iterable[str]) -> None:
        """What failed no longer exists."""
        with self._lock:
            for what in whats:
                self.health = self.health.succeeded(what)
