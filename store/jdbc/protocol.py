"""Who serves a data store: the lock protocol by which an engine gets the store, and the two tables of states. All execute.

The model. The texts' messaging engine owns its data store alone, for life. Our store is opened by many processes, on
several hosts. Both hold: a process that opens the store looks for the engine that serves it and becomes its client; if no
engine answers, the process tries to get the lock, and once it has the lock it *is* the engine and serves all others
(store/engine). So the store has one owner, which may trust its memory, and only the engine queries the database.

STEPS is how an engine gets the lock, step by step; docs/DATA-STORES shows it.

    connection  lock                             from   to
    first       SIBOWNER0, exclusive             2      the end of the start: no two starts run at once
    second      SIBOWNER, exclusive              4      the commit of the new incarnation id
    third       SIBOWNER, shared                 9      the end of the engine's life

A living engine holds SIBOWNER shared, so the exclusive lock on it is refused to every other start. Each start writes a new
incarnation id. Each write of an engine reads the id under a lock that excludes a change of it (`verify`, persistence.py), so
the database refuses what an older start still sends.

PostgreSQL has table locks. A start waits 50 ms for a lock that is taken, not longer, because others queue up behind it; then
JdbcFinder (store.py) tries the whole start again.

SQLite has no table locks, only locks on a whole file. So SIBOWNER0 and SIBOWNER are each alone in a file beside the store's.
`BEGIN EXCLUSIVE` there is the exclusive lock, a read transaction the shared one. The order is the same, with three
differences: the locks belong to the operating system, so they fall with the process and are never orphaned; they hold on one
host; and SIBOWNER cannot be read while it is locked exclusively.

ROLES is what one process is to the store. ENGINE_STATES is the life of one engine, from the moment it has the lock. After a
lost connection the setting `on_connection_loss` decides: `failover` disables the engine at once, `retry` lets it try to
regain its lock, under the same incarnation if no other engine had the store in between. A disabled engine never writes
again; its process seeks an engine, as every other process does.

Every change of role or state goes through `StateMachine.step`: an event that the table does not list raises, so it cannot
happen. `draw` and `draw_states` print the protocol and a table as the diagrams in docs/DATA-STORES.md.

Features: S3, S4, S5, S6, S7, S8 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

import sqlalchemy as sa

from spark_jms.settings.store import FAILOVER, RETRY
from spark_jms.store.errors import ForeignOwnerError, OwnerMissingError, StoreBusyError, StoreVersionError
from spark_jms.store.jdbc.database import Database, DatabaseConnection
from spark_jms.store.jdbc.settings import SQLITE
from spark_jms.store.jdbc.tables import VERSION, Tables, sqlite_file

log = logging.getLogger("store.jdbc")


# -- the lock protocol -------------------------------------------------------------------------------------------------


class Step(Enum):
    CONNECT = "get a connection"
    LOCK_EXCLUSIVE = "LOCK TABLE {table} IN EXCLUSIVE MODE"
    LOCK_SHARE = "LOCK TABLE {table} IN SHARE MODE"
    READ = "SELECT ME_UUID,INC_UUID,VERSION,MIGRATION_VERSION FROM {table}"
    UPDATE = "UPDATE {table} SET INC_UUID=:inc,VERSION=:version,MIGRATION_VERSION=:migration WHERE ME_UUID=:me"
    CLOSE_COMMIT = "commit and close: the exclusive lock on {table} is released"
    CLOSE = "close: the exclusive lock on {table} is released"


@dataclass(frozen=True)
class ProtocolStep:
    number: int
    connection: str
    step: Step
    table: str
    mark: str = ""

    def statement(self, tables: Tables | None = None) -> str:
        name = (
            {"SIBOWNER": tables.owner.fullname, "SIBOWNER0": tables.owner0.fullname}[self.table]
            if tables
            else self.table
        )
        return self.step.value.format(table=name)


FIRST, SECOND, THIRD = "first", "second", "third"
STEPS: tuple[ProtocolStep, ...] = (
    ProtocolStep(1, FIRST, Step.CONNECT, "SIBOWNER0"),
    ProtocolStep(2, FIRST, Step.LOCK_EXCLUSIVE, "SIBOWNER0", "A"),
    ProtocolStep(3, SECOND, Step.CONNECT, "SIBOWNER"),
    ProtocolStep(4, SECOND, Step.LOCK_EXCLUSIVE, "SIBOWNER", "B"),
    ProtocolStep(5, SECOND, Step.READ, "SIBOWNER"),
    ProtocolStep(6, SECOND, Step.UPDATE, "SIBOWNER"),
    ProtocolStep(7, SECOND, Step.CLOSE_COMMIT, "SIBOWNER", "C"),
    ProtocolStep(8, THIRD, Step.CONNECT, "SIBOWNER"),
    ProtocolStep(9, THIRD, Step.LOCK_SHARE, "SIBOWNER", "D"),
    ProtocolStep(10, THIRD, Step.READ, "SIBOWNER"),
    ProtocolStep(11, FIRST, Step.CLOSE, "SIBOWNER0", "E"),
)


@dataclass(frozen=True)
class OwnerRow:
    me_uuid: str
    inc_uuid: str
    version: int
    migration_version: int


class LockTakenError(StoreBusyError):
    """Another engine holds the data store's lock, or is about to get it. Try again."""


