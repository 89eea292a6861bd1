"""The stores under the contract: each kit has two openings, and can kill or stop a session of either."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from spark_jms.claims.servers.timed_stores import TimedStore
from spark_jms.store import MemoryStore, Session, Store, StoreError
from spark_jms.store.disk import Disk
from spark_jms.store.engine.backend import EngineBackend, EngineFinder
from spark_jms.store.engine.server import Server
from spark_jms.store.file.store import FileBackend, FileStore
from spark_jms.store.jdbc.engine import Clocks
from spark_jms.store.jdbc.settings import parse_jdbc
from spark_jms.store.jdbc.store import JdbcFinder
from spark_jms.store.ledger.store import LedgerStore
from spark_jms.store.replicated.store import RegionEngineFinder, parse_replicated
from spark_jms.store.testing import (
    MemoryFinder,
    SharedMemory,
    backend_of,
    end_session,
    send_heartbeats,
    server_of,
    stop_heartbeat,
    stop_session,
)

TIMEOUT_MS = 10_000


class Clock:
    def __init__(self) -> None:
        self.skew_ms = 0.0

    def advance(self, duration_ms: float) -> None:
        self.skew_ms += duration_ms

    def now_ms(self) -> float:
        return time.monotonic() * 1000.0 + self.skew_ms


class SkewedDisk(Disk):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def boottime_ns(self) -> int:
        return super().boottime_ns() + int(self.clock.skew_ms * 1e6)


class Kit:
    """Two openings of one store; a session of either can be killed or stopped."""

    store: Store
    other: Store

    def __init__(self) -> None:
        self.clock = Clock()

    def crash(self, session: Session) -> None:
        raise NotImplementedError

    def stop_for(self, session: Session, duration_ms: float) -> None:
        """The session sends no heartbeat for this time; all others do."""
        raise NotImplementedError

    def advance(self, duration_ms: float) -> None:
        """Time passes; sessions that were not stopped send heartbeats."""
        self.clock.advance(duration_ms)

    def close(self) -> None:
        self.store.close()
        self.other.close()


class MemoryKit(Kit):
    def __init__(self) -> None:
        super().__init__()
        self.name = f"contract-{id(self)}"
        self.store = self.memory = MemoryStore(self.name, session_timeout_ms=TIMEOUT_MS, clock_ms=self.clock.now_ms)
        self.other = MemoryStore(self.name)

    def crash(self, session: Session) -> None:
        self.memory.crash(session)

    def stop_for(self, session: Session, duration_ms: float) -> None:
        self.memory.freeze(session)
        self.clock.advance(duration_ms)

    def close(self) -> None:
        super().close()
        MemoryStore.forget(self.name)


class TimedKit(MemoryKit):
    def __init__(self) -> None:
        super().__init__()
        self.plain = self.other
        self.store, self.other = (
            TimedStore("a", lambda at=at: at, 60.0, owns=True) for at in (self.memory, self.plain)
        )  # type: ignore[misc]

    def crash(self, session: Session) -> None:
        self.memory.crash(session.inner)  # type: ignore[attr-defined]

    def stop_for(self, session: Session, duration_ms: float) -> None:
        super().stop_for(session.inner, duration_ms)  # type: ignore[attr-defined]


class FileKit(Kit):
    def __init__(self, path: str, shared: bool) -> None:
        super().__init__()
        self.path = path
        first = FileStore(path, session_timeout_ms=TIMEOUT_MS, disk=SkewedDisk(self.clock))
        backend = cast(FileBackend, backend_of(first)) if shared else None
        if backend is not None:
            backend.retain()
        second = FileStore(path, session_timeout_ms=TIMEOUT_MS, disk=SkewedDisk(self.clock), backend=backend)
        self.store, self.other = first, second
        self.backends = [cast(FileBackend, backend_of(store)) for store in (first, second)]
        self.stopped: list[int] = []

    def _drop(self, session: Session) -> int:
        for backend in self.backends:
            if (locked := stop_heartbeat(backend, session.session_id)) is not None:
                return locked
        raise AssertionError(session.session_id)

    def crash(self, session: Session) -> None:
        os.close(self._drop(session))  # as when the process dies: the lock is released, the file stays

    def stop_for(self, session: Session, duration_ms: float) -> None:
        self.stopped.append(self._drop(session))  # the lock stays, the heartbeat ends
        self.advance(duration_ms)

    def advance(self, duration_ms: float) -> None:
        super().advance(duration_ms)
        for backend in self.backends:
            send_heartbeats(backend)

    def close(self) -> None:
        super().close()
        for fd in self.stopped:
            os.close(fd)


class ServedKit(Kit):
    """Two clients of one engine, which lives with the first; `find` makes the finder of each."""

    def __init__(self, find: Callable[[Clock], EngineFinder]) -> None:
        super().__init__()
        self.backends = [
            EngineBackend(find(self.clock), session_timeout_ms=TIMEOUT_MS, limit_ms=60_000, clock_ms=self.clock.now_ms)
            for _ in range(2)
        ]
        self.store, self.other = (LedgerStore(backend) for backend in self.backends)

    @property
    def engine(self) -> Server:
        server = server_of(self.backends[0])
        assert server is not None
        return server

    def _drop(self, session: Session) -> None:
        stop_session(self.backends, self.engine, session.session_id)

    def crash(self, session: Session) -> None:
        self._drop(session)  # its process has ended, and the engine can see that
        end_session(self.engine, session.session_id)

    def stop_for(self, session: Session, duration_ms: float) -> None:
        self._drop(session)
        self.advance(duration_ms)

    def advance(self, duration_ms: float) -> None:
        for _ in range(int(duration_ms // 500)):
            super().advance(500)
            self.engine.tick()
            for backend in self.backends:
                backend.beat()

    def close(self) -> None:
        self.other.close()  # the engine last
        self.store.close()


def memory_finders(remote: bool) -> Callable[[Clock], EngineFinder]:
    place = SharedMemory()
    return lambda clock: MemoryFinder(
        place, session_timeout_ms=TIMEOUT_MS, clock_ms=clock.now_ms, remote=remote and place.published is not None
    )


def jdbc_finders(uri: str) -> Callable[[Clock], EngineFinder]:
    return lambda clock: JdbcFinder(parse_jdbc(uri), session_timeout_ms=TIMEOUT_MS, clocks=Clocks(now_ms=clock.now_ms))


def replicated_finders(uri: str) -> Callable[[Clock], EngineFinder]:
    return lambda clock: RegionEngineFinder(parse_replicated(uri), session_timeout_ms=TIMEOUT_MS, clock_ms=clock.now_ms)


# The one list of all stores under the contract.
KITS: dict[str, Callable[[Path, pytest.FixtureRequest], Kit]] = {
    "memory": lambda path, request: MemoryKit(),
    "timed": lambda path, request: TimedKit(),
    "file": lambda path, request: FileKit(str(path), shared=True),
    "file-twice": lambda path, request: FileKit(str(path), shared=False),
    "served": lambda path, request: ServedKit(memory_finders(remote=False)),
    "served-remote": lambda path, request: ServedKit(memory_finders(remote=True)),
    "sqlite": lambda path, request: ServedKit(jdbc_finders(f"jdbc:sqlite:///{path}.db")),
    "postgresql": lambda path, request: ServedKit(jdbc_finders(request.getfixturevalue("postgresql").uri())),
    "replicated": lambda path, request: ServedKit(replicated_finders(request.getfixturevalue("replicated").uri())),
}


def eventually(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "did not come true in time"
        pause.wait(0.002)


def in_thread(action: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []

    def run() -> None:
        try:
            results.append(action())
        except StoreError as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results
