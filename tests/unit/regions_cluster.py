"""A few daemon cores wired straight to each other, with a directory and a clock: nothing fails unless a test says so."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spark_jms.store.errors import DirectoryUnavailableError
from spark_jms.store.regions.core.daemon import Action, DaemonCore, DaemonSettings, Log, Stop, ToClient, ToPeer
from spark_jms.store.regions.core.directory import Holder, RegionEntry
from spark_jms.store.regions.core.protocol import (
    Failure,
    Open,
    Ping,
    ReadRegion,
    RegionMessage,
    Regions,
    Remove,
    Reply,
    Revoked,
    Shutdown,
    WriteRegion,
)
from tests.simulator.parts import SimDirectory, SimMemory, Truth

SIZE = 65_536
TICK_MS = 50.0


@dataclass
class Client:
    """One connection; `answers` by request."""

    cluster: Cluster
    daemon: int
    number: int
    answers: dict[int, Reply | Failure] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    requests: int = 0

    def ask(self, make: Callable[[int], RegionMessage], wait_ms: float = 1_000.0) -> Any:
        """The value, or the name of the error; None as long as there is no answer."""
        self.requests += 1
        request = self.requests
        core = self.cluster.core(self.daemon)
        self.cluster.carry(self.daemon, core.from_client(self.cluster.now_ms, self.number, make(request)))
        self.cluster.until(lambda: request in self.answers, wait_ms)
        return self.answer(request)

    def answer(self, request: int) -> Any:
        found = self.answers.get(request)
        return found.error if isinstance(found, Failure) else found.value if found is not None else None

    def open(self, name: str = "s.000", wait_ms: float = 3_000.0) -> Any:
        """Makes it when there is none."""
        size = 0 if name in self.cluster.truth.entries else SIZE
        return self.ask(lambda n: Open(n, name, size), wait_ms)

    def write(self, epoch: int, data: bytes, offset: int = 0, name: str = "s.000", wait_ms: float = 1_000.0) -> bool:
        """True when it was acknowledged."""
        self.ask(lambda n: WriteRegion(n, name, epoch, [(offset, data)]), wait_ms)
        return isinstance(self.answers.get(self.requests), Reply)

    def read(self, epoch: int, length: int, offset: int = 0, name: str = "s.000") -> Any:
        return self.ask(lambda n: ReadRegion(n, name, epoch, offset, length))

    def status(self, name: str = "s.000") -> str:
        rows = self.ask(lambda n: Regions(n, name))
        return str(rows[0].status) if rows else ""

    def shutdown(self, *indexes: int, force: bool = False) -> Any:
        return self.ask(lambda n: Shutdown(n, list(indexes), force))

    def remove(self, name: str, force: bool = False, wait_ms: float = 8_000.0) -> Any:
        self.ask(lambda n: Remove(n, name, force), wait_ms)
        return self.answers.get(self.requests)

    def leave(self) -> None:
        core = self.cluster.cores[self.daemon]
        if core is not None:
            self.cluster.carry(self.daemon, core.client_gone(self.cluster.now_ms, self.number))


class BlindDirectory(SimDirectory):
    def _fail(self) -> bool:
        raise DirectoryUnavailableError("nothing")

    def entries(self) -> dict[str, RegionEntry]:
        raise DirectoryUnavailableError("nothing")


class UnansweringDirectory(SimDirectory):
    """It does what it is asked to do, and does not say so."""

    def swap(self, name: str, old: RegionEntry | None, new: RegionEntry | None) -> bool:
        super().swap(name, old, new)
        raise DirectoryUnavailableError("no answer")


class LateDirectory(SimDirectory):
    """The first change that `which` picks is not answered, and happens when the test says so. With `away`, nothing is
    answered from then on."""

    def __init__(self, core: DaemonCore, truth: Truth, which: Callable[[RegionEntry | None], bool], away: bool) -> None:
        super().__init__(truth, core.me)
        self._which = which
        self._away = away
        self._late: list[tuple[str, RegionEntry | None, RegionEntry | None]] = []
        self.given_up = self.away = False
        core.directory = self

    def _fail(self) -> bool:
        return self.away

    def swap(self, name: str, old: RegionEntry | None, new: RegionEntry | None) -> bool:
        if self.away:
            raise DirectoryUnavailableError("nothing")
        if self.given_up or not self._which(new):
            return super().swap(name, old, new)
        self.given_up, self.away = True, self._away
        self._late.append((name, old, new))
        raise DirectoryUnavailableError("on its way")

    def land(self) -> bool:
        """False: it does not fit any more."""
        self.away = False
        return super().swap(*self._late.pop())


class Cluster:
    def __init__(self, daemons: int, limit: int = 100 * SIZE, **settings: Any) -> None:
        self.now_ms = 0.0
        self.truth = Truth(random.Random(0))
        self.limits = [limit] * daemons
        self.settings = DaemonSettings(**settings)
        self.cores: list[DaemonCore | None] = [None] * daemons
        self.memories: list[SimMemory] = [SimMemory(limit)] * daemons
        self.clients: dict[int, Client] = {}
        self.log: list[str] = []
        self.apart: set[frozenset[int]] = set()
        self.frozen: set[int] = set()
        self.held: Callable[[int, RegionMessage], bool] = lambda source, message: False  # frames that stay on their way
        self._wire: deque[tuple[int, int, RegionMessage]] = deque()
        self._lives = itertools.count(1)
        self._numbers = itertools.count(1)
        for index in range(daemons):
            self.start(index)
        self.run(500)

    def core(self, index: int) -> DaemonCore:
        core = self.cores[index]
        assert core is not None, f"daemon {index} is down"
        return core

    # ---- what happens to daemons

    def start(self, index: int) -> None:
        me = Holder(index, f"life{next(self._lives)}")
        self.memories[index] = SimMemory(self.limits[index])
        core = DaemonCore(
            index, me.incarnation, len(self.cores), self.limits[index], SimDirectory(self.truth, me),
            self.memories[index], self.settings, self.now_ms,
        )  # fmt: skip
        self.truth.alive.add(me)
        self.cores[index] = core
        for other, peer in enumerate(self.cores):
            if peer is not None and other != index:
                self._link(index, other)

    def kill(self, index: int) -> None:
        self.truth.alive.discard(self.core(index).me)
        self.cores[index] = None
        self._wire = deque(item for item in self._wire if item[0] != index)
        for other, peer in enumerate(self.cores):
            if peer is not None:
                self.carry(other, peer.unlinked(self.now_ms, index))
        self.clients = {n: client for n, client in self.clients.items() if client.daemon != index}

    def separate(self, a: int, b: int) -> None:
        """They do not hear each other any more, and are not told so."""
        self.apart.add(frozenset((a, b)))

    def join(self, a: int, b: int) -> None:
        self.apart.discard(frozenset((a, b)))
        self._link(a, b)

    def freeze(self, index: int) -> None:
        self.frozen.add(index)

    def wake(self, index: int) -> None:
        """What came meanwhile is taken in order (see `run`)."""
        self.frozen.discard(index)

    def blind(self, index: int) -> None:
        """The directory does not answer this daemon."""
        self.core(index).directory = BlindDirectory(self.truth, self.core(index).me)

    def see(self, index: int) -> None:
        self.core(index).directory = SimDirectory(self.truth, self.core(index).me)

    def client(self, daemon: int, name: str = "") -> Client:
        number = next(self._numbers)
        client = self.clients[number] = Client(self, daemon, number)
        self.carry(daemon, self.core(daemon).client_came(self.now_ms, number, name or f"client{number}"))
        return client

    # ---- time

    def run(self, for_ms: float) -> None:
        self.until(lambda: False, for_ms)

    def until(self, condition: Callable[[], bool], limit_ms: float) -> bool:
        end_ms = self.now_ms + limit_ms
        self._deliver()
        while not condition() and self.now_ms < end_ms:
            self.now_ms += TICK_MS
            for index, core in enumerate(self.cores):
                if core is not None and index not in self.frozen:
                    for client in self.clients.values():  # they are alive
                        if client.daemon == index:
                            core.from_client(self.now_ms, client.number, Ping())
                    self.carry(index, core.tick(self.now_ms, int(self.now_ms * 1000)))
            self._deliver()
        return condition()

    def entry(self, name: str = "s.000") -> RegionEntry:
        return self.truth.entries[name]

    def where(self, name: str = "s.000") -> tuple[int, int | None]:
        entry = self.truth.entries[name]
        return entry.primary.daemon, entry.secondary.daemon if entry.secondary else None

    def bytes_of(self, index: int, name: str = "s.000") -> bytes:
        return bytes(self.core(index).copies[name].memory)

    # ---- wiring

    def _link(self, a: int, b: int) -> None:
        for here, there in ((a, b), (b, a)):
            self.carry(here, self.core(here).linked(self.now_ms, there, self.core(there).incarnation))

    def carry(self, index: int, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case ToPeer(daemon, message):
                    self._wire.append((index, daemon, message))
                case ToClient(number, message):
                    client = self.clients.get(number)
                    if client is not None and isinstance(message, Revoked):
                        client.lost.append(message.name)
                    elif client is not None and isinstance(message, Reply | Failure):
                        client.answers[message.request] = message
                case Log(_, text):
                    self.log.append(f"{index}: {text}")
                case Stop():
                    self.kill(index)
                case _:
                    pass

    def _deliver(self) -> None:
        kept: deque[tuple[int, int, RegionMessage]] = deque()
        while self._wire:
            source, target, message = self._wire.popleft()
            core = self.cores[target]
            if target in self.frozen or self.held(source, message):
                kept.append((source, target, message))
            elif core is not None and frozenset((source, target)) not in self.apart:
                self.carry(target, core.from_peer(self.now_ms, source, message))
        self._wire = kept
