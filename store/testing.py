"""For tests of this project: the fake persistence of an engine, a fake cluster of regions, and the stores' inside.

MemoryPersistence is a persistence in memory, which several "processes" of one test own in turn. FakeCluster answers administrators
through `AdminPort`, without daemons. The functions end or stop one session as the death of its process, or a stop, does to all
that the process has. Not for applications: they may change with any release.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from spark_jms.store.contract import Store, StoreInfo
from spark_jms.store.engine.access import LocalAccess
from spark_jms.store.engine.backend import EngineBackend, EngineFinder
from spark_jms.store.engine.connections import Address
from spark_jms.store.engine.entry_log import LedgerBatch, Loaded, OwnershipLostError, Persistence
from spark_jms.store.engine.server import Server, monotonic_ms
from spark_jms.store.errors import (
    DaemonUnavailableError,
    MemoryLimitError,
    NoLocalDaemonError,
    RegionOpenError,
    RegionUnavailableError,
    ShutdownRefusedError,
    StoreError,
)
from spark_jms.store.file.store import FileBackend
from spark_jms.store.ledger.backend import Backend
from spark_jms.store.ledger.record import Entry
from spark_jms.store.ledger.store import LedgerStore
from spark_jms.store.processes import Clock
from spark_jms.store.regions.admin.port import AdminPort, DaemonInfo, RegionInfo, Waits, silently


@dataclass
class SharedMemory:
    """What a disk would hold, and who owns it. Each append asks `fail` before the batch is kept and `crash` after it."""

    entries: list[Entry] = field(default_factory=list)
    outcomes: list[tuple[str, int]] = field(default_factory=list)
    owner: str = ""
    incarnation_count: int = 0
    proof_count: int = 0
    published: Server | None = None
    abrupt: bool = False  # owners are replaced while they may still run
    lock: threading.RLock = field(default_factory=threading.RLock)
    fail: Callable[[LedgerBatch], StoreError | None] = lambda batch: None
    crash: Callable[[LedgerBatch], StoreError | None] = lambda batch: None


class MemoryPersistence(Persistence):
    def __init__(self, place: SharedMemory) -> None:
        self._place = place
        with place.lock:
            self.had_owner = place.abrupt
            place.incarnation_count += 1
            self.incarnation = place.owner = f"incarnation-{place.incarnation_count}"

    def load(self) -> Loaded:
        with self._place.lock:
            return Loaded(len(self._place.entries), tuple(self._place.entries), tuple(self._place.outcomes))

    def append(self, batch: LedgerBatch) -> None:
        place = self._place
        with place.lock:
            if place.owner != self.incarnation:
                raise OwnershipLostError(f"{place.owner or 'no engine'} owns the memory, not {self.incarnation}")
            if (error := place.fail(batch)) is not None:
                raise error
            place.entries.extend(batch.entries)
            place.outcomes.extend((token, batch.position) for token in batch.tokens)
            if (error := place.crash(batch)) is not None:
                raise error

    def prove(self) -> None:
        place = self._place
        with place.lock:
            place.proof_count += 1
            if place.owner != self.incarnation:
                raise OwnershipLostError(f"{place.owner or 'no engine'} owns the memory, not {self.incarnation}")

    def close(self) -> None:
        with self._place.lock:
            if self._place.owner == self.incarnation:
                self._place.owner = ""


class MemoryFinder(EngineFinder):
    """With `remote` the client uses a socket even for an engine in its own process."""

    def __init__(
        self, place: SharedMemory, *, session_timeout_ms: float, clock_ms: Clock = monotonic_ms, remote: bool = False
    ) -> None:
        self._place = place
        self._session_timeout_ms = session_timeout_ms
        self._clock_ms = clock_ms
        self._remote = remote
        self._mine: Server | None = None

    def find(self, failed: Address | None = None) -> Server | Address | None:
        place = self._place
        with place.lock:
            server = place.published
            if server is None or server.gone or place.owner != server.incarnation:
                server = Server(
                    MemoryPersistence(place), session_timeout_ms=self._session_timeout_ms, clock_ms=self._clock_ms
                )
                place.published = self._mine = server
            if server is self._mine and not self._remote:
                return server
            return Address(*server.address, server.secret, server.incarnation)

    def close(self) -> None:
        if self._mine is not None:
            self._mine.close()

    def abandon(self) -> None:
        if self._mine is not None:
            self._mine.abandon()


# -- a cluster of regions ----------------------------------------------------------------------------------------------


class FakeCluster:
    """The given daemons and regions; counts and memory of a daemon follow from its regions. Pass `attach` to `Admin`. All
    daemons are local; it attaches to number `localindex`, modulo those that are up."""

    def __init__(
        self, daemons: Iterable[DaemonInfo], regions: Iterable[RegionInfo] = (), stores: Iterable[StoreInfo] = ()
    ) -> None:
        self.stores = sorted(stores, key=lambda store: store.name)
        self._daemons = {daemon.index: daemon for daemon in daemons}
        self._regions = {region.name: region for region in regions}

    def attach(self, directory: str, localindex: int) -> AdminPort:
        up = [daemon.index for daemon in self._daemons.values() if daemon.up]
        if not up:
            raise NoLocalDaemonError(directory)
        return FakeAdminPort(self, directory, up[localindex % len(up)])

    def crash(self, index: int) -> None:
        """The daemon goes down with its memory, and no region is resilvered."""
        self._daemons[index] = replace(self._daemons[index], up=False, reachable=False)
        for region in list(self._regions.values()):
            if index in (region.primary, region.secondary):
                left = region.secondary if region.primary == index else region.primary
                status = "LOST" if left is None else "SINGLE"
                self._regions[region.name] = replace(region, primary=left, secondary=None, status=status)

    def daemon(self, index: int) -> DaemonInfo:
        info = self._daemons[index]
        if not info.up:
            return info
        held = [region for region in self._regions.values() if index in (region.primary, region.secondary)]
        opened = [region for region in held if region.opener]
        primaries = sum(region.primary == index for region in opened)
        return replace(
            info,
            memory_used_bytes=sum(region.size_bytes for region in held),
            regions_closed=len(held) - len(opened),
            regions_open_primary=primaries,
            regions_open_replica=len(opened) - primaries,
        )

    def all_daemons(self) -> list[DaemonInfo]:
        return [self.daemon(index) for index in sorted(self._daemons)]

    def all_regions(self) -> list[RegionInfo]:
        return [self._regions[name] for name in sorted(self._regions)]

    def remove(self, name: str, force: bool) -> None:
        region = self._regions.get(name)
        if region is None:
            raise RegionUnavailableError(name)
        if region.opener and not force:
            raise RegionOpenError(name)
        if region.opener and region.status != "LOST":
            self._regions[name] = replace(region, primary=None, secondary=None, status="LOST")
        else:
            del self._regions[name]

    def stop(self, indexes: Sequence[int], force: bool) -> None:
        if not force:
            self._drain(set(indexes))
        for index in indexes:
            self.crash(index)

    def _drain(self, going: set[int]) -> None:
        """Steps 1 to 3 of a safe shutdown: all of them, or none."""
        held = [region for region in self._regions.values() if going & {region.primary, region.secondary}]
        for region in held:
            if region.opener:
                raise ShutdownRefusedError(f"region {region.name} is open")
        staying = [daemon.index for daemon in self.all_daemons() if daemon.up and daemon.index not in going]
        before = dict(self._regions)
        try:
            for region in held:
                copies = [i for i in (region.primary, region.secondary) if i is not None and i not in going]
                while len(copies) < min(2, len(staying)) or not copies:
                    copies.append(self._room(region, staying, copies))
                moved = replace(region, primary=copies[0], secondary=copies[1] if len(copies) > 1 else None)
                self._regions[region.name] = moved
        except MemoryLimitError as error:
            self._regions = before
            raise ShutdownRefusedError(error.detail()) from None

    def _room(self, region: RegionInfo, staying: Sequence[int], copies: Sequence[int]) -> int:
        for index in staying:
            daemon = self.daemon(index)
            if index not in copies and daemon.memory_used_bytes + region.size_bytes <= daemon.memory_limit_bytes:
                return index
        raise MemoryLimitError(f"no room for a copy of region {region.name}")


class FakeAdminPort(AdminPort):
    """Attached to one daemon of a FakeCluster. Once that is down, every call raises DaemonUnavailableError."""

    def __init__(self, cluster: FakeCluster, directory: str, local_index: int) -> None:
        self._cluster = cluster
        self.directory = directory
        self.local_index = local_index
        self.closed = False

    def daemons(self) -> Sequence[DaemonInfo]:
        return self._live().all_daemons()

    def regions(self) -> Sequence[RegionInfo]:
        return self._live().all_regions()

    def stores(self) -> Sequence[StoreInfo]:
        return self._live().stores

    def remove_region(self, name: str, force: bool) -> None:
        self._live().remove(name, force)

    def shutdown(self, indexes: Sequence[int], force: bool, waits: Waits = silently) -> None:
        self._live().stop(indexes, force)

    def break_off(self, indexes: Sequence[int]) -> None:
        self._live()  # its shutdowns never wait

    def close(self) -> None:
        self.closed = True

    def _live(self) -> FakeCluster:
        if self.closed or not self._cluster.daemon(self.local_index).up:
            raise DaemonUnavailableError(f"daemon {self.local_index}")
        return self._cluster


# -- the stores' inside ------------------------------------------------------------------------------------------------


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
