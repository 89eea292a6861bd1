"""The database as the place of a served store: load it, append to it, and never when another may own it (S2, S4, S6).

One append is one transaction: take a lock on SIBOWNER that excludes a change of owner (ROW SHARE on PostgreSQL; on
SQLite the shared lock of the third connection does it), read INC_UUID, write the rows, write the outcome into SIBXACTS,
commit. So a zombie writes nothing, and of a commit whose answer got lost everybody can find out later what became of it:

    SIBXACTS has its xid     it was committed, all of it
    it has not               nothing was

An outcome is kept for the last OUTCOMES_KEPT commits. A prepared transaction is a row of its own, until it is resolved.

What is damaged is found when the store is loaded, and only then: rows.py and outcomes.py say what is refused for it. Damaged
rows are never written again, and never removed; but for the row of an engine, which each one writes anew.
"""

from __future__ import annotations

import contextlib
import logging
import zlib
from collections.abc import Callable, Iterable

import sqlalchemy as sa

from spark_jms.store.engine.persistence import LedgerBatch, Loaded, OwnershipLostError, Persistence
from spark_jms.store.errors import StoreCorruptError, StoreError, StoreWriteError
from spark_jms.store.jdbc.database import ConnectionLostError, Database, DatabaseConnection
from spark_jms.store.jdbc.outcomes import (
    COMMITTED,
    StoredOutcome,
    Transactions,
    committed,
    committed_xid,
    outcome_of,
    prepared,
    prepared_xid,
    read_outcomes,
)
from spark_jms.store.jdbc.protocol import Ownership, read_owner
from spark_jms.store.jdbc.rows import (
    CLASSES,
    ENGINE,
    RECORD,
    Restoration,
    Row,
    RowChanges,
    RowMap,
    StoredRow,
    number_of,
    restore,
    row_of,
    touched,
)
from spark_jms.store.jdbc.settings import SQLITE
from spark_jms.store.jdbc.tables import Tables
from spark_jms.store.ledger.ledger import Prepared

log = logging.getLogger("store.jdbc")

OUTCOMES_KEPT = 1_024
TRIM_EVERY = 256
KEY_BLOCK = 1_024
KEYS = "objects"


