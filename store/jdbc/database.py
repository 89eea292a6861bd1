"""Connections to the database, and what its errors mean. The only file that knows both drivers.

Keepalive. On PostgreSQL every connection sets keepalives on both ends: on the client (libpq), so that an engine notices
within `statement_limit_s` that the database is gone, and on the server, so that the database notices within
`orphan_limit_s` that the engine is gone and drops its lock. With the system's default that takes two hours. A proxy or
firewall that swallows everything keeps the TCP connection alive for the kernel; so a watchdog thread cuts a connection that
waits longer than `statement_limit_s` for an answer.

Features: S8 (docs/FEATURES.md)
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import CursorResult
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from spark_jms.store.errors import (
    DatabaseUnreachableError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreRightsError,
    StoreWriteError,
)
from spark_jms.store.jdbc.settings import SQLITE, JdbcSettings

CONNECT_TIMEOUT_S = 10
LOCK_TIMEOUT_MS = 50  # of a starting engine; a serving engine may queue up behind it, so it waits longer
SQLITE_BUSY_S = 5.0
_FULL = ("53100", "53200", "54000")  # disk_full, out_of_memory, program_limit_exceeded
_RIGHTS = ("42501", "28000", "28P01")
_LOCKED = ("55P03", "40P01", "57014")  # lock_not_available, deadlock_detected, query_canceled


class ConnectionLostError(Exception):
    """The connection to the database is lost. Whether the statement under way was executed is unknown."""


def keepalives(limit_s: float) -> dict[str, int]:
    """Idle time, interval and count, in whole seconds; together at most the limit."""
    count = 6
    interval_s = max(1, int(limit_s / 12))
    return {"idle": max(1, int(limit_s - count * interval_s)), "interval": interval_s, "count": count}


def client_keepalives(settings: JdbcSettings) -> dict[str, int]:
    """Parameters of libpq."""
    ours = keepalives(settings.statement_limit_s)
    return {
        "keepalives": 1,
        **{f"keepalives_{name}": value for name, value in ours.items()},
        "tcp_user_timeout": int(settings.statement_limit_s * 1000),
        "connect_timeout": CONNECT_TIMEOUT_S,
    }


def server_settings(settings: JdbcSettings) -> dict[str, str]:
    """Settings of each session at the server. The transaction with the lock idles for the engine's whole life, so no
    idle time-out may end it."""
    theirs = keepalives(settings.orphan_limit_s)
    return {
        **{f"tcp_keepalives_{name}": str(value) for name, value in theirs.items()},
        "tcp_user_timeout": str(int(settings.orphan_limit_s * 1000)),
        "lock_timeout": str(LOCK_TIMEOUT_MS),
        "idle_in_transaction_session_timeout": "0",
        "idle_session_timeout": "0",
    }


class DatabaseConnection:
    """One physical connection, used by one thread at a time. It raises StoreErrors by name, and ConnectionLostError."""

    def __init__(self, settings: JdbcSettings, raw: sa.Connection) -> None:
        self._settings = settings
        self._raw = raw
        self.lost = False
        self.busy_since_s: float | None = None

    @property
    def _is_sqlite(self) -> bool:
        return self._settings.dialect == SQLITE

    def begin(self, mode: str = "IMMEDIATE") -> None:
        """`mode` is SQLite's: DEFERRED, IMMEDIATE or EXCLUSIVE. PostgreSQL begins by itself with the first statement."""
        if self._is_sqlite:
            self.run(f"BEGIN {mode}")

    def run(
        self, statement: str | sa.Executable, parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]] = ()
    ) -> CursorResult[Any]:
        with self._errors():
            if isinstance(statement, str):
                return self._raw.exec_driver_sql(statement)
            return self._raw.execute(statement, parameters or None)

    def rows(self, statement: sa.Executable) -> list[Any]:
        with self._errors():
            return list(self._raw.execute(statement).all())

    def commit(self) -> None:
        with self._errors():
            if self._is_sqlite:
                self._raw.exec_driver_sql("COMMIT")
            else:
                self._raw.commit()

    def rollback(self) -> None:
        """ConnectionLostError when it is not certain that the transaction was rolled back."""
        with self._errors():
            if self._is_sqlite:
                if getattr(self._raw.connection.driver_connection, "in_transaction", False):
                    self._raw.exec_driver_sql("ROLLBACK")
            else:
                self._raw.rollback()

    @contextmanager
    def transaction(self, mode: str = "IMMEDIATE") -> Iterator[None]:
        """Commits when the block ends, rolls back when it raises."""
        try:
            self.begin(mode)
            yield
            self.commit()
        except ConnectionLostError:
            raise
        except BaseException:
            self.rollback()
            raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        if self.lost:
            raise ConnectionLostError("the connection was lost before")
        self.busy_since_s = time.monotonic()
        try:
            yield
        except DBAPIError as error:
            named = name_error(self._settings, error)
            if isinstance(named, ConnectionLostError):
                self.lost = True
            raise named from error
        except (SQLAlchemyError, OSError) as error:
            self.lost = True
            raise ConnectionLostError(str(error)) from error
        finally:
            self.busy_since_s = None

    def wait_for_locks(self, limit_ms: float) -> None:
        """Replaces LOCK_TIMEOUT_MS. Call outside of a transaction."""
        if self._is_sqlite:
            return
        self.run(f"SET lock_timeout = {int(limit_ms)}")
        self.commit()

    def autocommit(self) -> None:
        """For statements outside of any transaction. PostgreSQL only, on a fresh connection."""
        with self._errors():
            self._raw = self._raw.execution_options(isolation_level="AUTOCOMMIT")

    def cut(self) -> None:
        """From any thread: the thread that waits for an answer gets a ConnectionLostError at once."""
        fd = self._fd()
        if fd is None:
            return
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as copy:
            if self._fd() == fd:  # otherwise it was closed meanwhile, and the copy may be of another file
                copy.shutdown(socket.SHUT_RDWR)

    def _fd(self) -> int | None:
        if self._is_sqlite:
            return None
        with contextlib.suppress(Exception):
            return int(self._raw.connection.driver_connection.fileno())  # type: ignore[union-attr]
        return None

    def close(self) -> None:
        """Ends the connection, and with it the transaction and its locks."""
        with contextlib.suppress(SQLAlchemyError, sa.exc.ResourceClosedError):
            if self.lost:
                self._raw.invalidate()
            elif not self._is_sqlite:
                self._raw.rollback()
        with contextlib.suppress(SQLAlchemyError):
            self._raw.close()

    def abandon(self) -> None:
        """In a forked child: drops the parent's connection without a message to the server, or the lock would outlive the
        parent. The driver closes the descriptor's number again when it is collected, so until then the number stays open on
        /dev/null and cannot become another file."""
        if (fd := self._fd()) is not None:
            with contextlib.suppress(OSError):
                null = os.open(os.devnull, os.O_RDWR)
                os.dup2(null, fd, inheritable=False)
                os.close(null)

    def server_pid(self) -> int | None:
        if self._is_sqlite:
            return None
        return int(self._raw.connection.driver_connection.info.backend_pid)  # type: ignore[union-attr]


