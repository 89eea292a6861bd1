"""The fake that ships: a persistence in memory, which several "processes" of one test own in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_jms.store.engine.finder import EngineFinder
from spark_jms.store.engine.link import Address
from spark_jms.store.engine.persistence import Clock, LedgerBatch, Loaded, OwnershipLostError, Persistence
from spark_jms.store.engine.server import Server, monotonic_ms
from spark_jms.store.errors import StoreError
from spark_jms.store.ledger.entries import Entry


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
