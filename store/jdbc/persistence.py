"""How the engine keeps its ledger in the database: load it, append to it, and never when another may own it.

One append is one transaction: lock SIBOWNER so that the owner cannot change (ROW SHARE on PostgreSQL; on SQLite the shared
lock of the third connection does it), read INC_UUID, write the rows, write the outcome into SIBXACTS, commit. So an engine
that lost its lock writes nothing, and every later engine can tell what became of a commit whose answer was lost:

    SIBXACTS has its xid       the whole batch was committed
    SIBXACTS has not           nothing of it was committed

An outcome is kept for the last OUTCOMES_KEPT commits (writing.py). A prepared transaction is a row of its own until it is
resolved.

The engine finds damage only while it loads the store; restoration.py and outcomes.py decide what is refused. It never
changes or removes a damaged row, except the row of the engine, which every engine writes again.

Features: S2, S4, S6 (docs/FEATURES.md)
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable

from spark_jms.store.engine.persistence import LedgerBatch, Loaded, OwnershipLostError, Persistence
from spark_jms.store.errors import StoreError
from spark_jms.store.jdbc.content import StoreContent, read_content
from spark_jms.store.jdbc.database import ConnectionLostError, Database, DatabaseConnection
from spark_jms.store.jdbc.ids import RowIds
from spark_jms.store.jdbc.outcomes import committed_xid
from spark_jms.store.jdbc.protocol import Ownership, read_owner
from spark_jms.store.jdbc.row_changes import RowMap
from spark_jms.store.jdbc.rows import ENGINE, Row
from spark_jms.store.jdbc.schema import ensure_catalogue
from spark_jms.store.jdbc.settings import SQLITE
from spark_jms.store.jdbc.tables import Tables
from spark_jms.store.jdbc.writing import TableWriter

log = logging.getLogger("store.jdbc")

APPEND_TRIES = 3


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
