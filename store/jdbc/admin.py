"""What an administrator asks of a store in a database. Nothing here takes the engine's lock (C16, S1, S4)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from spark_jms.store.admin import Checked, LockStatus
from spark_jms.store.engine.process import process_gone
from spark_jms.store.errors import StoreBusyError, StoreError, StoreVersionError
from spark_jms.store.jdbc.database import Connection, ConnectionLostError, Database
from spark_jms.store.jdbc.engine import listens, read_published
from spark_jms.store.jdbc.persistence import read_rows, read_transactions, unkept_promises
from spark_jms.store.jdbc.protocol import OwnerRow, check_owner, read_owner
from spark_jms.store.jdbc.rows import restore
from spark_jms.store.jdbc.schema import ensure_tables
from spark_jms.store.jdbc.settings import SQLITE, parse_jdbc
from spark_jms.store.jdbc.tables import Tables, make_tables, sqlite_file
from spark_jms.store.ledger.ledger import Prepared, Restored


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
    with opened(uri) as store:
        shown = store.settings.shown
        try:
            check_owner(store.owner(), store.settings.engine, shown)
        except StoreVersionError as error:  # the rows are not to be understood
            return Checked(shown, 0, 0, 0, (), (str(error),))
        except StoreError as error:
            problems.append(str(error))
        restored = restore(read_rows(store.data, store.tables), shown)
        transactions = read_transactions(store.data, store.tables, shown)
    refusals = (*restored.refusals, *transactions.refusals, *unkept_promises(restored, transactions))
    problems += [f"the whole store is refused: {refusal.detail()}" for refusal in refusals]
    problems += [damaged.error().detail() for damaged in (*restored.damaged, *transactions.damaged)]
    problems += [f"nothing is refused: {place}" for place in (*restored.passed_over, *transactions.passed_over)]
    refused = {damaged.name for damaged in transactions.damaged}
    records = [entry for entry in restored.entries if isinstance(entry, Restored) and entry.name not in refused]
    in_doubt = tuple(entry.xid for entry in transactions.prepared if isinstance(entry, Prepared))
    return Checked(
        shown, len(records), sum(len(record.objects) for record in records),
        sum(len(key) + len(value) for record in records for key, value in record.objects), in_doubt, tuple(problems),
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