class JdbcPersistence(Persistence):
    """`regain` is what is done about a lost connection: a new ownership of the same incarnation, or OwnershipLostError."""

    def __init__(
        self,
        database: Database,
        tables: Tables,
        ownership: Ownership,
        regain: Callable[[str], Ownership],
    ) -> None:
        self._database = database
        self._tables = tables
        self.ownership = ownership
        self.incarnation = ownership.incarnation
        self._regain = regain
        self._rows = RowMap()
        self._damaged_rows: frozenset[tuple[str, int]] = frozenset()
        self._damaged_xids: list[str] = []
        self._next_id = self._last_id = 0
        self._append_count = 0
        self._closed = False
        self._data: DatabaseConnection | None = None

    # ---- load

    def load(self) -> Loaded:
        try:
            return self._load()
        except ConnectionLostError as error:
            raise OwnershipLostError(f"the connection was lost while the store was read: {error}") from error

    def _load(self) -> Loaded:
        data = self._connect()
        with data.transaction():
            self._verify(data)
            self._catalogue(data)
            restored, transactions = self._read(data)
            if refusals := (*restored.refusals, *transactions.refusals, *unkept_promises(restored, transactions)):
                raise refusals[0]
            if restored.dropped:
                ids = [row.id for row in restored.dropped]
                for table in self._tables.objects[self._tables.persistent_count :]:
                    data.run(sa.delete(table).where(table.c.id.in_(ids)))
            self._last_id = self._next_id = self._check_keys(data, restored.last_id)
        self._rows.load(restored.rows)
        self._damaged_rows = _places(restored)
        self._damaged_xids = transactions.kept
        self._warn(restored, transactions)
        entries = (*restored.entries, *transactions.entries)
        return Loaded(transactions.position, entries, tuple(transactions.outcomes), transactions.known_since)

    def _read(self, data: DatabaseConnection) -> tuple[Restoration, Transactions]:
        shown = self._database.settings.shown
        return restore(read_rows(data, self._tables), shown), read_transactions(data, self._tables, shown)

    def _warn(self, restored: Restoration, transactions: Transactions) -> None:
        told: set[str] = set()
        for damaged in (*restored.damaged, *transactions.damaged):
            if damaged.name not in told:
                told.add(damaged.name)
                log.warning("%s", damaged.error())
        for place in (*restored.passed_over, *transactions.passed_over):
            log.warning("%s: %s; it is left as it is, and nothing is refused", self._database.settings.shown, place)

    def _catalogue(self, data: DatabaseConnection) -> None:
        """SIBCLASSMAP, SIBLISTING and SIBKEYS of new tables; of old ones they are compared."""
        classes = {class_id: (name, int(persistent)) for class_id, (name, persistent) in CLASSES.items()}
        self._compare(data, self._tables.class_map, classes)
        listing = {
            number: (table.name, int(number < self._tables.persistent_count))
            for number, table in enumerate(self._tables.objects)
        }
        self._compare(data, self._tables.listing, listing)

    @staticmethod
    def _compare(data: DatabaseConnection, table: sa.Table, wanted: dict[int, tuple[str, int]]) -> None:
        found = {row[0]: (row[1], row[2]) for row in data.rows(sa.select(*table.c))}
        if found and found != wanted:
            raise StoreCorruptError(table.fullname, 0, f"it lists {found}, and should {wanted}")
        if not found:
            names = [column.name for column in table.c]
            data.run(sa.insert(table), [dict(zip(names, (i, *rest), strict=True)) for i, rest in wanted.items()])

    def _check_keys(self, data: DatabaseConnection, last_used: int) -> int:
        keys = self._tables.keys
        found = data.rows(sa.select(keys.c.last_key).where(keys.c.key_id == KEYS))
        if not found:
            data.run(sa.insert(keys), {"key_id": KEYS, "last_key": last_used})
            return last_used
        if number_of(found[0][0]) < last_used:
            raise StoreCorruptError(
                keys.fullname, number_of(found[0][0]), f"id {last_used} is in use, and was not handed out"
            )
        return int(found[0][0])

    # ---- append

    def append(self, batch: LedgerBatch) -> None:
        tries, in_doubt = 0, False
        while True:
            try:
                if in_doubt and self._was_kept(batch):
                    return None
                in_doubt = False
                return self._append(batch)
            except ConnectionLostError as error:
                self._drop_data()
                tries, in_doubt = tries + 1, True
                self.ownership = self._regain(str(error))  # or OwnershipLostError
                if tries > 3:
                    raise OwnershipLostError(f"the connection was lost {tries} times in one write: {error}") from error

    def _append(self, batch: LedgerBatch) -> None:
        data = self._data or self._connect()
        mark = self._next_id, self._last_id
        try:
            with data.transaction():
                self._verify(data)
                changes = self._rows.changes(batch, self._new_id(data))
                self._write_rows(data, changes)
                self._write_outcome(data, batch)
        except BaseException:
            self._next_id, self._last_id = mark
            raise
        self._rows.made(changes)
        self._append_count += 1

    def _verify(self, data: DatabaseConnection) -> None:
        """Under a lock that lasts until the commit: who would take the store over has to wait for it."""
        if self._database.settings.dialect == SQLITE:
            kept = self.ownership.verify()
        else:
            data.run(f"LOCK TABLE {self._tables.owner.fullname} IN ROW SHARE MODE")
            kept = read_owner(data, self._tables) == self.ownership.row
        if not kept:
            raise OwnershipLostError(f"{self._database.settings.shown}: SIBOWNER names another incarnation now")

    def _new_id(self, data: DatabaseConnection) -> Callable[[], int]:
        keys = self._tables.keys

        def new_id() -> int:
            if self._next_id == self._last_id:
                # Read back, not reckoned: a block whose commit got lost may have been handed out all the same.
                data.run(sa.update(keys).where(keys.c.key_id == KEYS).values(last_key=keys.c.last_key + KEY_BLOCK))
                self._last_id = int(data.rows(sa.select(keys.c.last_key).where(keys.c.key_id == KEYS))[0][0])
                self._next_id = self._last_id - KEY_BLOCK
            self._next_id += 1
            return self._next_id

        return new_id

    def _table_of(self, row: Row) -> sa.Table:
        first = self._tables.persistent_count
        kind = self._tables.objects[:first] if row.persistent else self._tables.objects[first:]
        return kind[zlib.crc32(b"%d" % row.home) % len(kind)]

    def _write_rows(self, data: DatabaseConnection, changes: RowChanges) -> None:
        for table, rows in self._by_table(row for _, row in changes.deletes).items():
            data.run(sa.delete(table).where(table.c.id == sa.bindparam("old")), [{"old": row.id} for row in rows])
        for table, rows in self._by_table(row for _, row in changes.inserts).items():
            data.run(sa.insert(table), [row.values() for row in rows])
        for table, rows in self._by_table(row for _, row in changes.updates).items():
            values = [{f"new_{name}": value for name, value in row.values().items()} for row in rows]
            done = data.run(
                sa.update(table)
                .where(table.c.id == sa.bindparam("new_id"))
                .values({column: sa.bindparam(f"new_{column.name}") for column in table.c if column.name != "id"}),
                values,
            )
            if done.rowcount not in (-1, len(rows)):
                raise StoreWriteError(f"{table.fullname}: {done.rowcount} of {len(rows)} rows were there to be changed")

    def _by_table(self, rows: Iterable[Row]) -> dict[sa.Table, list[Row]]:
        found: dict[sa.Table, list[Row]] = {}
        for row in rows:
            found.setdefault(self._table_of(row), []).append(row)
        return found

    def _write_outcome(self, data: DatabaseConnection, batch: LedgerBatch) -> None:
        table = self._tables.transactions
        for xid in touched(batch).prepared:
            data.run(sa.delete(table).where(table.c.xid == prepared_xid(xid)))
            if (changes := batch.after.prepared.get(xid)) is not None:
                data.run(sa.insert(table), prepared(xid, changes, batch.base, batch.position).values())
        data.run(sa.insert(table), committed(batch.tokens, batch.base, batch.position).values())
        if self._append_count % TRIM_EVERY == TRIM_EVERY - 1:
            newest = sa.select(table.c.position).where(table.c.state == COMMITTED)
            oldest = data.rows(newest.order_by(table.c.position.desc()).offset(OUTCOMES_KEPT).limit(1))
            if oldest:
                old = sa.delete(table).where(table.c.state == COMMITTED, table.c.position <= oldest[0][0])
                data.run(old.where(table.c.xid.not_in(self._damaged_xids)))

    def _was_kept(self, batch: LedgerBatch) -> bool:
        """After the lock was regained: nothing of the lost connection is under way any more. The map is read anew. Damage
        that was not there before may be of the very commit that is in doubt: then this engine must not go on."""
        table, xid = self._tables.transactions, committed_xid(batch.tokens, batch.base)
        try:
            data = self._connect()
            with data.transaction():
                self._verify(data)
                restored, transactions = self._read(data)
                new = {*transactions.kept} - {*self._damaged_xids}
                if restored.refusals or transactions.refusals or new or _places(restored) != self._damaged_rows:
                    raise OwnershipLostError(f"{self._database.settings.shown}: more of it is damaged than before")
                kept = bool(data.rows(sa.select(table.c.xid).where(table.c.xid == xid)))
                self._last_id = self._next_id = self._check_keys(data, 0)
            self._rows.load(restored.rows)
        except OwnershipLostError:
            raise
        except StoreError as error:  # nobody knows, so this engine must not go on
            raise OwnershipLostError(error.detail()) from error
        log.warning("the append %s was in doubt: it was %s", xid, "committed" if kept else "not committed")
        return kept

    # ---- the engine's own row

    def publish(self, data: bytes) -> None:
        """Where this engine serves; the row of the engine before goes."""
        try:
            connection = self._data or self._connect()
            first = self._tables.persistent_count
            with connection.transaction():
                self._verify(connection)
                for table in self._tables.objects[first:]:
                    connection.run(sa.delete(table).where(table.c.class_id == ENGINE))
                mark = self._new_id(connection)()
                row = Row(mark, 0, ENGINE, self.incarnation, 0, data)
                connection.run(sa.insert(self._table_of(row)), row.values())
        except ConnectionLostError as error:
            raise OwnershipLostError(f"the connection was lost while the engine was published: {error}") from error

    def _connect(self) -> DatabaseConnection:
        try:
            self._data = self._database.connect()
            # Whoever tries to take the store over queues up for SIBOWNER, and whoever comes after him waits behind him.
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
        """From any thread: whoever waits for the database waits no longer."""
        self.ownership.cut()
        if self._data is not None:
            self._data.cut()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._drop_data()
            with contextlib.suppress(ConnectionLostError):
                self.ownership.release()


