"""The messaging engine of a data store: one process at a time, for as long as it holds the lock (S3 to S8).

The model. The texts' messaging engine owns its data store alone, for life. Our store is opened by many processes, on
several hosts. Both hold: whoever opens the store looks for the engine that serves it and becomes its client; if there is
none, it tries to get the lock, and having got it *is* the engine, and serves all others (store/engine). So there is one
owner, which may trust what it has in memory, and no process asks the database but the engine.

    state      event                                             next
    NOBODY     the row of an engine is there, and it answers     CLIENT of that one
    NOBODY     no engine answers; all locks got                  ENGINE: load, serve, publish where
    NOBODY     no engine answers; a lock is held                 NOBODY: again after retry_interval_ms, up to retry_limit_s
    CLIENT     the engine does not answer any more               NOBODY; its sessions wait, and keep their ids
    ENGINE     connection lost, on_connection_loss=failover      DISABLED ("panic"), at once
    ENGINE     connection lost, on_connection_loss=retry         REGAINING: writes wait, reads too
    REGAINING  lock regained, and nobody had it in between       ENGINE, the same incarnation
    REGAINING  another has had it, or retry_limit_s is over      DISABLED
    ENGINE     closed                                            lock released; the others find NOBODY
    DISABLED   –                                                 never writes again; its process is NOBODY

That a disabled or hung engine cannot write is not left to its good will: each write reads SIBOWNER under a lock that
excludes a new owner, in its own transaction (persistence.py). While an engine only *hangs* it holds its lock, and nobody
takes over until its process is ended; the log says which process that is.

Each engine publishes host, port and a secret in a non-persistent row that whoever may read the database can read.
Clients prove that they know the secret. `engine_host` is the address that others reach; the default serves this host.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import sqlalchemy as sa

from spark_jms.store.engine.backend import EngineFinder
from spark_jms.store.engine.link import Address
from spark_jms.store.engine.persistence import Clock, OwnershipLostError
from spark_jms.store.engine.server import Server, monotonic_ms
from spark_jms.store.engine.session_process import process_gone, start_of, this_host
from spark_jms.store.errors import (
    DatabaseUnreachableError,
    ForeignOwnerError,
    LockHeldError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreRightsError,
    StoreWriteError,
)
from spark_jms.store.jdbc.database import ConnectionLostError, Database, DatabaseConnection
from spark_jms.store.jdbc.persistence import JdbcPersistence
from spark_jms.store.jdbc.protocol import LockTakenError, OwnerRow, Ownership, acquire, check_owner, read_owner
from spark_jms.store.jdbc.rows import ENGINE, row_of
from spark_jms.store.jdbc.schema import ensure_tables
from spark_jms.store.jdbc.settings import RETRY, SQLITE, JdbcSettings
from spark_jms.store.jdbc.tables import Tables, make_tables, sqlite_file

log = logging.getLogger("store.jdbc")

PROBE_TIMEOUT_S = 1.0
LOG_EVERY_MS = 10_000.0
OPEN_LIMIT_S = 10.0  # of a first opening: a restart of the database fits in, and a wrong address is told soon


class State(Enum):
    NOBODY = "nobody"
    CLIENT = "client"
    ENGINE = "engine"
    REGAINING = "regaining"
    DISABLED = "disabled"


@dataclass(frozen=True)
class Published:
    """What an engine says about itself in its row."""

    incarnation: str
    host: str
    port: int
    secret: str
    hostname: str
    process: str
    since_ms: int

    @property
    def address(self) -> Address:
        return Address(self.host, self.port, bytes.fromhex(self.secret), self.incarnation)

    @property
    def pid(self) -> int:
        return int(self.process.split(".")[2])

    def shown(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.since_ms / 1000))
        return f"incarnation {self.incarnation}, process {self.pid} of {self.hostname}, since {since} UTC"

    def encode(self) -> bytes:
        return json.dumps(vars(self)).encode()

    @staticmethod
    def decode(data: bytes) -> Published:
        try:
            return Published(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise StoreCorruptError("the row of the engine", 0, str(error)) from error


def read_published(connection: DatabaseConnection, tables: Tables) -> Published | None:
    for table in tables.objects[tables.persistent_count :]:
        for row in connection.rows(sa.select(*table.c).where(table.c.class_id == ENGINE)):
            found = row_of(row)
            if found.checksum == row.checksum:  # else it is as if nobody had published: the lock tells
                return Published.decode(found.data)
    return None


@dataclass(frozen=True)
class Clocks:
    now_ms: Clock = monotonic_ms
    sleep_ms: Callable[[float], None] = lambda ms: time.sleep(ms / 1000.0)


class JdbcFinder(EngineFinder):
    """One per opened store and process: what it knows of the engine, and the engine itself when it is here."""

    def __init__(
        self, settings: JdbcSettings, *, session_timeout_ms: float, create: bool = True, clocks: Clocks | None = None
    ) -> None:
        self.settings = settings
        self.tables = make_tables(settings)
        self.database = Database(settings)
        self._session_timeout_ms = session_timeout_ms
        self._clocks = clocks or Clocks()
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._waiting_since_ms: float | None = None
        self._logged_ms = -LOG_EVERY_MS
        self._closed = False
        self._ensure_tables(create)

    def _ensure_tables(self, create: bool) -> None:
        """A database that restarts just now is waited for, shortly: DatabaseUnreachableError after OPEN_LIMIT_S."""
        limit_s = min(OPEN_LIMIT_S, self.settings.retry_limit_s)
        begun_ms, told = self._clocks.now_ms(), False
        while True:
            try:
                ensure_tables(self.database, self.tables, create=create)
                return
            except (DatabaseUnreachableError, ConnectionLostError) as error:
                why = error.detail() if isinstance(error, StoreError) else f"{self.settings.shown}: {error}"
                waited_s = (self._clocks.now_ms() - begun_ms) / 1000
                if waited_s >= limit_s or self.settings.dialect == SQLITE:
                    raise DatabaseUnreachableError(f"{why}, tried for {waited_s:.1f} s") from error
            if not told:
                log.warning("the database cannot be reached, retrying for %g s (%s)", limit_s, why)
                told = True
            self._clocks.sleep_ms(min(self.settings.retry_interval_ms, limit_s * 1000))

    @property
    def state(self) -> State:
        engine = self._engine
        if engine is not None:
            return engine.state
        return State.NOBODY

    def find(self, failed: Address | None = None) -> Server | Address | None:
        with self._lock:
            if self._closed:
                return None
            if self._engine is not None:
                if not self._engine.server.gone:
                    return self._engine.server
                self._engine = None
            try:
                return self._find(failed) or self._become()
            except (DatabaseUnreachableError, ConnectionLostError) as error:
                self._wait_for("the database", str(error))
            except (StoreBusyError, OwnershipLostError) as error:  # LockTakenError among them
                self._wait_for("the lock of the data store", error.detail())
            return None

    def _find(self, failed: Address | None) -> Address | None:
        """The engine that is published, if somebody listens there. A hung one is connected to by its system all the same:
        one that has just failed is passed over, and the lock tells whether it lives."""
        connection = self.database.connect()
        try:
            owner = self._read_owner(connection)
            check_owner(owner, self.settings.engine, self.settings.shown)
            published = read_published(connection, self.tables)
        finally:
            connection.close()
        if published is None or (owner is not None and published.incarnation != owner.inc_uuid):
            return None
        if published.address == failed or process_gone(published.process) or not listens(published):
            self._holder = published.shown()
            return None
        self._waiting_since_ms = None
        return published.address

    _holder = "nobody who says so"

    def _read_owner(self, connection: DatabaseConnection) -> OwnerRow | None:
        """On SQLite nobody can look while somebody starts; the lock protocol itself checks then."""
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
        engine = Engine(self.settings, self.database, self.tables, ownership, self._session_timeout_ms, self._clocks)
        self._engine, self._waiting_since_ms = engine, None
        return engine.server

    def _wait_for(self, what: str, why: str) -> None:
        now_ms = self._clocks.now_ms()
        if self._waiting_since_ms is None:
            self._waiting_since_ms = now_ms
        waited_s = (now_ms - self._waiting_since_ms) / 1000
        limit_s = self.settings.retry_limit_s
        if now_ms - self._logged_ms >= LOG_EVERY_MS:
            self._logged_ms = now_ms
            log.warning(
                "%s: waiting for %s for %.0f s, retrying up to %.0f s (%s; last engine: %s)",
                self.settings.shown, what, waited_s, limit_s, why, self._holder,
            )  # fmt: skip
        if waited_s >= limit_s:
            self._waiting_since_ms = None
            if what == "the database":
                raise DatabaseUnreachableError(f"{self.settings.shown}: for {limit_s:g} s: {why}")
            raise LockHeldError(f"{self.settings.shown}: not got within {limit_s:g} s; last engine: {self._holder}")
        self._clocks.sleep_ms(self.settings.retry_interval_ms)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._engine is not None:
                self._engine.close()
            self.database.close()

    def abandon(self) -> None:
        self.database.abandon()
        if self._engine is not None:
            self._engine.server.abandon()


def listens(published: Published) -> bool:
    try:
        socket.create_connection((published.host, published.port), PROBE_TIMEOUT_S).close()
    except OSError:
        return False
    return True


class Engine:
    """Between the lock and its loss: the server, the monitor that verifies the lock, and what to do about a loss."""

    def __init__(
        self,
        settings: JdbcSettings,
        database: Database,
        tables: Tables,
        ownership: Ownership,
        session_timeout_ms: float,
        clocks: Clocks,
    ) -> None:
        self._settings = settings
        self._database = database
        self._tables = tables
        self._clocks = clocks
        self._stop = threading.Event()
        self.state = State.ENGINE
        self._regaining = threading.Lock()
        self.persistence = JdbcPersistence(database, tables, ownership, self._lost_connection)
        self.server = Server(
            self.persistence, session_timeout_ms=session_timeout_ms, host=_listen_host(settings),
            port=settings.engine_port, clock_ms=clocks.now_ms, lost=self._disabled,
        )  # fmt: skip
        try:
            self.persistence.publish(self._about().encode())
        except BaseException:
            self.server.close()
            raise
        self._monitor = threading.Thread(target=self._watch, name="store-jdbc-monitor", daemon=True)
        self._monitor.start()

    def _about(self) -> Published:
        pid = os.getpid()
        return Published(
            incarnation=self.server.incarnation, host=self._settings.engine_host, port=self.server.address[1],
            secret=self.server.secret.hex(), hostname=socket.gethostname(),
            process=f"0.{this_host()}.{pid}.{start_of(pid) or '-'}", since_ms=int(time.time() * 1000),
        )  # fmt: skip

    # ---- the lock is verified for life

    def _watch(self) -> None:
        while not self._stop.wait(self._settings.verify_interval_ms / 1000):
            ownership = self.persistence.ownership
            if self.state is not State.ENGINE:
                continue
            try:
                if not ownership.verify():
                    self.disable("SIBOWNER names another incarnation, or its file was replaced")
            except ConnectionLostError as error:
                self._lock_connection_lost(ownership, str(error))
            except StoreError as error:
                self.disable(error.detail())

    def _lock_connection_lost(self, ownership: Ownership, why: str) -> None:
        try:
            if self.persistence.ownership is ownership:
                self.persistence.ownership = self._lost_connection(why)
        except OwnershipLostError as error:
            self.disable(error.detail())

    def _lost_connection(self, why: str) -> Ownership:
        """What `on_connection_loss` says: a new ownership, or OwnershipLostError. In the writer's thread or the monitor's;
        whoever comes second finds what the first one got."""
        lost = self.persistence.ownership
        with self._regaining:
            if self.persistence.ownership is not lost:
                return self.persistence.ownership
            if self._settings.on_connection_loss != RETRY or self._stop.is_set():
                raise OwnershipLostError(f"the connection to the data store was lost ({why})")
            self.state = State.REGAINING
            self.server.set_certain(False)
            ownership = self.persistence.ownership = self._regain(lost, why)
            self.server.set_certain(True)
            self.state = State.ENGINE
            return ownership

    def _regain(self, lost: Ownership, why: str) -> Ownership:
        lost.cut()
        lost.release()
        begun_ms, logged_ms = self._clocks.now_ms(), -LOG_EVERY_MS
        limit_s = self._settings.retry_limit_s
        while not self._stop.is_set() and not self.server.gone:
            now_ms = self._clocks.now_ms()
            waited_s = (now_ms - begun_ms) / 1000
            if now_ms - logged_ms >= LOG_EVERY_MS:
                logged_ms = now_ms
                log.warning(
                    "%s: engine %s lost its connection and tries to regain its lock, for %.0f s of %.0f s (%s)",
                    self._settings.shown, self.server.incarnation, waited_s, limit_s, why,
                )  # fmt: skip
            try:
                regained = acquire(self._database, self._tables, lost.row.me_uuid, again=lost.row)
                log.warning(
                    "%s: engine %s regained its lock after %.1f s", self._settings.shown, lost.incarnation, waited_s
                )
                return regained
            except ForeignOwnerError as error:
                raise OwnershipLostError(f"another engine has had the data store: {error.detail()}") from error
            except StoreRightsError as error:
                raise OwnershipLostError(error.detail()) from error
            except (LockTakenError, DatabaseUnreachableError, ConnectionLostError, StoreWriteError) as error:
                why = str(error)
            except StoreError as error:
                raise OwnershipLostError(error.detail()) from error
            if waited_s >= limit_s:
                break
            self._clocks.sleep_ms(self._settings.retry_interval_ms)
        raise OwnershipLostError(f"the lock was not regained within {limit_s:g} s ({why})")

    # ---- the end

    def disable(self, reason: str) -> None:
        self.server.disable(reason)
        self.persistence.cut()

    def _disabled(self, reason: str) -> None:
        if self.state is not State.DISABLED:
            self.state = State.DISABLED
            self._stop.set()
            log.critical(
                "PANIC: %s: engine %s is disabled and writes nothing any more: %s",
                self._settings.shown, self.persistence.incarnation, reason,
            )  # fmt: skip

    def close(self) -> None:
        """Clean: what is queued is written, the lock is released, clients are sent away."""
        self._stop.set()
        self.server.close()
        self._monitor.join()
        if self.state is State.ENGINE:
            log.info("%s: engine %s stopped and released its lock", self._settings.shown, self.server.incarnation)


def _listen_host(settings: JdbcSettings) -> str:
    return settings.engine_host if settings.engine_host in ("127.0.0.1", "localhost", "::1") else "0.0.0.0"


__all__ = ["Clocks", "Engine", "JdbcFinder", "Published", "State", "listens", "read_published"]
