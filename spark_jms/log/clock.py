"""Measures the skew of this process's clock against the root's. core/clock_skew.py has the rule.

Features: C17 (docs/FEATURES.md)
"""

from __future__ import annotations

import secrets
import socket
import threading
import time

from spark_jms.core.clock_skew import TOLERATED_SKEW_MS, ClockReading
from spark_jms.errors import ClockSkewError
from spark_jms.log.storage import Storage, now_ms

_FOLDER = "_jmsq/clock"


def read_clock(storage: Storage) -> ClockReading:
    """Writes a small file and deletes it. Raises OSError or JmsqError when the storage fails."""
    folder = f"{_FOLDER}/{secrets.token_hex(8)}"
    before_ms = now_ms()
    storage.put(f"{folder}/now", b"")
    after_ms = now_ms()
    try:
        (written,) = storage.list(folder)
    finally:
        storage.delete_all(folder)
    return ClockReading.of(before_ms, written.modified_ms, after_ms)


class ClockWatch:
    """Thread-safe. Measures at most every ten minutes."""

    EVERY_S = 600.0

    def __init__(self, storage: Storage) -> None:
        self._storage, self._lock = storage, threading.Lock()
        self._reading: ClockReading | None = None
        self._read_s = 0.0

    def check(self) -> None:
        """Raises ClockSkewError beyond the tolerated skew, and what `read_clock` raises."""
        with self._lock:
            now_s = time.monotonic()
            if self._reading is None or now_s - self._read_s >= self.EVERY_S:
                self._reading, self._read_s = read_clock(self._storage), now_s
            reading = self._reading
        if not reading.is_tolerated:
            raise ClockSkewError(
                f"the clock of host {socket.gethostname()} is {reading} of the root's, and at most "
                f"{TOLERATED_SKEW_MS:,} ms are tolerated: messages with a delay or a time to live come or expire that much "
                "too early or too late. Synchronise the clocks (NTP)."
            )