def read_owner(connection: DatabaseConnection, tables: Tables) -> OwnerRow | None:
    owner = tables.owner.c
    found = connection.rows(sa.select(owner.me_uuid, owner.inc_uuid, owner.version, owner.migration_version))
    if len(found) > 1:
        raise ForeignOwnerError(tables.owner.fullname, ", ".join(row.me_uuid for row in found), "one of them")
    return OwnerRow(*found[0]) if found else None


def check_owner(row: OwnerRow | None, wanted: str, place: str) -> None:
    """Refuses a foreign store before anything is changed. `wanted`: the id of the engine, "" for any."""
    if row is None:
        return
    if row.version != VERSION:
        raise StoreVersionError(f"{place}, SIBOWNER.VERSION", row.version, VERSION)
    if wanted and row.me_uuid != wanted:
        raise ForeignOwnerError(place, row.me_uuid, wanted)


class Ownership:
    """The shared lock on the third connection, held for the engine's whole life. `before`: the owner until this start."""

    def __init__(
        self, database: Database, tables: Tables, third: DatabaseConnection, row: OwnerRow, before: OwnerRow | None
    ):
        self.row = row
        self.before = before
        self._database = database
        self._tables = tables
        self._third = third
        self._lock = threading.Lock()
        self._inode = self._read_inode()

    @property
    def incarnation(self) -> str:
        return self.row.inc_uuid

    def verify(self) -> bool:
        """True while the lock is held and SIBOWNER holds what this start wrote. ConnectionLostError without an answer."""
        with self._lock:
            return read_owner(self._third, self._tables) == self.row and self._read_inode() == self._inode

    def _read_inode(self) -> int:
        """SQLite locks a file; if that file was replaced, the new one is not locked."""
        if self._database.settings.dialect != SQLITE:
            return 0
        try:
            return os.stat(sqlite_file(self._database.settings.path, self._tables.owner)).st_ino
        except FileNotFoundError:
            return -1

    def server_pid(self) -> int | None:
        return self._third.server_pid()

    def cut(self) -> None:
        self._third.cut()

    def release(self) -> None:
        with self._lock:
            self._third.close()


def acquire(database: Database, tables: Tables, me_uuid: str, *, again: OwnerRow | None = None) -> Ownership:
    """Executes all steps once. LockTakenError when a lock is taken; ForeignOwnerError, OwnerMissingError or StoreVersionError
    before anything is changed.

    `again` is the row of an engine that had the lock and lost its connection. It continues as the same incarnation if no
    other engine had the store in between; otherwise ForeignOwnerError.
    """
    return _Start(database, tables, me_uuid, again).run()


