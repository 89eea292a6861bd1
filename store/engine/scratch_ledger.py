"""A ledger to try things on: reads through to the one below, copies a record set when it is touched. Pure.

A plan changes the ledger it runs on before anybody has agreed to its entries. So it runs on a scratch, which is thrown
away; the real ledger changes only by entries that were agreed, in the order that was agreed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spark_jms.store.ledger.ledger import Ledger, Record


def _copy(record: Record) -> Record:
    return Record(record.epoch, record.holder, list(record.waiters), dict(record.objects))


class _Records(dict[str, Record]):
    """Looks like all record sets of `base`; holds copies of those that were asked for by name."""

    def __init__(self, base: dict[str, Record]) -> None:
        super().__init__()
        self._base = base

    def __missing__(self, name: str) -> Record:
        copied = self[name] = _copy(self._base[name])
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
        """To look only: nothing is copied."""
        for name in self:
            yield name, super().get(name) or self._base[name]


class ScratchLedger(Ledger):
    """Costs a copy of what is touched, and of the session table."""

    def __init__(self, base: Ledger) -> None:
        self._below = base
        self._touched = _Records(base.records)
        self.sessions = dict(base.sessions)
        self.records = self._touched
        self.prepared = dict(base.prepared)
        self.damaged = base.damaged  # no plan changes it
        self.object_count = base.object_count
        self.object_bytes = base.object_bytes

    def keep(self) -> None:
        """The ledger below, which has not changed since, becomes what this one is. To be used no more afterwards."""
        base = self._below
        base.records.update(dict.items(self._touched))
        base.sessions, base.prepared = self.sessions, self.prepared
        base.object_count, base.object_bytes = self.object_count, self.object_bytes

    def _involving(self, gone: set[str]) -> list[Record]:
        involved = [
            name
            for name, record in self._touched.look()
            if record.holder in gone or not gone.isdisjoint(record.waiters)
        ]
        return [self.records[name] for name in involved]
