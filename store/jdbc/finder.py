"""How a process finds the engine of a data store, or becomes it. The roles are the table ROLES (states.py).

Features: S5 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from spark_jms.store.engine.finder import EngineFinder
from spark_jms.store.engine.link import Address
from spark_jms.store.engine.persistence import OwnershipLostError
from spark_jms.store.engine.server import Server
from spark_jms.store.engine.serving_address import ServingAddress
from spark_jms.store.errors import DatabaseUnreachableError, LockHeldError, StoreBusyError, StoreError
from spark_jms.store.jdbc.database import ConnectionLostError, Database, DatabaseConnection
from spark_jms.store.jdbc.engine import Engine
from spark_jms.store.jdbc.protocol import OwnerRow, acquire, check_owner, read_owner
from spark_jms.store.jdbc.published import read_published
from spark_jms.store.jdbc.retry import Clocks, RetryLimit
from spark_jms.store.jdbc.schema import ensure_tables
from spark_jms.store.jdbc.settings import SQLITE, JdbcSettings
from spark_jms.store.jdbc.states import ROLES, ProcessRole, RoleEvent, StateMachine
from spark_jms.store.jdbc.tables import make_tables, sqlite_file
from spark_jms.store.opening import StoreOpening

log = logging.getLogger("store.jdbc")

OPEN_LIMIT_S = 10.0  # of a first opening: long enough for a restart of the database, short enough for a wrong address
AWAITED: Mapping[RoleEvent, str] = {
    RoleEvent.LOCK_HELD: "the lock of the data store",
    RoleEvent.DATABASE_UNREACHABLE: "the database",
}
AT_THE_LIMIT: Mapping[RoleEvent, type[StoreError]] = {
    RoleEvent.LOCK_HELD: LockHeldError,
    RoleEvent.DATABASE_UNREACHABLE: DatabaseUnreachableError,
}


class JdbcFinder(EngineFinder):
    """One per opened store and process. It owns the engine while the role of this process is ENGINE."""

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
        self._ensure_tables(create)

    @property
    def role(self) -> ProcessRole:
        return self._role.state

    def _ensure_tables(self, create: bool) -> None:
        """DatabaseUnreachableError after OPEN_LIMIT_S."""
        limit_s = self._opening.within(min(OPEN_LIMIT_S, self.settings.retry_limit_s))
        retry = RetryLimit(self._clocks, limit_s, self.settings.retry_interval_ms)
        retry.start()
        while True:
            try:
                ensure_tables(self.database, self.tables, create=create)
                return
            except (DatabaseUnreachableError, ConnectionLostError) as error:
                why = error.detail() if isinstance(error, StoreError) else f"{self.settings.shown}: {error}"
                if retry.is_over() or self.settings.dialect == SQLITE:
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
                self._opening = StoreOpening()
                return found
            except (DatabaseUnreachableError, ConnectionLostError) as error:
                self._wait(RoleEvent.DATABASE_UNREACHABLE, str(error))
            except (StoreBusyError, OwnershipLostError) as error:  # LockTakenError among them
                self._wait(RoleEvent.LOCK_HELD, error.detail())
            return None

    def _published_engine(self, failed: Address | None) -> Address | None:
        """The published engine, if it answers. The system accepts connections for a hung process as well, so `failed` is
        passed over; the lock then tells whether that engine still lives."""
        connection = self.database.connect()
        try:
            owner = self._read_owner(connection)
            check_owner(owner, self.settings.engine, self.settings.shown)
            published = read_published(connection, self.tables)
        finally:
            connection.close()
        if published is None or (owner is not None and published.incarnation != owner.inc_uuid):
            return None
        if published.address == failed or not published.answers():
            self._last_engine = published.shown()
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
        ownership = acquire(self.database, self.tables, self.settings.engine)
        before = f"after {ownership.before.inc_uuid}" if ownership.before else "the first one"
        log.info("%s: engine %s has the lock, %s", self.settings.shown, ownership.incarnation, before)
        self._engine = Engine(
            self.settings,
            self.database,
            self.tables,
            ownership,
            self.serving,
            self._session_timeout_ms,
            self._clocks,
        )
        self._role.step(RoleEvent.LOCK_ACQUIRED)
        self._retry.reset()
        return self._engine.server

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
            raise AT_THE_LIMIT[event](
                f"{self.settings.shown}: waited {limit_s:g} s for {AWAITED[event]} ({why}; last engine: {self._last_engine})"
            )
        self._retry.pause()

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
