"""Everything that the tables of a store hold, as one moment has it. The engine reads it once, an administrator at any time."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from spark_jms.store.errors import StoreCorruptError
from spark_jms.store.jdbc.database import DatabaseConnection
from spark_jms.store.jdbc.outcomes import StoredOutcome, Transactions, outcome_of, read_outcomes
from spark_jms.store.jdbc.restoration import Restoration, restore
from spark_jms.store.jdbc.rows import RECORD, StoredRow, row_of
from spark_jms.store.jdbc.tables import Tables
from spark_jms.store.ledger.entries import Damaged, Entry, Prepared


@dataclass(frozen=True)
class StoreContent:
    restored: Restoration
    transactions: Transactions

    @property
    def entries(self) -> tuple[Entry, ...]:
        return (*self.restored.entries, *self.transactions.entries)

    @property
    def damaged(self) -> tuple[Damaged, ...]:
        """Record sets that are refused."""
        return (*self.restored.damaged, *self.transactions.damaged)

    @property
    def passed_over(self) -> tuple[str, ...]:
        """Damage for which nothing is refused."""
        return (*self.restored.passed_over, *self.transactions.passed_over)

    @property
    def refusals(self) -> tuple[StoreCorruptError, ...]:
        """Why the whole store is refused."""
        return (*self.restored.refusals, *self.transactions.refusals, *self._broken_promises())

    @property
    def damaged_places(self) -> frozenset[tuple[str, object]]:
        """Identifies each damaged row, so that two readings can be compared."""
        rows = {(damaged.file, damaged.offset) for damaged in self.restored.damaged}
        return frozenset({*rows, *(("xid", xid) for xid in self.transactions.kept)})

    def _broken_promises(self) -> list[StoreCorruptError]:
        """Of prepared transactions that change a record set without a row."""
        names = {key.subject for key, row in self.restored.rows if row.class_id == RECORD}
        names |= {damaged.name for damaged in self.restored.damaged}
        return [
            StoreCorruptError(f"transaction {entry.xid}", 0, f"it changes record set {change.name!r}, which has no row")
            for entry in self.transactions.prepared
            if isinstance(entry, Prepared)
            for change in entry.changes
            if change.name not in names
        ]


def read_content(data: DatabaseConnection, tables: Tables, place: str) -> StoreContent:
    return StoreContent(restore(read_rows(data, tables), place), read_transactions(data, tables, place))


def read_rows(data: DatabaseConnection, tables: Tables) -> list[StoredRow]:
    """Of all SIBnnn tables."""
    return [
        StoredRow(row_of(row), row.identity, row.checksum, table.fullname, number < tables.persistent_count)
        for number, table in enumerate(tables.objects)
        for row in data.rows(sa.select(*table.c))
    ]


def read_transactions(data: DatabaseConnection, tables: Tables, place: str) -> Transactions:
    table = tables.transactions
    found = [StoredOutcome(outcome_of(row), row.identity, row.checksum) for row in data.rows(sa.select(*table.c))]
    return read_outcomes(found, f"{place}, {table.fullname}")