class Database:
    """Opens connections, and cuts those whose answers do not come."""

    def __init__(self, settings: JdbcSettings) -> None:
        self.settings = settings
        self._engines: dict[str, sa.Engine] = {}
        self._open: weakref.WeakSet[DatabaseConnection] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._watchdog: threading.Thread | None = None

    def connect(self, path: str = "") -> DatabaseConnection:
        """`path` is an SQLite file; without it, the database of the settings. DatabaseUnreachableError, StoreRightsError."""
        engine = self._engines.get(path) or self._engines.setdefault(path, self._make_engine(path))
        try:
            connection = DatabaseConnection(self.settings, engine.connect())
            if self.settings.dialect == SQLITE:
                connection.run("PRAGMA synchronous=FULL")
            else:
                listed = ", ".join(f"('{k}', '{v}')" for k, v in server_settings(self.settings).items())
                connection.run(  # only those settings that this version of the server knows
                    "SELECT set_config(known.name, wanted.setting, false) "
                    f"FROM (VALUES {listed}) AS wanted(name, setting) JOIN pg_settings AS known USING (name)"
                )
                connection.commit()
        except DBAPIError as error:
            named = name_error(self.settings, error)
            if isinstance(named, ConnectionLostError | StoreWriteError) and not isinstance(named, StoreRightsError):
                raise DatabaseUnreachableError(f"{self.settings.shown}: {_first_line(error)}") from error
            raise named from error
        except ConnectionLostError as error:
            raise DatabaseUnreachableError(f"{self.settings.shown}: {error}") from error
        with self._lock:
            self._open.add(connection)
            if self._watchdog is None and self.settings.dialect != SQLITE:
                self._watchdog = threading.Thread(target=self._watch, name="store-jdbc-watchdog", daemon=True)
                self._watchdog.start()
        return connection

    def _make_engine(self, path: str) -> sa.Engine:
        settings = self.settings
        if settings.dialect == SQLITE:
            return sa.create_engine(
                f"sqlite:///{path or settings.path}",
                poolclass=NullPool,
                isolation_level="AUTOCOMMIT",
                connect_args={"check_same_thread": False, "timeout": SQLITE_BUSY_S},
            )
        url = sa.URL.create(
            "postgresql+psycopg",
            username=settings.user or None,
            password=settings.password or None,
            host=settings.host,
            port=settings.port,
            database=settings.database,
            query={"application_name": f"spark-jms {os.getpid()}", **dict(settings.libpq)},
        )
        return sa.create_engine(
            url, poolclass=NullPool, isolation_level="READ COMMITTED", connect_args=client_keepalives(settings)
        )

    def _watch(self) -> None:
        limit_s = self.settings.statement_limit_s
        while not self._stop.wait(min(0.25, limit_s / 4)):
            with self._lock:
                connections = list(self._open)
            for connection in connections:
                since_s = connection.busy_since_s
                if since_s is not None and time.monotonic() - since_s > limit_s:
                    connection.cut()

    def close(self) -> None:
        self._stop.set()
        for engine in self._engines.values():
            engine.dispose()

    def abandon(self) -> None:
        for connection in list(self._open):
            connection.abandon()


