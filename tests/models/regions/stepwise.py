"""A cluster that tests drive step by step: nothing fails unless the test does it, and messages arrive immediately."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_jms.settings.store import DaemonSettings
from spark_jms.store.regions.core.daemon import DaemonCore
from spark_jms.store.regions.protocol.messages import (
    BreakOff,
    Close,
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
    StoreRow,
    WriteRegion,
)
from spark_jms.store.regions.protocol.region_entry import RegionEntry
from tests.models.regions.cluster import SimCluster
from tests.models.regions.connections import ClientConnection, ClientEnd
from tests.models.regions.directory import LateChange, SimDirectory
from tests.models.regions.observer import Observer
from tests.models.regions.timing import TICK_MS

SIZE = 65_536


class LogLines(Observer):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def logged(self, daemon: int, text: str) -> None:
        self.lines.append(f"{daemon}: {text}")


class StepClient(ClientEnd):
    """A connected client, with every answer by its request. It sends a sign of life every tick unless `silent`."""

    def __init__(self, sim: SimCluster, daemon: int, name: str) -> None:
        self._sim = sim
        self.daemon = daemon
        self.name = name
        self.answers: dict[int, Reply | Failure] = {}
        self.lost: list[str] = []
        self.requests = 0
        self.silent = False
        self.connection: ClientConnection | None = sim.connect(sim.daemons[daemon], self)
        self._ping(self.connection)

    def _ping(self, connection: ClientConnection) -> None:
        if self.connection is connection:
            if not self.silent:
                self._sim.ask(connection, Ping())
            self._sim.schedule.later(TICK_MS, lambda: self._ping(connection))

    # ---- the connection

    def receive(self, message: RegionMessage) -> None:
        match message:
            case Revoked(name):
                self.lost.append(name)
            case Reply(request) | Failure(request):
                self.answers[request] = message

    def disconnected(self) -> None:
        self.connection = None

    def leave(self) -> None:
        if self.connection is not None:
            self._sim.disconnect(self.connection)
            self._sim.until(lambda: False, 0)

    def tell(self, message: RegionMessage) -> None:
        """Sends a message that has no answer."""
        if self.connection is not None:
            self._sim.ask(self.connection, message)

    # ---- requests

    def send(self, make: Callable[[int], RegionMessage]) -> int:
        """Sends a request and returns its number without waiting."""
        self.requests += 1
        self.tell(make(self.requests))
        return self.requests

    def ask(self, make: Callable[[int], RegionMessage], wait_ms: float = 1_000.0) -> Any:
        """The value, or the name of the error; None while there is no answer."""
        request = self.send(make)
        self._sim.until(lambda: request in self.answers, wait_ms)
        return self.answer(request)

    def answer(self, request: int) -> Any:
        found = self.answers.get(request)
        return found.error if isinstance(found, Failure) else found.value if found is not None else None

    def open(self, name: str = "s.000", wait_ms: float = 3_000.0, size: int = SIZE) -> Any:
        """Creates the region with this size when there is none."""
        new = 0 if name in self._sim.directory.entries else size
        return self.ask(lambda n: Open(n, name, new), wait_ms)

    def close(self, name: str = "s.000") -> Any:
        return self.ask(lambda n: Close(n, name))

    def write(self, epoch: int, data: bytes, offset: int = 0, name: str = "s.000", wait_ms: float = 1_000.0) -> bool:
        """True when it was acknowledged."""
        self.ask(lambda n: WriteRegion(n, name, epoch, [(offset, data)]), wait_ms)
        return isinstance(self.answers.get(self.requests), Reply)

    def read(self, epoch: int, length: int, offset: int = 0, name: str = "s.000") -> Any:
        return self.ask(lambda n: ReadRegion(n, name, epoch, offset, length))

    def report(self, row: StoreRow) -> None:
        """A sign of life with the counts of its store."""
        assert self.connection is not None
        self._sim.ask(self.connection, Ping([], row))

    def status(self, name: str = "s.000") -> str:
        rows = self.ask(lambda n: Regions(n, name))
        return str(rows[0].status) if rows else ""

    def shutdown(self, *indexes: int, force: bool = False) -> Any:
        return self.ask(lambda n: Shutdown(n, list(indexes), force))

    def break_off(self, *indexes: int) -> Any:
        return self.ask(lambda n: BreakOff(n, list(indexes)))

    def remove(self, name: str, force: bool = False, wait_ms: float = 8_000.0) -> Any:
        self.ask(lambda n: Remove(n, name, force), wait_ms)
        return self.answers.get(self.requests)


class StepCluster:
    """`sim` is the cluster itself; this class names daemons by their index and waits for conditions."""

    def __init__(self, daemons: int, limit: int = 100 * SIZE, **settings: Any) -> None:
        self.sim = SimCluster(daemons, limit, DaemonSettings(**settings))
        self.entries = self.sim.directory.entries
        self._log = LogLines()
        self.log = self._log.lines
        self.sim.observe(self._log)
        self._clients = 0
        for index in range(daemons):
            self.start(index)
        self.run(500)

    # ---- daemons

    @property
    def cores(self) -> list[DaemonCore | None]:
        return [daemon.core for daemon in self.sim.daemons]

    def core(self, index: int) -> DaemonCore:
        return self.sim.daemons[index].running

    def directory(self, index: int) -> SimDirectory:
        """The Global Directory as this daemon sees it."""
        directory = self.sim.daemons[index].directory
        assert directory is not None, f"daemon {index} is down"
        return directory

    def start(self, index: int) -> None:
        self.sim.start(self.sim.daemons[index])

    def kill(self, index: int) -> None:
        self.sim.crash(self.sim.daemons[index])

    def freeze(self, index: int) -> None:
        self.sim.pause(self.sim.daemons[index])

    def wake(self, index: int) -> None:
        """The daemon handles what arrived meanwhile, in order."""
        self.sim.wake(self.sim.daemons[index])

    # ---- the network and the directory

    def separate(self, a: int, b: int) -> None:
        """They no longer hear each other, and do not know it."""
        self.sim.network.blocked.add(frozenset((a, b)))

    def join(self, a: int, b: int) -> None:
        self.sim.network.unblock(frozenset((a, b)))

    def blind(self, index: int) -> None:
        """The directory does not answer this daemon."""
        self.directory(index).disk.available = False

    def see(self, index: int) -> None:
        self.directory(index).disk.available = True

    def delay_change(
        self, index: int, which: Callable[[RegionEntry | None], bool], then_unavailable: bool = False
    ) -> LateChange:
        """See `LateChange`."""
        change = self.directory(index).late_change = LateChange(which, then_unavailable)
        return change

    # ---- clients

    def client(self, daemon: int, name: str = "") -> StepClient:
        self._clients += 1
        return StepClient(self.sim, daemon, name or f"client{self._clients}")

    # ---- time

    def run(self, for_ms: float) -> None:
        self.until(lambda: False, for_ms)

    def until(self, condition: Callable[[], bool], limit_ms: float) -> bool:
        return self.sim.until(condition, limit_ms)

    # ---- state

    def entry(self, name: str = "s.000") -> RegionEntry:
        return self.entries[name]

    def where(self, name: str = "s.000") -> tuple[int, int | None]:
        """The daemons of primary and secondary."""
        entry = self.entries[name]
        return entry.primary.daemon, entry.secondary.daemon if entry.secondary else None

    def bytes_of(self, index: int, name: str = "s.000") -> bytes:
        return bytes(self.core(index).copies[name].memory)


def opened(cluster: StepCluster, daemon: int = 0, name: str = "s.000") -> tuple[StepClient, int]:
    """A client that has opened a region, and the region's epoch."""
    client = cluster.client(daemon)
    answer = client.open(name)
    assert isinstance(answer, list), answer
    return client, answer[0]


def closed_region(cluster: StepCluster, data: bytes = b"kept", daemon: int = 0, name: str = "s.000") -> None:
    """A region with two copies of `data` that no client has open."""
    client, epoch = opened(cluster, daemon, name)
    assert client.write(epoch, data, name=name)
    client.leave()
    cluster.run(100)
