"""A client in the simulator: it connects, reads its store, works on it, and checks everything it reads.

phase      becomes
AWAY       LISTING when it connects
LISTING    OPENING when it knows its regions
OPENING    LOADING when a region is open; READY when its first region was created
LOADING    OPENING when the regions are listed again; READY when every object was read
READY      LOADING while it creates a region
REMOVING   AWAY when a lost region was removed
any        AWAY when the connection is cut
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from enum import Enum
from typing import Any

from spark_jms.store.regions.core.protocol import Failure, Ping, RegionMessage, RegionRow, Reply, Revoked
from spark_jms.store.regions.core.space import RegionSpace
from tests.simulator.acknowledged import Acknowledged
from tests.simulator.cluster import SimCluster
from tests.simulator.connections import ClientConnection, ClientEnd
from tests.simulator.daemons import SimDaemon
from tests.simulator.errors import Violation
from tests.simulator.invariants import Invariants
from tests.simulator.session import StoreSession
from tests.simulator.workload import Wish, Workload

MAX_WRITES = 16
CONNECT_TIMEOUT_MS = 40_000.0
ANSWER_TIMEOUT_MS = 4_000.0


class Phase(Enum):
    AWAY = "away"
    LISTING = "listing"
    OPENING = "opening"
    LOADING = "loading"
    READY = "ready"
    REMOVING = "removing"


class SimClient(ClientEnd):
    """`rivals`: all clients of the same store, this one included; only one of them owns it at a time."""

    def __init__(
        self,
        number: int,
        store: str,
        region_bytes: int,
        cluster: SimCluster,
        invariants: Invariants,
        chance: random.Random,
        acknowledged: Acknowledged,
        rivals: list[SimClient],
    ) -> None:
        self.number = number
        self.name = f"client{number}"
        self.store = store
        self._region_bytes = region_bytes
        self._cluster = cluster
        self._invariants = invariants
        self._chance = chance
        self._workload = Workload(chance, self.name.encode(), region_bytes)
        self.acknowledged = acknowledged
        self._rivals = rivals
        rivals.append(self)
        self._numbers = itertools.count(1)
        self.connection: ClientConnection | None = None
        self._session = self._new_session()
        self.phase = Phase.AWAY
        self.finishing = False  # only open, check and close
        self.done = False  # it has checked its store after the last fault
        self.checks = 0
        self.acks = 0
        self.recoveries = 0
        self.owner = False  # it has read all its regions, and no other client has read them since
        self.superseded = False  # another client has its store by now, and this one may not know yet
        self._superseded_ms = 0.0
        self._progress_ms = 0.0
        self._connected_ms = 0.0
        self._on_answer: dict[str, Callable[[int, Any, Any], None]] = {
            "list": self._on_list,
            "open": self._on_open,
            "header": self._on_header,
            "bytes": self._on_bytes,
            "new": self._on_new,
            "remove": lambda request, detail, value: self._leave(),
            "close": lambda request, detail, value: None,
            "write": lambda request, detail, value: self._session.writes.forget_leftovers(self._session.forget),
            "read": lambda request, detail, value: self._session.check_read(request, detail[0], value),
        }

    # ---- connection

    def _new_session(self) -> StoreSession:
        return StoreSession(
            self.store, self._region_bytes, self.acknowledged, self._send, self._numbers, lambda: self._cluster.now_ms
        )

    def connect(self, daemon: SimDaemon) -> None:
        self.connection = self._cluster.connect(daemon, self)
        self._connected_ms = self._cluster.now_ms
        self.phase = Phase.LISTING
        self._session.recovery.begin()

    def disconnected(self) -> None:
        if not self.superseded:
            self._session.writes.in_doubt(self.acknowledged)
        self.connection, self.phase, self.superseded, self.owner = None, Phase.AWAY, False, False
        self._session = self._new_session()

    def _send(self, message: RegionMessage) -> None:
        if self.connection is not None:
            self._cluster.ask(self.connection, message)

    def _leave(self) -> None:
        if self.connection is not None:
            self._cluster.disconnect(self.connection)

    # ---- what audits ask

    def region_removed(self, name: str) -> None:
        """An administrator removed the region by force, with its objects."""
        self._session.writes.region_removed(name)
        handles = self._session.handles_to_doubt(name) if self.owner else set(self.acknowledged.values)
        for handle in handles:
            self.acknowledged.allow(handle, None)
        for values in self.acknowledged.maybe.values():
            values.add(None)

    def expected(self) -> tuple[Acknowledged, dict[str, RegionSpace] | None]:
        """What a reader would have to find now; the maps of the regions, if no write is under way."""
        expected = self.acknowledged.copy()
        if not self.owner:
            return expected, None
        self._session.writes.in_doubt(expected)
        return expected, self._session.maps()

    # ---- answers

    def answering(self, message: RegionMessage) -> None:
        if not isinstance(message, Reply):
            return
        what, detail = self._session.requests.find(message.request)
        if what == "write":
            self._check_answer(message.request, what, detail)
            self._write_acknowledged(message.request)
        elif what in ("header", "bytes", "read"):
            region = detail if what == "header" else detail[0] if what == "bytes" else detail[1]
            self._check_answer(message.request, what, region)

    def _write_acknowledged(self, request: int) -> None:
        if self.superseded:
            return
        self._progress_ms = self._cluster.now_ms
        for write in self._session.writes.answered(request):
            self.acks += 1
            if write.lost:
                self.acknowledged.allow(write.handle, write.value)
                self.acknowledged.allow(write.handle, None)
            else:
                self.acknowledged.acknowledge(write.handle, write.value)

    def _check_answer(self, request: int, what: str, region: str) -> None:
        assert self.connection is not None
        asked_ms, epoch = self._session.requests.asked_ms(request), self._session.epochs.get(region)
        if self.superseded and asked_ms > self._superseded_ms and what in ("write", "read"):
            raise Violation(f"{self.name}: a {what} of {region} succeeded, though another client has the store")
        self._invariants.check_answer(self.connection.daemon, self.name, region, epoch, asked_ms)

    def receive(self, message: RegionMessage) -> None:
        match message:
            case Reply(request, value):
                what, detail = self._session.requests.pop(request)
                if what:
                    self._on_answer[what](request, detail, value)
            case Revoked():
                self._leave()
            case Failure(request, error, arguments):
                self._failed(request, error, arguments)

    def _failed(self, request: int, error: str, arguments: list[Any]) -> None:
        what, detail = self._session.requests.pop(request)
        if error == "RegionLostError" and what == "open":
            self._invariants.check_lost(detail)
            self.phase = Phase.REMOVING
            self._session.remove_region(detail)
        elif error == "MemoryLimitError" and what == "new":
            self._session.core.regions.pop(detail, None)
            self.phase = Phase.READY
        else:
            self._cluster.note(f"{self.name}: {what} failed, {error} {arguments}")
            self._leave()

    def _on_list(self, request: int, detail: Any, rows: list[RegionRow]) -> None:
        self.phase = Phase.OPENING
        if self._session.recovery.is_empty(rows):
            self._session.new_region()
        elif self._session.recovery.listed(rows):
            self._recovered()

    def _on_open(self, request: int, name: str, value: list[int]) -> None:
        self.phase = Phase.LOADING
        self._session.recovery.opened(name, value[0], value[1])

    def _on_header(self, request: int, name: str, data: bytes) -> None:
        if self._session.recovery.header(name, data):
            self._recovered()

    def _on_bytes(self, request: int, detail: tuple[str, int], data: bytes) -> None:
        if self._session.recovery.bytes_read(*detail, data):
            self._recovered()

    def _recovered(self) -> None:
        found = self._session.recovery.objects()
        self._session.free_stale_blocks()
        if self._is_late():
            self.superseded, self._superseded_ms = True, self._cluster.now_ms
            self._ready()
            return
        for other in self._rivals:
            if other is not self and other.owner:
                other.supersede()
        assert self.connection is not None
        self._checked(found, f"{self.name} at daemon {self.connection.daemon.index}")
        self._ready()
        directory, epochs = self._cluster.directory, self._session.epochs
        for name in self._session.core.regions:
            if name not in directory.entries or directory.opens.get(name) != epochs[name]:
                self.region_removed(name)  # removed since the client read it

    def _is_late(self) -> bool:
        """Whether another client opened a region after the daemon answered the last read of it, and before the answer came."""
        directory, epochs = self._cluster.directory, self._session.epochs
        return any(name in directory.entries and directory.opens.get(name) != epochs[name] for name in epochs)

    def supersede(self) -> None:
        """Another client has the store now. This one may not know yet, and continues for a while."""
        self._session.writes.in_doubt(self.acknowledged)
        self.superseded, self.owner = True, False
        self._superseded_ms = self._cluster.now_ms

    def _checked(self, found: dict[int, bytes], where: str) -> None:
        self.acknowledged.check(found, where)
        self.acknowledged.become(found)
        self.checks += 1
        self.recoveries += 1

    def _ready(self) -> None:
        self.phase, self._progress_ms = Phase.READY, self._cluster.now_ms
        self.owner = not self.superseded

    def _on_new(self, request: int, name: str, value: list[int]) -> None:
        self._session.created_region(name, value[0], value[1])
        if self.phase is Phase.OPENING:
            self._checked({}, self.name)
        self._ready()

    # ---- what it does

    def act(self) -> None:
        chance, now_ms, writes = self._chance, self._cluster.now_ms, self._session.writes
        if self.connection is None:
            return
        self._send(Ping())
        if self.phase is not Phase.READY:
            if now_ms - self._connected_ms > CONNECT_TIMEOUT_MS:
                self._leave()
            return
        if writes and now_ms - self._progress_ms > ANSWER_TIMEOUT_MS and chance.random() < 0.05:
            self._leave()  # and tries another daemon
            return
        if self.finishing:
            if not writes:
                self._session.close()
                self.done = self.checks > 0
                self._leave()
            return
        for _ in range(chance.randint(1, 4)):
            if self.phase is Phase.READY and len(self._session.writes) < MAX_WRITES:
                self._operate()

    def _operate(self) -> None:
        if not self._session.writes:
            self._progress_ms = self._cluster.now_ms
        match self._workload.operate(self._session):
            case Wish.LEAVE:
                self._leave()
            case Wish.NEW_REGION:
                self.phase = Phase.LOADING
                self._session.new_region()
            case Wish.NOTHING:
                pass
