"""What an administrator asks of a store in a database. Nothing here takes the engine's lock (C16, S1, S4)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from store.admin import Checked, LockStatus
from store.errors import StoreBusyError, StoreCorruptError, StoreError
from store.jdbc.database import Connection, ConnectionLostError, Database
from store.jdbc.engine import listens, read_published
from store.jdbc.persistence import read_transactions
from store.jdbc.protocol import OwnerRow, check_owner, read_owner
from store.jdbc.rows import OBJECT, RECORD, Row, check_row, describe, restore
from store.jdbc.schema import ensure_tables
from store.jdbc.settings import SQLITE, parse_jdbc
from store.jdbc.tables import Tables, make_tables, sqlite_file
from store.ledger import Prepared
from store.served.process import process_gone


class Opened:
    def __init__(self, uri: str) -> None:
        self.settings = parse_jdbc(uri)
        self.tables: Tables = make_tables(self.settings)
        self.database = Database(self.settings)
        ensure_tables(self.database, self.tables, create=False)
        self.data: Connection = self.database.connect()

    def owner(self) -> OwnerRow | None:
        if self.settings.dialect != SQLITE:
            return read_owner(self.data, self.tables)
        beside = self.database.connect(sqlite_file(self.settings.path, self.tables.owner))
        try:
            return read_owner(beside, self.tables)
        finally:
            beside.close()

    def held(self) -> bool:
        """Somebody has SIBOWNER locked."""
        if self.settings.dialect == SQLITE:
            return self._sqlite_held()
        found = self.data.rows(
            sa.text(
                "SELECT 1 FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n "
                "ON n.oid = c.relnamespace WHERE l.granted AND c.relname = :name AND l.mode = 'ShareLock' "
                "AND n.nspname = coalesce(:schema, current_schema())"
            ).bindparams(name=self.tables.owner.name, schema=self.settings.schema.lower() or None)
        )
        return bool(found)

    def _sqlite_held(self) -> bool:
        beside = self.database.connect(sqlite_file(self.settings.path, self.tables.owner))
        try:
            beside.run("PRAGMA busy_timeout=0")
            beside.begin("EXCLUSIVE")
            beside.rollback()
        except StoreBusyError:
            return True
        finally:
            beside.close()
        return False


@contextmanager
def opened(uri: str) -> Iterator[Opened]:
    store = None
    try:
        store = Opened(uri)
        yield store
    except ConnectionLostError as error:
        raise StoreError(str(error)) from error
    finally:
        if store is not None:
            store.data.close()
            store.database.close()


def jdbc_lock_status(uri: str) -> LockStatus:
    with opened(uri) as store:
        owner, published, held = store.owner(), read_published(store.data, store.tables), store.held()
    shown = store.settings.shown
    if owner is None:
        return LockStatus(shown, held)
    if published is None or published.incarnation != owner.inc_uuid:
        return LockStatus(shown, held, engine=owner.me_uuid, incarnation=owner.inc_uuid, version=owner.version)
    answers = held and not process_gone(published.process) and listens(published)
    return LockStatus(
        shown, held, published.shown(), published.hostname, published.pid, published.since_ms, owner.me_uuid,
        owner.inc_uuid, owner.version, answers,
    )  # fmt: skip


def check_jdbc(uri: str) -> Checked:
    """Every row and its checksum; what is damaged is named and left as it is."""
    problems: list[str] = []
    rows: list[Row] = []
    in_doubt: list[str] = []
    with opened(uri) as store:
        try:
            check_owner(store.owner(), store.settings.engine, store.settings.shown)
        except StoreError as error:
            problems.append(str(error))
        for table in store.tables.objects:
            for found in store.data.rows(sa.select(*table.c)):
                row = Row(found.id, found.parent_id, found.class_id, found.name, found.number, bytes(found.data))
                try:
                    check_row(row, found.checksum, table.fullname)
                    rows.append(row)
                except StoreCorruptError as error:
                    problems.append(f"{table.fullname}: {describe(row)}: {error.reason}")
        try:
            prepared = read_transactions(store.data, store.tables)[0]
            in_doubt = [entry.xid for entry in prepared if isinstance(entry, Prepared)]
            restore(rows, store.settings.shown)
        except StoreCorruptError as error:
            problems.append(error.detail())
    objects = [row for row in rows if row.class_id == OBJECT]
    return Checked(
        store.settings.shown, sum(row.class_id == RECORD for row in rows), len(objects),
        sum(len(row.name) + len(row.data) for row in objects), tuple(in_doubt), tuple(problems),
    )  # fmt: skip


def compact_jdbc(uri: str) -> str:
    """VACUUM of the tables that are not locked for life."""
    with opened(uri) as store:
        if store.settings.dialect == SQLITE:
            before = os.path.getsize(store.settings.path)
            store.data.run("PRAGMA wal_checkpoint(TRUNCATE)")
            store.data.run("VACUUM")
            return f"vacuumed: {before:,} bytes before, {os.path.getsize(store.settings.path):,} after"
        store.data.rollback()
        store.data.autocommit()
        tables = (*store.tables.objects, store.tables.transactions, store.tables.keys)
        for table in tables:
            store.data.run(f"VACUUM (ANALYZE) {table.fullname}")
        return f"vacuumed {', '.join(table.fullname for table in tables)}"
