"""A store in a database: JdbcStore, which users open, JdbcFinder, which finds or becomes its engine, and its administration.

All openings of one store by one process share one client, or one engine. The roles of a process are the table ROLES
(protocol.py).

Features: C16, S1, S4, S5 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from spark_jms.store.contract import StoreOpening
from spark_jms.store.engine.backend import EngineBackend, EngineFinder
from spark_jms.store.engine.connections import Address
from spark_jms.store.engine.entry_log import OwnershipLostError
from spark_jms.store.engine.server import Server
from spark_jms.store.errors import (
    DatabaseUnreachableError,
    LockHeldError,
    SettingInvalidError,
    StoreBusyError,
    StoreError,
    StoreInUseError,
    StoreVersionError,
)
from spark_jms.store.jdbc.content import read_content, read_rows, read_transactions, salvage_rows
from spark_jms.store.jdbc.database import ConnectionLostError, Database, DatabaseConnection
from spark_jms.store.jdbc.engine import Clocks, Engine, RetryLimit, read_published
from spark_jms.store.jdbc.locks import end_hung, has_engine, holders
from spark_jms.store.jdbc.protocol import (
    ROLES,
    LockTakenError,
    OwnerRow,
    ProcessRole,
    RoleEvent,
    StateMachine,
    acquire,
    check_owner,
    read_owner,
)
from spark_jms.store.jdbc.settings import SQLITE, JdbcSettings, parse_jdbc
from spark_jms.store.jdbc.tables import Tables, ensure_tables, make_tables, sqlite_file
from spark_jms.store.ledger.administration import Administration, Checked, LockStatus, Salvaged
from spark_jms.store.ledger.record import Prepared, Restored
from spark_jms.store.ledger.store import LedgerStore
from spark_jms.store.net.sockets import ServingAddress
from spark_jms.store.processes import SharedBackends

log = logging.getLogger("store.jdbc")
_shared: SharedBackends[EngineBackend] = SharedBackends()
VERIFICATIONS_MISSED = 3  # by an engine that hangs, at least


AWAITED: Mapping[RoleEvent, str] = {
    RoleEvent.LOCK_HELD: "the lock of the data store",
    RoleEvent.DATABASE_UNREACHABLE: "the database",
}


AT_THE_LIMIT: Mapping[RoleEvent, type[StoreError]] = {
    RoleEvent.LOCK_HELD: LockHeldError,
    RoleEvent.DATABASE_UNREACHABLE: DatabaseUnreachableError,
}


class JdbcStore(LedgerStore):
    """A store in a database. Each has its own backend; `shared` uses the one of this process."""

    def __init__(self, uri: str, *, session_timeout_ms: int = 10_000, create: bool = True) -> None:
        super().__init__(open_backend(uri, session_timeout_ms=session_timeout_ms, create=create))

    @classmethod
    def shared(
        cls, uri: str, *, session_timeout_ms: int = 10_000, create: bool = True, opening: StoreOpening | None = None
    ) -> LedgerStore:
        wanted = opening or StoreOpening()

        def make() -> EngineBackend:
            return open_backend(uri, session_timeout_ms=session_timeout_ms, create=create, opening=wanted)

        return LedgerStore(_shared.take((uri, session_timeout_ms), make, wanted))


def open_backend(
    uri: str,
    *,
    session_timeout_ms: int = 10_000,
    create: bool = True,
    clocks: Clocks | None = None,
    opening: StoreOpening | None = None,
) -> EngineBackend:
    settings = parse_jdbc(uri)
    clocks, opening = clocks or Clocks(), opening or StoreOpening()
    finder = JdbcFinder(settings, session_timeout_ms=session_timeout_ms, create=create, clocks=clocks, opening=opening)
    return EngineBackend(
        finder,
        session_timeout_ms=session_timeout_ms,
        limit_ms=settings.retry_limit_s * 1000.0,
        clock_ms=clocks.now_ms,
        sleep_ms=clocks.sleep_ms,
        opening=opening,
    )


class JdbcFinder(EngineFinder):
    """How a process finds the engine of a data store, or becomes it. One per opened store and process. It owns the engine while
    the role of this process is ENGINE."""

    def __init__(
        self,
        settings: JdbcSettings,
        *,
        session_timeout_ms: float,
        create: bool = True,
        clocks: Clocks | None = None,
        opening: StoreOpening | None = None,
    ) -> None:
        self.settings = settings
        self.tables = make_tables(settings)
        self.serving = ServingAddress.of(
            settings.engine_host, settings.engine_port, settings.engine_certificate, settings.engine_key
        )
        self.database = Database(settings)
        self._session_timeout_ms = session_timeout_ms
        self._clocks = clocks or Clocks()
        self._opening = opening or StoreOpening()  # until an engine was found once
        self._lock = threading.Lock()
        self._role: StateMachine[ProcessRole, RoleEvent] = StateMachine(ROLES, ProcessRole.SEEKING)
        self._engine: Engine | None = None
        self._retry = RetryLimit(self._clocks, settings.retry_limit_s, settings.retry_interval_ms)
        self._last_engine = "unknown"
        self._found_before = False
        self._ensure_tables(create)

    @property
    def role(self) -> ProcessRole:
        return self._role.state

    def _ensure_tables(self, create: bool) -> None:
        """DatabaseUnreachableError after retry_limit_s, or what the opening may take."""
        limit_s = self._opening.within(self.settings.retry_limit_s)
        retry = RetryLimit(self._clocks, limit_s, self.settings.retry_interval_ms)
        retry.start()
        while True:
            try:
                ensure_tables(self.database, self.tables, create=create)
                return
            except (DatabaseUnreachableError, ConnectionLostError) as error:
                why = error.detail() if isinstance(error, StoreError) else f"{self.settings.shown}: {error}"
                if retry.is_over() or self.settings.dialect == SQLITE:
                    self._log_limit(limit_s, f"the database cannot be reached, and the store does not open ({why})")
                    raise DatabaseUnreachableError(f"{why}, tried for {retry.waited_s():.1f} s") from error
            self._opening.check()
            if retry.is_log_due():
                log.warning("the database cannot be reached, retrying for %g s (%s)", limit_s, why)
            retry.pause()

    def find(self, failed: Address | None = None) -> Server | Address | None:
        with self._lock:
            if self.role is ProcessRole.CLOSED:
                return None
            if self._engine is not None and not self._engine.server.gone:
                return self._engine.server
            self._engine = None
            if self.role is not ProcessRole.SEEKING:
                self._role.step(RoleEvent.ENGINE_LOST)
            try:
                found = self._published_engine(failed) or self._become()
                self._opening, self._found_before = StoreOpening(), True
                return found
            except (DatabaseUnreachableError, ConnectionLostError) as error:
                self._wait(RoleEvent.DATABASE_UNREACHABLE, str(error))
            except (StoreBusyError, OwnershipLostError) as error:  # LockTakenError among them
                self._wait(RoleEvent.LOCK_HELD, error.detail())
            except SettingInvalidError as error:  # this process cannot serve; another one may
                if not self._found_before:
                    raise
                self._wait(RoleEvent.LOCK_HELD, error.detail())
            return None

    def _published_engine(self, failed: Address | None) -> Address | None:
        """The published engine, if it listens. The system accepts connections for a hung process as well, so `failed`, which
        has not answered, is passed over; the lock then tells whether that engine still lives."""
        connection = self.database.connect()
        try:
            owner = self._read_owner(connection)
            check_owner(owner, self.settings.engine, self.settings.shown)
            published = read_published(connection, self.tables)
        finally:
            connection.close()
        if published is None or (owner is not None and published.incarnation != owner.inc_uuid):
            return None
        if published.address == failed or not published.listens():
            self._last_engine = f"{published.shown()}; it does not answer"
            return None
        self._role.step(RoleEvent.ENGINE_ANSWERED)
        self._retry.reset()
        return published.address

    def _read_owner(self, connection: DatabaseConnection) -> OwnerRow | None:
        """On SQLite the row cannot be read while an engine starts; then the lock protocol itself checks the owner."""
        if self.settings.dialect != SQLITE:
            return read_owner(connection, self.tables)
        beside = self.database.connect(sqlite_file(self.settings.path, self.tables.owner))
        try:
            beside.run("PRAGMA busy_timeout=1000")
            return read_owner(beside, self.tables)
        finally:
            beside.close()

    def _become(self) -> Server:
        serving = self.serving.here()
        try:
            ownership = acquire(self.database, self.tables, self.settings.engine)
        except LockTakenError:
            self._end_hung_engine()
            raise
        before = f"after {ownership.before.inc_uuid}" if ownership.before else "the first one"
        log.info("%s: engine %s has the lock, %s", self.settings.shown, ownership.incarnation, before)
        try:
            self._engine = Engine(
                self.settings,
                self.database,
                self.tables,
                ownership,
                serving,
                self._session_timeout_ms,
                self._clocks,
            )
        except OSError as error:
            where = f"{serving.host}:{serving.port}"
            raise SettingInvalidError("engine_host, engine_port", where, f"cannot listen: {error}") from error
        self._role.step(RoleEvent.LOCK_ACQUIRED)
        self._retry.reset()
        return self._engine.server

    def _end_hung_engine(self) -> None:
        """No engine answers, and one has the lock. On SQLite only the end of its process ends that."""
        settings = self.settings
        if settings.dialect == SQLITE:
            return
        limit_s = max(settings.hang_limit_s, VERIFICATIONS_MISSED * settings.verify_interval_ms / 1000)
        connection = self.database.connect()
        try:
            ended = end_hung(connection, self.tables, settings.schema, limit_s)
        finally:
            connection.close()
        if ended:
            log.error(
                "%s: the engine does not answer and has not used its lock for %g s, so the database has ended its sessions (%s; "
                "sessions %s)",
                settings.shown,
                limit_s,
                self._last_engine,
                ", ".join(map(str, ended)),
            )

    def _wait(self, event: RoleEvent, why: str) -> None:
        """One pause before the next attempt; the error of AT_THE_LIMIT after retry_limit_s of them."""
        self._role.step(event)
        waited_s, limit_s = self._retry.waited_s(), self._opening.within(self.settings.retry_limit_s)
        if self._retry.is_log_due():
            log.warning(
                "%s: waiting for %s for %.0f s, retrying up to %.0f s (%s; last engine: %s)",
                self.settings.shown,
                AWAITED[event],
                waited_s,
                limit_s,
                why,
                self._last_engine,
            )
        if waited_s >= limit_s:
            self._retry.reset()
            what = f"waited {limit_s:g} s for {AWAITED[event]}, and the store does not open"
            self._log_limit(limit_s, f"{what} ({why}; last engine: {self._last_engine})")
            raise AT_THE_LIMIT[event](
                f"{self.settings.shown}: waited {limit_s:g} s for {AWAITED[event]} ({why}; last engine: {self._last_engine})"
            )
        self._retry.pause()

    def _log_limit(self, limit_s: float, text: str) -> None:
        """Of an opening with a limit of its own, the caller is told."""
        if limit_s >= self.settings.retry_limit_s:
            log.error("%s: %s", self.settings.shown, text)

    def close(self) -> None:
        with self._lock:
            if self._role.step(RoleEvent.CLOSE):
                if self._engine is not None:
                    self._engine.close()
                self.database.close()

    def abandon(self) -> None:
        self.database.abandon()
        if self._engine is not None:
            self._engine.server.abandon()


# -- administration ----------------------------------------------------------------------------------------------------


class JdbcAdministration(Administration):
    """Nothing here takes the engine's lock."""

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
        return has_engine(holders(self.data, self.tables, self._settings.schema))

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
