"""The rows of small files that this process has written lately: compaction takes them from here and opens no file.

Opening and reading a file of one message costs compaction as much as a quarter of its send, in the sender's own process. Rows
never change under a path, so those in memory are those of the file. What is not here is read from the file.

Features: C13 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import pyarrow as pa

SMALL_BYTES = 64 * 2**10  # a larger file is read: its opening weighs little
LIMIT_BYTES = 32 * 2**20
_OVERHEAD_BYTES = 8 * 2**10  # of the Arrow objects of a batch of one row


class _Kept(NamedTuple):
    rows: pa.RecordBatch
    bytes: int


class RecentRows:
    """Of one table. Thread-safe. Keeps nothing until compaction has asked once in this process: most senders leave compaction
    to others. Beyond the limit the oldest rows are dropped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._wanted = False
        self.bytes = 0

    def keep(self) -> None:
        """Compaction runs in this process, or will."""
        self._wanted = True

    def add(self, path: str, rows: pa.RecordBatch, file_bytes: int) -> None:
        """The rows as they are stored in the file."""
        if not self._wanted or file_bytes > SMALL_BYTES:
            return
        with self._lock:
            self._kept[path] = _Kept(rows, file_bytes + _OVERHEAD_BYTES)
            self.bytes += file_bytes + _OVERHEAD_BYTES
            while self.bytes > LIMIT_BYTES:
                self._drop(next(iter(self._kept)))

    def take(self, path: str) -> pa.RecordBatch | None:
        """The rows of a file, once; None when they are not here."""
        with self._lock:
            self._wanted = True
            return self._drop(path)

    def _drop(self, path: str) -> pa.RecordBatch | None:
        kept = self._kept.pop(path, None)
        if kept is None:
            return None
        self.bytes -= kept.bytes
        return kept.rows
