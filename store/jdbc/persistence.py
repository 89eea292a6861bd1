"""How the engine keeps its ledger in the database: load it, append to it, and never when another may own it.

One append is one transaction: lock SIBOWNER so that the owner cannot change (ROW SHARE on PostgreSQL; on SQLite the shared
lock of the third connection does it), read INC_UUID, write the rows, write the outcome into SIBXACTS, commit. So an engine
that lost its lock writes nothing, and every later engine can tell what became of a commit whose answer was lost:

    SIBXACTS has its xid       the whole batch was committed
    SIBXACTS has not           nothing of it was committed

An outcome is kept for the last OUTCOMES_KEPT commits. A prepared transaction is a row of its own until it is resolved.
TableWriter writes rows and outcomes, and RowIds hands out the ids of rows, once each; SIBKEYS keeps the last id of the newest
block.

The engine finds damage only while it loads the store; content.py decides what is refused. It never changes or removes a
damaged row, except the row of the engine, which every engine writes again.

Features: S2, S4, S6 (docs/FEATURES.md)
"""

from __future__ import annotations

import contextlib
import logging
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import sqlalchemy as sa

from spark_jms.store.engine.entry_log import LedgerBatch, Loaded, OwnershipLostError, Persistence
from spark_jms.store.errors import StoreCorruptError, StoreError, StoreWriteError
from spark_jms.store.jdbc.content import (
    COMMITTED,
    StoreContent,
    committed,
    committed_xid,
    prepared,
    prepared_xid,
    read_content,
)
from spark_jms.store.jdbc.database import ConnectionLostError, Database, DatabaseConnection
from spark_jms.store.jdbc.protocol import Ownership, read_owner
from spark_jms.store.jdbc.rows import ENGINE, Row, RowChanges, RowMap, number_of
from spark_jms.store.jdbc.settings import SQLITE
from spark_jms.store.jdbc.tables import Tables, ensure_catalogue
from spark_jms.store.ledger.record import Prepared, Resolved

log = logging.getLogger("store.jdbc")

APPEND_TRIES = 3
BLOCK = 1_024
OBJECTS = "objects"
OUTCOMES_KEPT = 1_024
TRIM_EVERY = 256
_ABOUT_TRANSACTIONS = (Prepared, Resolved)


