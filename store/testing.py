"""The stores' inside, for tests of this project: to end or stop one session as the death of its process, or a stop, does to all
that the process has. Not for applications: it may change with any release.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from spark_jms.store.contract import Store
from spark_jms.store.engine.backend import EngineBackend
from spark_jms.store.engine.local_access import LocalAccess
from spark_jms.store.engine.server import Server
from spark_jms.store.file.backend import FileBackend
from spark_jms.store.ledger.backend import Backend
from spark_jms.store.ledger.store import LedgerStore


def backend_of(store: Store) -> Backend:
    """Of a store whose records are in a ledger."""
    return cast(LedgerStore, store)._backend


def directory_of(backend: FileBackend) -> Path:
    """Where its journal is."""
    return Path(backend._directory)


def stop_heartbeat(backend: FileBackend, session_id: str) -> int | None:
    """As if its process stood still. Its file stays locked until the returned descriptor is closed, as when the process has
    ended. None: the session is not of this backend."""
    locks = backend._session_locks
    with locks._lock:
        own = locks._own.pop(session_id, None)
    return None if own is None else own.fd


def send_heartbeats(backend: FileBackend) -> None:
    """Of all sessions that were not stopped."""
    backend._session_locks.beat()


def server_of(backend: EngineBackend) -> Server | None:
    """The engine that runs in this process; None when it runs in another one."""
    access = backend._route.current
    return access.server if isinstance(access, LocalAccess) else None


def stop_session(backends: Sequence[EngineBackend], server: Server, session_id: str) -> None:
    """As if its process stood still: it sends no heartbeat."""
    for backend in backends:
        backend._heartbeat.discard(session_id)
    with server._liveness._lock:
        for client in server._liveness._clients.values():
            client.session_ids.discard(session_id)


def end_session(server: Server, session_id: str) -> None:
    """The engine can see that its process has ended."""
    server._liveness.forget([session_id])
