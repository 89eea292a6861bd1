"""Counts the operations of a session, or of a store, for statistics (C16)."""

from __future__ import annotations

import threading

from spark_jms.store.ledger.ledger import Tally


class OperationCounter:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.create = self.read = self.update = self.delete = self.commit = 0

    def add_read(self) -> None:
        with self._lock:
            self.read += 1

    def add_commit(self, tally: Tally) -> None:
        with self._lock:
            self.commit += 1
            self.create += tally.create_count
            self.update += tally.update_count
            self.delete += tally.delete_count