def name_error(settings: JdbcSettings, error: DBAPIError) -> StoreError | ConnectionLostError:
    text = f"{settings.shown}: {_first_line(error)}"
    if settings.dialect == SQLITE:
        return _name_sqlite(error, text)
    state = getattr(error.orig, "sqlstate", None) or ""
    if state in _RIGHTS or "permission denied" in text or "password authentication failed" in text:
        return StoreRightsError(text)
    if state in _LOCKED:
        return StoreBusyError(text)
    # Class 57P: the server is shutting down, or an administrator ended the session. 08: connection exceptions.
    if error.connection_invalidated or state.startswith(("57P", "08")) or not state:
        return ConnectionLostError(text)
    return StoreFullError(text) if state in _FULL else StoreWriteError(text)


def _name_sqlite(error: DBAPIError, text: str) -> StoreError | ConnectionLostError:
    code = getattr(error.orig, "sqlite_errorname", "")
    if code.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")) or "database is locked" in text:
        return StoreBusyError(text)
    if code.startswith("SQLITE_FULL") or "disk is full" in text:
        return StoreFullError(text)
    if code.startswith(("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")) or "readonly database" in text:
        return StoreRightsError(text)
    if code.startswith(("SQLITE_CANTOPEN", "SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return ConnectionLostError(text)
    return StoreWriteError(text)


def _first_line(error: DBAPIError) -> str:
    lines = str(error.orig).strip().splitlines()
    return lines[0] if lines else type(error.orig).__name__
