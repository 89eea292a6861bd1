"""Which sessions of PostgreSQL have the locks of a data store, and how those of a hung engine end.

An engine that lives uses the connection with its lock every `verify_interval_ms`. So when an engine does not answer and the
database has not heard from that connection for `hang_limit_s`, its process is stopped, or its host or network is away. Then a
process that waits for the lock has the database end the sessions of that engine: those that have one of its locks, and are as silent.
That is safe whatever the process does when it wakes: each of its writes verifies that it is the owner still (persistence.py).

An engine that the database hears is not ended, also where this process cannot reach it: others may.

Features: S7 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from spark_jms.store.jdbc.database import DatabaseConnection
from spark_jms.store.jdbc.tables import Tables

_ENGINE = "ShareLock"  # on SIBOWNER; that of a write is a RowShareLock, that of a start an ExclusiveLock
_LOCKS = (
    "SELECT DISTINCT l.pid, l.mode, extract(epoch FROM clock_timestamp() - a.state_change) AS silent_s FROM pg_locks l "
    "JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace "
    "JOIN pg_database d ON d.oid = l.database JOIN pg_stat_activity a ON a.pid = l.pid "
    "WHERE l.granted AND c.relname IN (:owner, :owner0) AND n.nspname = coalesce(:schema, current_schema()) "
    "AND d.datname = current_database() AND l.mode IN ('ShareLock', 'RowShareLock', 'ExclusiveLock') "
    "AND l.pid <> pg_backend_pid()"
)
_END = (
    "SELECT pid FROM pg_stat_activity WHERE pid = ANY(:pids) AND usename = current_user "
    "AND state_change < clock_timestamp() - make_interval(secs => :limit_s) AND pg_terminate_backend(pid)"
)


@dataclass(frozen=True)
class LockHolder:
    """`silent_s`: since when the database has not heard from the session; None when this user may not see that."""

    pid: int
    mode: str
    silent_s: float | None

    def is_silent(self, limit_s: float) -> bool:
        return self.silent_s is not None and self.silent_s >= limit_s


def holders(connection: DatabaseConnection, tables: Tables, schema: str) -> list[LockHolder]:
    """The sessions with a lock on SIBOWNER or SIBOWNER0."""
    asked = sa.text(_LOCKS).bindparams(
        owner=tables.owner.name, owner0=tables.owner0.name, schema=schema.lower() or None
    )
    return [
        LockHolder(row.pid, row.mode, None if row.silent_s is None else float(row.silent_s))
        for row in connection.rows(asked)
    ]


def has_engine(found: list[LockHolder]) -> bool:
    """An engine holds the lock."""
    return any(holder.mode == _ENGINE for holder in found)


def to_end(found: list[LockHolder], limit_s: float) -> list[int]:
    """The sessions of an engine that hangs, or of a process that hangs while it starts. None of them while the database hears an
    engine."""
    if any(holder.mode == _ENGINE and not holder.is_silent(limit_s) for holder in found):
        return []
    return sorted({holder.pid for holder in found if holder.is_silent(limit_s)})


def end_hung(connection: DatabaseConnection, tables: Tables, schema: str, limit_s: float) -> list[int]:
    """The sessions that the database has ended now: of this user, and silent until the last moment. `connection` is in no
    transaction."""
    pids = to_end(holders(connection, tables, schema), limit_s)
    connection.rollback()  # what a transaction sees of the sessions stays as it was
    if not pids:
        return []
    ended = connection.rows(sa.text(_END).bindparams(pids=pids, limit_s=limit_s))
    return sorted(row.pid for row in ended)
