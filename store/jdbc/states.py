"""Who serves a data store, and what becomes of an engine that loses its connection: two tables that execute.

The model. The texts' messaging engine owns its data store alone, for life. Our store is opened by many processes, on
several hosts. Both hold: a process that opens the store looks for the engine that serves it and becomes its client; if no
engine answers, the process tries to get the lock, and once it has the lock it *is* the engine and serves all others
(store/engine). So the store has one owner, which may trust its memory, and only the engine queries the database.

ROLES is what one process is to the store. ENGINE_STATES is the life of one engine, from the moment it has the lock. After a
lost connection the setting `on_connection_loss` decides: `failover` disables the engine at once, `retry` lets it try to
regain its lock, under the same incarnation if no other engine had the store in between. A disabled engine never writes
again; its process seeks an engine, as every other process does.

Every change of role or state goes through `StateMachine.step`: an event that the table does not list raises, so it cannot
happen. `draw` prints a table as the diagram in docs/DATA-STORES.md.

Features: S3, S4, S5, S6, S7, S8 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from spark_jms.settings.store import FAILOVER, RETRY


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


def draw(table: Mapping[tuple[S, E], S]) -> str:
    """The table as a Mermaid state diagram, without the events that change nothing."""
    lines = [
        f"    {before.name} --> {after.name}: {event.value}"
        for (before, event), after in table.items()
        if before is not after
    ]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {next(iter(table))[0].name}", *lines])