class _Start:
    def __init__(self, database: Database, tables: Tables, me_uuid: str, again: OwnerRow | None) -> None:
        self._database = database
        self._tables = tables
        self._me_uuid = me_uuid
        self._again = again
        self._connections: dict[str, DatabaseConnection] = {}
        self._before: OwnerRow | None = None
        self._row: OwnerRow | None = None

    def run(self) -> Ownership:
        try:
            for step in STEPS:
                log.debug(
                    "lock protocol %d: %s connection: %s", step.number, step.connection, step.statement(self._tables)
                )
                self._do(step)
            assert self._row is not None
            return Ownership(self._database, self._tables, self._connections.pop(THIRD), self._row, self._before)
        except StoreBusyError as error:
            raise LockTakenError(error.detail()) from error
        finally:
            for connection in self._connections.values():
                connection.close()

    def _do(self, step: ProtocolStep) -> None:
        sqlite = self._database.settings.dialect == SQLITE
        match step.step:
            case Step.CONNECT:
                table = self._tables.owner0 if step.table == "SIBOWNER0" else self._tables.owner
                path = sqlite_file(self._database.settings.path, table) if sqlite else ""
                self._connections[step.connection] = self._database.connect(path)
                if sqlite:  # as LOCK_TIMEOUT_MS does on PostgreSQL
                    self._connections[step.connection].run("PRAGMA busy_timeout=50")
            case Step.LOCK_EXCLUSIVE | Step.LOCK_SHARE if sqlite:
                exclusive = step.step is Step.LOCK_EXCLUSIVE
                self._connections[step.connection].begin("EXCLUSIVE" if exclusive else "DEFERRED")
            case Step.LOCK_EXCLUSIVE | Step.LOCK_SHARE:
                self._connections[step.connection].run(step.statement(self._tables))
            case Step.READ:
                self._read(self._connections[step.connection], last=step.connection == THIRD)
            case Step.UPDATE:
                self._update(self._connections[step.connection])
            case Step.CLOSE_COMMIT:
                connection = self._connections.pop(step.connection)
                try:
                    connection.commit()
                finally:
                    connection.close()
            case Step.CLOSE:
                self._connections.pop(step.connection).close()

    def _read(self, connection: DatabaseConnection, last: bool) -> None:
        found = read_owner(connection, self._tables)
        if not last:
            check_owner(found, self._me_uuid, self._database.settings.shown)
            if found is None and self._has_content():
                raise OwnerMissingError(self._database.settings.shown)
            if self._again is not None and found != self._again:
                raise ForeignOwnerError(self._database.settings.shown, str(found), str(self._again))
            self._before = found
        elif found != self._row:
            raise LockTakenError(f"{self._database.settings.shown}: another program changed SIBOWNER during the start")

    def _has_content(self) -> bool:
        """Whether the store is not new: each engine fills its catalogue before it serves."""
        connection = self._database.connect()
        try:
            others = (table for table in self._tables.all if table not in (self._tables.owner, self._tables.owner0))
            return any(connection.rows(sa.select(sa.literal(1)).select_from(table).limit(1)) for table in others)
        finally:
            connection.close()

    def _update(self, connection: DatabaseConnection) -> None:
        me_uuid = self._before.me_uuid if self._before else self._me_uuid or secrets.token_hex(16)
        incarnation = self._again.inc_uuid if self._again else secrets.token_hex(16)
        self._row = OwnerRow(me_uuid, incarnation, VERSION, self._before.migration_version if self._before else 0)
        values = {"inc_uuid": incarnation, "version": VERSION, "migration_version": self._row.migration_version}
        owner = self._tables.owner
        if self._before is None:  # the first start of a new store
            connection.run(sa.insert(owner), {"me_uuid": me_uuid, **values})
        else:
            connection.run(sa.update(owner).where(owner.c.me_uuid == me_uuid).values(**values))


# -- roles and states --------------------------------------------------------------------------------------------------


class ProcessRole(Enum):
    SEEKING = "seeking"
    CLIENT = "client"
    ENGINE = "engine"
    CLOSED = "closed"


class RoleEvent(Enum):
    ENGINE_ANSWERED = "a published engine answers"
    LOCK_ACQUIRED = "no engine answers, lock acquired"
    LOCK_HELD = "no engine answers, lock held"
    DATABASE_UNREACHABLE = "database unreachable"
    ENGINE_LOST = "engine lost or disabled"
    CLOSE = "store closed"


ROLES: Mapping[tuple[ProcessRole, RoleEvent], ProcessRole] = {
    (ProcessRole.SEEKING, RoleEvent.ENGINE_ANSWERED): ProcessRole.CLIENT,
    (ProcessRole.SEEKING, RoleEvent.LOCK_ACQUIRED): ProcessRole.ENGINE,
    (ProcessRole.SEEKING, RoleEvent.LOCK_HELD): ProcessRole.SEEKING,
    (ProcessRole.SEEKING, RoleEvent.DATABASE_UNREACHABLE): ProcessRole.SEEKING,
    (ProcessRole.SEEKING, RoleEvent.CLOSE): ProcessRole.CLOSED,
    (ProcessRole.CLIENT, RoleEvent.ENGINE_LOST): ProcessRole.SEEKING,
    (ProcessRole.CLIENT, RoleEvent.CLOSE): ProcessRole.CLOSED,
    (ProcessRole.ENGINE, RoleEvent.ENGINE_LOST): ProcessRole.SEEKING,
    (ProcessRole.ENGINE, RoleEvent.CLOSE): ProcessRole.CLOSED,
    (ProcessRole.CLOSED, RoleEvent.CLOSE): ProcessRole.CLOSED,
}


class EngineState(Enum):
    SERVING = "serving"
    REGAINING = "regaining"  # reads and writes wait
    STOPPING = "stopping"
    STOPPED = "stopped"
    DISABLED = "disabled"