class JdbcPersistence(Persistence):
    """`regain` is called when the connection is lost. It returns a new ownership of the same incarnation, or raises
    OwnershipLostError."""

    def __init__(
        self, database: Database, tables: Tables, ownership: Ownership, regain: Callable[[str], Ownership]
    ) -> None:
        self._database = database
        self._tables = tables
        self.ownership = ownership
        self.incarnation = ownership.incarnation
        # The locks of SQLite fall with the process that has them.
        self.had_owner = ownership.before is not None and database.settings.dialect != SQLITE
        self._regain = regain
        self._rows = RowMap()
        self._ids = RowIds(tables.keys)
        self._writer = TableWriter(tables)
        self._damaged_places: frozenset[tuple[str, object]] = frozenset()
        self._closed = False
        self._data: DatabaseConnection | None = None

    # ---- load

    def load(self) -> Loaded:
        try:
            content = self._load()
        except ConnectionLostError as error:
            raise OwnershipLostError(f"the connection was lost while the engine read the store: {error}") from error
        self._rows.load(content.restored.rows)
        self._damaged_places = content.damaged_places
        self._writer.damaged_xids = content.transactions.kept
        self._log_damage(content)
        transactions = content.transactions
        return Loaded(transactions.position, content.entries, tuple(transactions.outcomes), transactions.known_since)

    def _load(self) -> StoreContent:
        data = self._connect()
        with data.transaction():
            self._verify_owner(data)
            ensure_catalogue(data, self._tables)
            content = read_content(data, self._tables, self._database.settings.shown)
            if content.refusals:
                raise content.refusals[0]
            self._writer.delete_rows(data, content.restored.dropped)
            self._ids.load(data, content.restored.last_id)
        return content

    def _log_damage(self, content: StoreContent) -> None:
        for damaged in {damaged.name: damaged for damaged in reversed(content.damaged)}.values():
            log.warning("%s", damaged.error())
        for place in content.passed_over:
            log.warning("%s: %s; it is left as it is, and nothing is refused", self._database.settings.shown, place)

    # ---- append

    def append(self, batch: LedgerBatch) -> None:
        loss_count = 0
        while True:
            try:
                if loss_count == 0 or not self._was_kept(batch):
                    self._append(batch)
                return
            except ConnectionLostError as error:
                self._drop_data()
                loss_count += 1
                self.ownership = self._regain(str(error))
                if loss_count > APPEND_TRIES:
                    raise OwnershipLostError(
                        f"the connection was lost {loss_count} times in one write: {error}"
                    ) from error

    def _append(self, batch: LedgerBatch) -> None:
        data = self._data or self._connect()
        with self._ids.taken_back_on_error(), data.transaction():
            self._verify_owner(data)
            changes = self._rows.changes(batch, lambda: self._ids.new_id(data))
            self._writer.write_rows(data, changes)
            self._writer.write_outcome(data, batch)
        self._rows.apply(changes)

    def _verify_owner(self, data: DatabaseConnection) -> None:
        """Under a lock that lasts until the commit: another engine that starts has to wait for it."""
        if self._database.settings.dialect == SQLITE:
            is_ours = self.ownership.verify()
        else:
            data.run(f"LOCK TABLE {self._tables.owner.fullname} IN ROW SHARE MODE")
            is_ours = read_owner(data, self._tables) == self.ownership.row
        if not is_ours:
            raise OwnershipLostError(f"{self._database.settings.shown}: SIBOWNER names another incarnation now")

    def prove(self) -> None:
        """The shared lock falls with its connection, so an answer through it proves that no other engine has the store."""
        try:
            if self.ownership.verify():
                return
        except ConnectionLostError as error:
            self.ownership = self._regain(str(error))
            return
        raise OwnershipLostError(f"{self._database.settings.shown}: SIBOWNER names another incarnation now")

    def _was_kept(self, batch: LedgerBatch) -> bool:
        """Call after the lock was regained: then nothing of the lost connection is under way any more. Reads the rows again.
        New damage may concern the very commit that is in doubt, so it ends this engine, as every other error does."""
        xid = committed_xid(batch.tokens, batch.base)
        try:
            data = self._connect()
            with data.transaction():
                self._verify_owner(data)
                content = read_content(data, self._tables, self._database.settings.shown)
                if content.refusals or content.damaged_places != self._damaged_places:
                    raise OwnershipLostError(f"{self._database.settings.shown}: more of it is damaged than before")
                kept = self._writer.has_outcome(data, xid)
                self._ids.load(data, 0)
        except OwnershipLostError:
            raise
        except StoreError as error:
            raise OwnershipLostError(error.detail()) from error
        self._rows.load(content.restored.rows)
        log.warning("the append %s was in doubt: it was %s", xid, "committed" if kept else "not committed")
        return kept

    # ---- the engine's own row

    def publish(self, published: bytes) -> None:
        """Replaces the row of the engine before."""
        try:
            data = self._data or self._connect()
            with data.transaction():
                self._verify_owner(data)
                row = Row(self._ids.new_id(data), 0, ENGINE, self.incarnation, 0, published)
                self._writer.replace_engine(data, row)
        except ConnectionLostError as error:
            raise OwnershipLostError(f"the connection was lost while the engine published itself: {error}") from error

    # ---- the connection

    def _connect(self) -> DatabaseConnection:
        try:
            self._data = self._database.connect()
            # A process that tries to take the store over waits for SIBOWNER, and PostgreSQL queues this engine behind it.
            self._data.wait_for_locks(self._database.settings.statement_limit_s * 1000 / 2)
            if self._database.settings.dialect == SQLITE:
                self._data.run("PRAGMA journal_mode=WAL")
        except StoreError as error:
            raise ConnectionLostError(error.detail()) from error
        return self._data

    def _drop_data(self) -> None:
        if self._data is not None:
            self._data.close()
            self._data = None

    def cut(self) -> None:
        """From any thread: a call that waits for the database fails at once."""
        self.ownership.cut()
        if self._data is not None:
            self._data.cut()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._drop_data()
            with contextlib.suppress(ConnectionLostError):
                self.ownership.release()


class RowIds:
    """Hands out the ids of rows, within the transaction of its caller."""

    def __init__(self, keys: sa.Table) -> None:
        self._keys = keys
        self._next_id = self._last_id = 0

    def load(self, data: DatabaseConnection, last_used: int) -> None:
        """StoreCorruptError when a row has an id that no block contains."""
        found = data.rows(sa.select(self._keys.c.last_key).where(self._keys.c.key_id == OBJECTS))
        last_id = number_of(found[0].last_key) if found else last_used
        if not found:
            data.run(sa.insert(self._keys), {"key_id": OBJECTS, "last_key": last_used})
        if last_id < last_used:
            raise StoreCorruptError(self._keys.fullname, last_id, f"id {last_used} is in use, and was not handed out")
        self._next_id = self._last_id = last_id

    def new_id(self, data: DatabaseConnection) -> int:
        if self._next_id == self._last_id:
            # The end of the block is read back, not computed: a commit whose answer was lost may have taken a block too.
            next_block = sa.update(self._keys).where(self._keys.c.key_id == OBJECTS)
            data.run(next_block.values(last_key=self._keys.c.last_key + BLOCK))
            found = data.rows(sa.select(self._keys.c.last_key).where(self._keys.c.key_id == OBJECTS))
            self._last_id = int(found[0].last_key)
            self._next_id = self._last_id - BLOCK
        self._next_id += 1
        return self._next_id

    @contextmanager
    def taken_back_on_error(self) -> Iterator[None]:
        """Around a transaction: when it fails, the ids of the block that it rolled back must not be used."""
        before = self._next_id, self._last_id
        try:
            yield
        except BaseException:
            self._next_id, self._last_id = before
            raise


class TableWriter:
    """Writes rows and outcomes, within the transaction of its caller. `damaged_xids`: rows of SIBXACTS that trimming leaves."""

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
