"""Counts the operations of a session, or of a store, for statistics.

Features: C16 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from spark_jms.store.contract import Delete, Put
from spark_jms.store.ledger.entries import Change
from spark_jms.store.ledger.ledger import Ledger


@dataclass(frozen=True)
class Tally:
    create_count: int = 0
    update_count: int = 0
    delete_count: int = 0


def tally_of(changes: Iterable[Change], ledger: Ledger) -> Tally:
    """How many objects these changes would create, update and delete in the ledger."""
    create = update = delete = 0
    for change in changes:
        record = ledger.records.get(change.name)
        there: dict[str, bool] = {}
        for operation in change.operations:
            known = there.get(operation.key, record is not None and operation.key in record.objects)
            if isinstance(operation, Delete):
                delete += known
            elif known:
                update += 1
            else:
                create += 1
            there[operation.key] = isinstance(operation, Put)
    return Tally(create, update, delete)


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
