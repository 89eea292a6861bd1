"""Writes rows and outcomes, within the transaction of its caller."""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import sqlalchemy as sa

from spark_jms.store.engine.persistence import LedgerBatch
from spark_jms.store.errors import StoreWriteError
from spark_jms.store.jdbc.database import DatabaseConnection
from spark_jms.store.jdbc.outcomes import COMMITTED, committed, prepared, prepared_xid
from spark_jms.store.jdbc.row_changes import RowChanges
from spark_jms.store.jdbc.rows import ENGINE, Row
from spark_jms.store.jdbc.tables import Tables
from spark_jms.store.ledger.entries import Prepared, Resolved

OUTCOMES_KEPT = 1_024
TRIM_EVERY = 256
_ABOUT_TRANSACTIONS = (Prepared, Resolved)


class _Statements:
    """Of one SIBnnn table, built once. The parameters are those of `Row.values`, with a prefix where a column of the same
    name is set."""

    def __init__(self, table: sa.Table) -> None:
        self.delete = sa.delete(table).where(table.c.id == sa.bindparam("old"))
        self.insert = sa.insert(table)
        self.update = (
            sa.update(table)
            .where(table.c.id == sa.bindparam("new_id"))
            .values({column: sa.bindparam(f"new_{column.name}") for column in table.c if column.name != "id"})
        )


class TableWriter:
    """`damaged_xids`: rows of SIBXACTS that trimming leaves."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._statements = {table: _Statements(table) for table in tables.objects}
        self._insert_outcome = sa.insert(tables.transactions)
        self._outcome_count = 0
        self.damaged_xids: list[str] = []

    # ---- SIBnnn

    def write_rows(self, data: DatabaseConnection, changes: RowChanges) -> None:
        for table, rows in self._by_table(changes.deletes.values()).items():
            data.run(self._statements[table].delete, [{"old": row.id} for row in rows])
        for table, rows in self._by_table(changes.inserts.values()).items():
            data.run(self._statements[table].insert, [row.values() for row in rows])
        for table, rows in self._by_table(changes.updates.values()).items():
            self._update(data, table, rows)

    def _update(self, data: DatabaseConnection, table: sa.Table, rows: list[Row]) -> None:
        names = [f"new_{name}" for name in rows[0].values()]
        done = data.run(
            self._statements[table].update,
            [dict(zip(names, row.values().values(), strict=True)) for row in rows],
        )
        if done.rowcount not in (-1, len(rows)):
            raise StoreWriteError(f"{table.fullname}: only {done.rowcount} of {len(rows)} rows to be changed exist")

    def delete_rows(self, data: DatabaseConnection, rows: Iterable[Row]) -> None:
        """Of the non-persistent tables."""
        if ids := [row.id for row in rows]:
            for table in self._temporary:
                data.run(sa.delete(table).where(table.c.id.in_(ids)))

    def replace_engine(self, data: DatabaseConnection, row: Row) -> None:
        for table in self._temporary:
            data.run(sa.delete(table).where(table.c.class_id == ENGINE))
        data.run(sa.insert(self._table_of(row)), row.values())

    @property
    def _temporary(self) -> tuple[sa.Table, ...]:
        return self._tables.objects[self._tables.persistent_count :]

    def _table_of(self, row: Row) -> sa.Table:
        kind = self._tables.objects[: self._tables.persistent_count] if row.persistent else self._temporary
        return kind[zlib.crc32(b"%d" % row.home) % len(kind)]

    def _by_table(self, rows: Iterable[Row]) -> dict[sa.Table, list[Row]]:
        found: dict[sa.Table, list[Row]] = {}
        for row in rows:
            found.setdefault(self._table_of(row), []).append(row)
        return found

    # ---- SIBXACTS

    def write_outcome(self, data: DatabaseConnection, batch: LedgerBatch) -> None:
        table = self._tables.transactions
        for xid in dict.fromkeys(entry.xid for entry in batch.entries if isinstance(entry, _ABOUT_TRANSACTIONS)):
            data.run(sa.delete(table).where(table.c.xid == prepared_xid(xid)))
            if (changes := batch.after.prepared.get(xid)) is not None:
                data.run(sa.insert(table), prepared(xid, changes, batch.base, batch.position).values())
        data.run(self._insert_outcome, committed(batch.tokens, batch.base, batch.position).values())
        self._outcome_count += 1
        if self._outcome_count % TRIM_EVERY == 0:
            self._trim_outcomes(data)

    def _trim_outcomes(self, data: DatabaseConnection) -> None:
        table = self._tables.transactions
        newest = sa.select(table.c.position).where(table.c.state == COMMITTED).order_by(table.c.position.desc())
        for oldest in data.rows(newest.offset(OUTCOMES_KEPT).limit(1)):
            old = sa.delete(table).where(table.c.state == COMMITTED, table.c.position <= oldest.position)
            data.run(old.where(table.c.xid.not_in(self.damaged_xids)))

    def has_outcome(self, data: DatabaseConnection, xid: str) -> bool:
        table = self._tables.transactions
        return bool(data.rows(sa.select(table.c.xid).where(table.c.xid == xid)))
