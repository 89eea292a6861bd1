"""The messaging engine of a data store: one process at a time, for as long as it holds the lock.

Its states are the table ENGINE_STATES (protocol.py). A disabled or hung engine cannot write, and this does not depend on that
engine noticing: each write reads SIBOWNER in its own transaction, under a lock that excludes a new owner (persistence.py).
An engine that only *hangs* still holds its lock. PostgreSQL ends its sessions for a process that waits (locks.py); on SQLite no
process takes over until the hung process is ended. The log names that process.

Each engine publishes host, port, certificate and a secret in a non-persistent row, which every user with read access to the
database can read. Clients prove that they know the secret, and accept only that certificate. `engine_host` is the address at
which it listens and that others connect to; the default serves only this host.

Features: S3, S4, S5, S6, S7, S8 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import sqlalchemy as sa

from spark_jms.store.engine.connections import Address, Beat, Done, LinkLostError, TcpLink
from spark_jms.store.engine.entry_log import OwnershipLostError
from spark_jms.store.engine.server import Server, monotonic_ms
from spark_jms.store.errors import (
    DatabaseUnreachableError,
    ForeignOwnerError,
    StoreCorruptError,
    StoreError,
    StoreRightsError,
    StoreWriteError,
)
from spark_jms.store.jdbc.database import ConnectionLostError, Database, DatabaseConnection
from spark_jms.store.jdbc.persistence import JdbcPersistence
from spark_jms.store.jdbc.protocol import (
    CONNECTION_LOSS,
    ENGINE_STATES,
    EngineEvent,
    EngineState,
    LockTakenError,
    Ownership,
    StateMachine,
    acquire,
)
from spark_jms.store.jdbc.rows import ENGINE, row_of
from spark_jms.store.jdbc.settings import JdbcSettings
from spark_jms.store.jdbc.tables import Tables
from spark_jms.store.net.sockets import ServingAddress
from spark_jms.store.processes import Clock, process_gone, start_of, this_host

log = logging.getLogger("store.jdbc")
PROBE_TIMEOUT_S = 1.0
ANSWER_TIMEOUT_S = 2.0
LOG_EVERY_MS = 10_000.0


@dataclass(frozen=True)
class Clocks:
    now_ms: Clock = monotonic_ms
    sleep_ms: Callable[[float], None] = lambda ms: time.sleep(ms / 1000.0)


class Engine:
    """Owns the lock from its acquisition to its loss: the server, the monitor that verifies the lock, and the handling of a
    lost connection."""

    def __init__(
        self,
        settings: JdbcSettings,
        database: Database,
        tables: Tables,
        ownership: Ownership,
        serving: ServingAddress,
        session_timeout_ms: float,
        clocks: Clocks,
    ) -> None:
        self._settings = settings
        self._database = database
        self._tables = tables
        self._clocks = clocks
        self._stop = threading.Event()
        self._machine: StateMachine[EngineState, EngineEvent] = StateMachine(ENGINE_STATES, EngineState.SERVING)
        self._regaining = threading.Lock()
        self.persistence = JdbcPersistence(database, tables, ownership, self._connection_lost)
        with self._heard(ownership):
            self.server = Server(
                self.persistence,
                session_timeout_ms=session_timeout_ms,
                host=serving.host,
                port=serving.port,
                tls=serving.tls,
                clock_ms=clocks.now_ms,
                lost=lambda reason: self._step(EngineEvent.OWNERSHIP_LOST, reason),
            )
        try:
            self.persistence.publish(Published.of(self.server, serving).encode())
        except BaseException:
            self.server.close()
            raise
        self._monitor = threading.Thread(target=self._watch, name="store-jdbc-monitor", daemon=True)
        self._monitor.start()

    @property
    def state(self) -> EngineState:
        return self._machine.state

    @contextmanager
    def _heard(self, ownership: Ownership) -> Iterator[None]:
        """Loading a large store takes long, and the engine answers no client yet: the database hears of it meanwhile, so that those
        who wait do not take it for one that hangs. What happens to the lock is found out afterwards."""
        loaded = threading.Event()

        def use_lock() -> None:
            with suppress(ConnectionLostError, StoreError):
                while not loaded.wait(self._settings.verify_interval_ms / 1000):
                    ownership.verify()

        thread = threading.Thread(target=use_lock, name="store-jdbc-loading", daemon=True)
        thread.start()
        try:
            yield
        finally:
            loaded.set()
            thread.join()

    def _step(self, event: EngineEvent, reason: str = "") -> None:
        entered = self._machine.step(event)
        if entered is EngineState.DISABLED:
            self._stop.set()
            log.critical(
                "PANIC: %s: engine %s is disabled and writes nothing any more: %s",
                self._settings.shown,
                self.persistence.incarnation,
                reason,
            )
        elif entered is EngineState.STOPPED:
            log.info("%s: engine %s stopped and released its lock", self._settings.shown, self.server.incarnation)

    # ---- the monitor verifies the lock

    def _watch(self) -> None:
        while not self._stop.wait(self._settings.verify_interval_ms / 1000):
            ownership = self.persistence.ownership
            if self.state is not EngineState.SERVING:
                continue
            try:
                if not ownership.verify():
                    self._disable("SIBOWNER names another incarnation, or its file was replaced")
            except ConnectionLostError as error:
                self._lock_connection_lost(ownership, str(error))
            except StoreError as error:
                self._disable(error.detail())

    def _lock_connection_lost(self, ownership: Ownership, why: str) -> None:
        try:
            if self.persistence.ownership is ownership:
                self.persistence.ownership = self._connection_lost(why)
        except OwnershipLostError as error:
            self._disable(error.detail())

    def _disable(self, reason: str) -> None:
        self.server.disable(reason)
        self.persistence.cut()

    # ---- a lost connection

    def _connection_lost(self, why: str) -> Ownership:
        """Does what `on_connection_loss` demands: returns a new ownership, or raises OwnershipLostError. The writer and the
        monitor both call it; the second caller gets what the first one regained."""
        lost = self.persistence.ownership
        with self._regaining:
            if self.persistence.ownership is not lost:
                return self.persistence.ownership
            reason = f"the connection to the data store was lost ({why})"
            self._step(CONNECTION_LOSS[self._settings.on_connection_loss], reason)
            if self.state is not EngineState.REGAINING:
                raise OwnershipLostError(reason)
            self.server.set_certain(False)
            try:
                ownership = self.persistence.ownership = self._regain(lost, why)
            except BaseException as error:
                detail = error.detail() if isinstance(error, StoreError) else repr(error)
                self._step(EngineEvent.OWNERSHIP_LOST, detail)
                raise
            self.server.set_certain(True)
            self._step(EngineEvent.LOCK_REGAINED)
            return ownership

    def _regain(self, lost: Ownership, why: str) -> Ownership:
        lost.cut()
        lost.release()
        retry = RetryLimit(self._clocks, self._settings.retry_limit_s, self._settings.retry_interval_ms)
        while self.state is EngineState.REGAINING:
            waited_s = retry.waited_s()
            if retry.is_log_due():
                log.warning(
                    "%s: engine %s lost its connection and tries to regain its lock, for %.0f s of %.0f s (%s)",
                    self._settings.shown,
                    self.server.incarnation,
                    waited_s,
                    retry.limit_s,
                    why,
                )
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
            if waited_s >= retry.limit_s:
                break
            retry.pause()
        raise OwnershipLostError(f"the lock was not regained within {retry.limit_s:g} s ({why})")

    def close(self) -> None:
        """Writes what is queued, releases the lock, then disconnects the clients."""
        self._step(EngineEvent.CLOSE)
        self._stop.set()
        self.server.close()
        self._monitor.join()
        self._step(EngineEvent.LOCK_RELEASED)


@dataclass(frozen=True)
class Published:
    """What an engine publishes about itself: where it serves, and which process it is. `process` identifies the process, also
    after its process id was reused; see store/processes.py."""

    incarnation: str
    host: str
    port: int
    secret: str
    hostname: str
    process: str
    since_ms: int
    certificate: str = ""

    @staticmethod
    def of(server: Server, serving: ServingAddress) -> Published:
        pid = os.getpid()
        return Published(
            incarnation=server.incarnation,
            host=serving.host,
            port=server.address[1],
            secret=server.secret.hex(),
            hostname=socket.gethostname(),
            process=f"0.{this_host()}.{pid}.{start_of(pid) or '-'}",
            since_ms=int(time.time() * 1000),
            certificate=serving.certificate,
        )

    @property
    def address(self) -> Address:
        return Address(self.host, self.port, bytes.fromhex(self.secret), self.incarnation, self.certificate)

    @property
    def pid(self) -> int:
        return int(self.process.split(".")[2])

    def shown(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(self.since_ms / 1000))
        return f"incarnation {self.incarnation}, process {self.pid} of {self.hostname}, since {since} UTC"

    def listens(self) -> bool:
        """Its process is not known to be dead, and a socket listens at its address. A hung process listens as well."""
        if process_gone(self.process):
            return False
        try:
            socket.create_connection((self.host, self.port), PROBE_TIMEOUT_S).close()
        except OSError:
            return False
        return True

    def answers(self) -> bool:
        """It answers a heartbeat within ANSWER_TIMEOUT_S."""
        if process_gone(self.process):
            return False
        try:
            link = TcpLink(self.address, secrets.token_hex(8), ANSWER_TIMEOUT_S, ANSWER_TIMEOUT_S)
        except LinkLostError:
            return False
        try:
            return isinstance(link.ask(Beat(())), Done)
        except LinkLostError:
            return False
        finally:
            link.close()

    def encode(self) -> bytes:
        return json.dumps(vars(self)).encode()

    @staticmethod
    def decode(data: bytes) -> Published:
        try:
            return Published(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise StoreCorruptError("the row of the engine", 0, str(error)) from error


def read_published(connection: DatabaseConnection, tables: Tables) -> Published | None:
    """None when no engine published itself, or when its row is damaged: then only the lock tells whether one lives."""
    for table in tables.objects[tables.persistent_count :]:
        for row in connection.rows(sa.select(*table.c).where(table.c.class_id == ENGINE)):
            found = row_of(row)
            if found.checksum == row.checksum:
                return Published.decode(found.data)
    return None


class RetryLimit:
    """Repeated attempts, bounded by time, with a log line now and then. Measures the time since `start`, or since the first
    failure of a row of failures; `reset` ends the row."""

    def __init__(self, clocks: Clocks, limit_s: float, interval_ms: float) -> None:
        self.limit_s = limit_s
        self._clocks = clocks
        self._interval_ms = min(interval_ms, limit_s * 1000)
        self._since_ms: float | None = None
        self._logged_ms = -LOG_EVERY_MS

    def start(self) -> None:
        """Counts the first attempt, too, which a database that hangs makes long."""
        self._since_ms = self._clocks.now_ms()

    def waited_s(self) -> float:
        now_ms = self._clocks.now_ms()
        if self._since_ms is None:
            self._since_ms = now_ms
        return (now_ms - self._since_ms) / 1000

    def is_over(self) -> bool:
        return self.waited_s() >= self.limit_s

    def is_log_due(self) -> bool:
        """True once every LOG_EVERY_MS."""
        now_ms = self._clocks.now_ms()
        due = now_ms - self._logged_ms >= LOG_EVERY_MS
        if due:
            self._logged_ms = now_ms
        return due

    def pause(self) -> None:
        self._clocks.sleep_ms(self._interval_ms)

    def reset(self) -> None:
        self._since_ms = None