def unkept_promises(restored: Restoration, transactions: Transactions) -> list[StoreCorruptError]:
    """Of a transaction that changes a record set of which nothing is there."""
    names = {key[1] for key, row in restored.rows if row.class_id == RECORD}
    names |= {damaged.name for damaged in restored.damaged}
    return [
        StoreCorruptError(f"transaction {entry.xid}", 0, f"record set {change.name!r}, which it changes, is not there")
        for entry in transactions.prepared
        if isinstance(entry, Prepared)
        for change in entry.changes
        if change.name not in names
    ]


def _places(restored: Restoration) -> frozenset[tuple[str, int]]:
    return frozenset((damaged.file, damaged.offset) for damaged in restored.damaged)


def read_rows(data: DatabaseConnection, tables: Tables) -> list[StoredRow]:
    """Of all SIBnnn."""
    return [
        StoredRow(row_of(row), row.identity, row.checksum, table.fullname, number < tables.persistent_count)
        for number, table in enumerate(tables.objects)
        for row in data.rows(sa.select(*table.c))
    ]


def read_transactions(data: DatabaseConnection, tables: Tables, place: str) -> Transactions:
    table = tables.transactions
    found = [StoredOutcome(outcome_of(row), row.identity, row.checksum) for row in data.rows(sa.select(*table.c))]
    return read_outcomes(found, f"{place}, {table.fullname}")