class EngineEvent(Enum):
    CONNECTION_LOST_FAILOVER = "connection lost, failover"
    CONNECTION_LOST_RETRY = "connection lost, retry"
    LOCK_REGAINED = "lock regained"
    OWNERSHIP_LOST = "another owner, or retry limit"
    CLOSE = "store closed"
    LOCK_RELEASED = "lock released"


CONNECTION_LOSS: Mapping[str, EngineEvent] = {
    FAILOVER: EngineEvent.CONNECTION_LOST_FAILOVER,
    RETRY: EngineEvent.CONNECTION_LOST_RETRY,
}
"""By `on_connection_loss`."""

ENGINE_STATES: Mapping[tuple[EngineState, EngineEvent], EngineState] = {
    (EngineState.SERVING, EngineEvent.CONNECTION_LOST_FAILOVER): EngineState.DISABLED,
    (EngineState.SERVING, EngineEvent.CONNECTION_LOST_RETRY): EngineState.REGAINING,
    (EngineState.SERVING, EngineEvent.OWNERSHIP_LOST): EngineState.DISABLED,
    (EngineState.SERVING, EngineEvent.CLOSE): EngineState.STOPPING,
    (EngineState.REGAINING, EngineEvent.LOCK_REGAINED): EngineState.SERVING,
    (EngineState.REGAINING, EngineEvent.OWNERSHIP_LOST): EngineState.DISABLED,
    (EngineState.REGAINING, EngineEvent.CLOSE): EngineState.STOPPING,
    # A closing engine writes what is queued; it no longer tries to regain a lock that it loses meanwhile.
    (EngineState.STOPPING, EngineEvent.CONNECTION_LOST_FAILOVER): EngineState.DISABLED,
    (EngineState.STOPPING, EngineEvent.CONNECTION_LOST_RETRY): EngineState.DISABLED,
    (EngineState.STOPPING, EngineEvent.LOCK_REGAINED): EngineState.STOPPING,
    (EngineState.STOPPING, EngineEvent.OWNERSHIP_LOST): EngineState.DISABLED,
    (EngineState.STOPPING, EngineEvent.LOCK_RELEASED): EngineState.STOPPED,
    # The writer, the monitor and the server may each notice the same loss.
    (EngineState.DISABLED, EngineEvent.CONNECTION_LOST_FAILOVER): EngineState.DISABLED,
    (EngineState.DISABLED, EngineEvent.CONNECTION_LOST_RETRY): EngineState.DISABLED,
    (EngineState.DISABLED, EngineEvent.LOCK_REGAINED): EngineState.DISABLED,
    (EngineState.DISABLED, EngineEvent.OWNERSHIP_LOST): EngineState.DISABLED,
    (EngineState.DISABLED, EngineEvent.CLOSE): EngineState.DISABLED,
    (EngineState.DISABLED, EngineEvent.LOCK_RELEASED): EngineState.DISABLED,
}

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class StateMachine(Generic[S, E]):
    """One state, changed by its table only. Thread-safe."""

    def __init__(self, table: Mapping[tuple[S, E], S], state: S) -> None:
        self._table = table
        self._lock = threading.Lock()
        self.state = state

    def step(self, event: E) -> S | None:
        """The state that was entered, None when it stays the same. RuntimeError when the table does not list the event."""
        with self._lock:
            before = self.state
            if (before, event) not in self._table:
                raise RuntimeError(f"{type(before).__name__} {before.value!r} has no event {event.value!r}")
            self.state = after = self._table[before, event]
            return after if after is not before else None


def draw() -> str:
    """The protocol as a Mermaid sequence diagram."""
    lines = ["sequenceDiagram", "    participant E as engine", "    participant D as database"]
    for step in STEPS:
        arrow = "->>" if step.step is not Step.READ else "->>+"
        mark = f" ({step.mark})" if step.mark else ""
        lines.append(f"    E{arrow}D: {step.number}{mark} {step.connection}: {step.statement()}".replace("->>+", "->>"))
        if step.step is Step.READ:
            lines.append("    D-->>E: the row; refused if it is foreign, of another version, or another start's")
        if step.mark == "D":
            lines.append("    Note over E,D: the third connection keeps the shared lock for the engine's life")
    return "\n".join(lines)


def draw_states(table: Mapping[tuple[S, E], S]) -> str:
    """The table as a Mermaid state diagram, without the events that change nothing."""
    lines = [
        f"    {before.name} --> {after.name}: {event.value}"
        for (before, event), after in table.items()
        if before is not after
    ]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {next(iter(table))[0].name}", *lines])
