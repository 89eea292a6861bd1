"""The administration of a store in a database. Nothing here takes the engine's lock.

Features: C16, S1, S4 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import sqlalchemy as sa

from spark_jms.store.administration import Administration
from spark_jms.store.errors import StoreBusyError, StoreError, StoreInUseError, StoreVersionError
from spark_jms.store.jdbc.content import read_content, read_rows, read_transactions
from spark_jms.store.jdbc.database import ConnectionLostError, Database, DatabaseConnection
from spark_jms.store.jdbc.protocol import OwnerRow, check_owner, read_owner
from spark_jms.store.jdbc.published import read_published
from spark_jms.store.jdbc.salvage import salvage_rows
from spark_jms.store.jdbc.schema import ensure_tables
from spark_jms.store.jdbc.settings import SQLITE, JdbcSettings, parse_jdbc
from spark_jms.store.jdbc.tables import Tables, make_tables, sqlite_file
from spark_jms.store.ledger.entries import Prepared, Restored
from spark_jms.store.reports import Checked, LockStatus, Salvaged


class JdbcAdministration(Administration):
    def __init__(self, uri: str) -> None:
        self._settings = parse_jdbc(uri)
        self._shown = self._settings.shown

    def lock_status(self) -> LockStatus:
        with _observed(self._settings) as store:
            owner, published, held = store.owner(), read_published(store.data, store.tables), store.is_locked()
        if owner is None:
            return LockStatus(self._shown, held)
        status = LockStatus(self._shown, held, engine=owner.me_uuid, incarnation=owner.inc_uuid, version=owner.version)
        if published is None or published.incarnation != owner.inc_uuid:
            return status
        return replace(
            status,
            owner=published.shown(),
            hostname=published.hostname,
            pid=published.pid,
            since_ms=published.since_ms,
            answers=held and published.answers(),
        )

    def check(self) -> Checked:
        problems: list[str] = []
        with _observed(self._settings) as store:
            try:
                check_owner(store.owner(), self._settings.engine, self._shown)
            except StoreVersionError as error:  # this version does not know the format of the rows
                return Checked(self._shown, 0, 0, 0, (), (str(error),))
            except StoreError as error:
                problems.append(str(error))
            content = read_content(store.data, store.tables, self._shown)
        problems += [f"the whole store is refused: {refusal.detail()}" for refusal in content.refusals]
        problems += [damaged.error().detail() for damaged in content.damaged]
        problems += [f"nothing is refused: {place}" for place in content.passed_over]
        refused = {damaged.name for damaged in content.transactions.damaged}
        records = [
            entry for entry in content.restored.entries if isinstance(entry, Restored) and entry.name not in refused
        ]
        return Checked(
            store=self._shown,
            record_count=len(records),
            object_count=sum(len(record.objects) for record in records),
            object_bytes=sum(len(key) + len(value) for record in records for key, value in record.objects),
            in_doubt=tuple(entry.xid for entry in content.transactions.prepared if isinstance(entry, Prepared)),
            problems=tuple(problems),
        )

    def compact(self) -> str:
        """VACUUM of every table that the engine does not lock for its whole life."""
        with _observed(self._settings) as store:
            if self._settings.dialect == SQLITE:
                before = os.path.getsize(self._settings.path)
                store.data.run("PRAGMA wal_checkpoint(TRUNCATE)")
                store.data.run("VACUUM")
                return f"vacuumed: {before:,} bytes before, {os.path.getsize(self._settings.path):,} after"
            store.data.rollback()
            store.data.autocommit()
            tables = (*store.tables.objects, store.tables.transactions, store.tables.keys)
            for table in tables:
                store.data.run(f"VACUUM (ANALYZE) {table.fullname}")
            return f"vacuumed {', '.join(table.fullname for table in tables)}"

    def salvage(self) -> Salvaged:
        with _observed(self._settings) as store:
            if store.is_locked():
                raise StoreInUseError(f"{self._shown} is used: an engine holds its lock")
            try:
                rows = [found for found in read_rows(store.data, store.tables) if found.persistent]
                transactions = read_transactions(store.data, store.tables, self._shown)
            except StoreError:
                check_owner(store.owner(), "", self._shown)  # the tables may be of another version
                raise
        return salvage_rows(rows, transactions)


class _Observed:
    """The tables of a store, as an observer without the engine's lock reads them."""

    def __init__(self, settings: JdbcSettings) -> None:
        self._settings = settings
        self.tables: Tables = make_tables(settings)
        self.database = Database(settings)
        ensure_tables(self.database, self.tables, create=False)
        self.data: DatabaseConnection = self.database.connect()

    def owner(self) -> OwnerRow | None:
        if self._settings.dialect != SQLITE:
            return read_owner(self.data, self.tables)
        with self._owner_file() as beside:
            return read_owner(beside, self.tables)

    def is_locked(self) -> bool:
        """An engine holds the lock on SIBOWNER."""
        if self._settings.dialect == SQLITE:
            return self._is_file_locked()
        found = self.data.rows(
            sa.text(
                "SELECT 1 FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n "
                "ON n.oid = c.relnamespace WHERE l.granted AND c.relname = :name AND l.mode = 'ShareLock' "
                "AND n.nspname = coalesce(:schema, current_schema())"
            ).bindparams(name=self.tables.owner.name, schema=self._settings.schema.lower() or None)
        )
        return bool(found)

    def _is_file_locked(self) -> bool:
        with self._owner_file() as beside:
            try:
                beside.run("PRAGMA busy_timeout=0")
                beside.begin("EXCLUSIVE")
                beside.rollback()
            except StoreBusyError:
                return True
        return False

    @contextmanager
    def _owner_file(self) -> Iterator[DatabaseConnection]:
        beside = self.database.connect(sqlite_file(self._settings.path, self.tables.owner))
        try:
            yield beside
        finally:
            beside.close()


@contextmanager
def _observed(settings: JdbcSettings) -> Iterator[_Observed]:
    store = None
    try:
        store = _Observed(settings)
        yield store
    except ConnectionLostError as error:
        raise StoreError(str(error)) from error
    finally:
        if store is not None:
            store.data.close()
            store.database.close()
