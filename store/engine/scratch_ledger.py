"""A ledger to try entries on: it reads through to the ledger below and copies a record when it is touched. Pure.

A plan changes the ledger it runs on before its entries are durable. So it runs on a scratch, and the ledger below changes
only once they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.prepared import PreparedTransactions
from spark_jms.store.ledger.record import Record


class _Records(dict[str, Record]):
    """Looks like all records of `base`; holds copies of those that were asked for by name."""

    def __init__(self, base: dict[str, Record]) -> None:
        super().__init__()
        self._base = base

    def __missing__(self, name: str) -> Record:
        copied = self[name] = self._base[name].copy()
        return copied

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._base

    def __iter__(self) -> Iterator[str]:
        yield from self._base
        yield from (name for name in super().__iter__() if name not in self._base)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def keys(self) -> Any:
        return list(self)

    def values(self) -> Any:
        return [self[name] for name in self]

    def items(self) -> Any:
        return [(name, self[name]) for name in self]

    def look(self) -> Iterator[tuple[str, Record]]:
        """For reading only: copies nothing."""
        for name in self:
            yield name, super().get(name) or self._base[name]


class ScratchLedger(Ledger):
    """Costs a copy of each touched record and of the session table."""

    def __init__(self, base: Ledger) -> None:
        self._below = base
        self._touched = _Records(base.records)
        self.sessions = dict(base.sessions)
        self.records = self._touched
        self.prepared = PreparedTransactions(base.prepared)
        self.damaged = base.damaged  # a plan never changes it
        self.object_count = base.object_count
        self.object_bytes = base.object_bytes

    def keep(self) -> None:
        """Make the ledger below, which has not changed since, equal to this one. The scratch ends with it."""
        base = self._below
        base.records.update(dict.items(self._touched))
        base.sessions, base.prepared = self.sessions, self.prepared
        base.object_count, base.object_bytes = self.object_count, self.object_bytes

    def _involving(self, session_ids: set[str]) -> list[Record]:
        involved = [
            name
            for name, record in self._touched.look()
            if record.holder in session_ids or not session_ids.isdisjoint(record.waiters)
        ]
        return [self.records[name] for name in involved]
