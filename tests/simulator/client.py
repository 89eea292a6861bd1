"""A store in the simulator: objects in regions, and a book of what was acknowledged."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from spark_jms.store.errors import RegionFullError, StoreCorruptError
from spark_jms.store.regions.core.instance import InstanceCore, Planned, Walk
from spark_jms.store.regions.core.protocol import (
    Close,
    Failure,
    Open,
    Ping,
    ReadRegion,
    RegionMessage,
    RegionRow,
    Regions,
    Remove,
    Reply,
    Revoked,
    WriteRegion,
)  # fmt: skip
from spark_jms.store.regions.core.space import BLOCK_BYTES, HEADER_BYTES, RegionSpace, Step, check_header, check_payload
from tests.simulator.parts import Violation

if TYPE_CHECKING:
    from tests.simulator.world import World

MAX_REGIONS = 3


class Phase(Enum):
    AWAY = "away"
    LISTING = "listing"
    OPENING = "opening"
    LOADING = "loading"
    READY = "ready"
    REMOVING = "removing"


@dataclass
class Book:
    """What readers must find. A handle in `maybe` may have any of these values; None = not there."""

    acked: dict[int, bytes] = field(default_factory=dict)
    maybe: dict[int, set[bytes | None]] = field(default_factory=dict)

    def check(self, found: dict[int, bytes], who: str) -> None:
        for handle, value in self.acked.items():
            allowed = self.maybe.get(handle, {value})
            if found.get(handle) not in allowed:
                raise Violation(
                    f"{who}: object {handle} is {_short(found.get(handle))}, was acknowledged as {_short(value)}"
                )
        for handle, got in found.items():
            if handle not in self.acked and got not in self.maybe.get(handle, set()):
                raise Violation(f"{who}: object {handle} is there, but was deleted or never written")

    def become(self, found: dict[int, bytes]) -> None:
        self.acked, self.maybe = dict(found), {}


@dataclass
class Flight:
    handle: int
    value: bytes | None
    requests: set[int]
    leftover: str | None = None


class SimClient:
    def __init__(self, world: World, number: int, store: str, region_bytes: int) -> None:
        self.world = world
        self.number = number
        self.name = f"client{number}"
        self.store = store
        self.region_bytes = region_bytes
        self.book = world.books.setdefault(store, Book())
        self.daemon: int | None = None
        self.connection = 0
        self.phase = Phase.AWAY
        self.quiet = False  # finish: only open, check and close
        self.done = False  # it has checked after the last fault
        self.checked = 0
        self.acks = 0
        self.recoveries = 0
        self.owner = False  # it has read all its regions, and nobody else has since
        self.zombie = False  # another client has its store by now, and it may not know yet
        self._moved_ms = 0.0
        self._request = 0
        self._waits: dict[int, tuple[str, Any]] = {}
        self._core = InstanceCore()
        self.epochs: dict[str, int] = {}
        self._found: dict[int, bytes] = {}
        self._flights: deque[Flight] = deque()
        self._leftovers: deque[Flight] = deque()
        self._reads: dict[int, Any] = {}
        self._contents: dict[Any, bytes] = {}
        self._since_ms = 0.0
        self._to_open: list[str] = []
        self._opened: set[str] = set()
        self._listed = False

    # ---- connection

    def attached(self, daemon: int, connection: int) -> None:
        self.daemon, self.connection, self._since_ms = daemon, connection, self.world.now_ms
        self.phase = Phase.LISTING
        self._opened = set()
        self._ask("list", lambda n: Regions(n, self.store + "."))

    def detached(self) -> None:
        """Whatever was in flight may or may not have happened."""
        if not self.zombie:
            self.in_doubt()
        self.daemon, self.phase, self.zombie, self.owner = None, Phase.AWAY, False, False
        self._waits.clear()
        self._flights.clear()
        self._leftovers.clear()
        self._core, self.epochs, self._found, self._contents = InstanceCore(), {}, {}, {}

    def in_doubt(self) -> None:
        for flight in self._flights:
            self.book.maybe.setdefault(flight.handle, {self.book.acked.get(flight.handle)}).add(flight.value)

    def _ask(self, what: str, make: Any, detail: Any = None) -> int:
        self._request += 1
        self._waits[self._request] = (what, detail)
        self.world.client_sends(self, make(self._request))
        return self._request

    def region_removed(self, entry_name: str) -> None:
        """By force: what was in it is gone, or never was."""
        places = self._core.places if self.owner else {}
        book, moving = self.book, {flight.handle for flight in self._flights}
        for handle in list(book.acked):
            if handle not in places or places[handle].region == entry_name or handle in moving:
                book.maybe.setdefault(handle, {book.acked[handle]}).add(None)
        for values in book.maybe.values():
            values.add(None)

    def state(self) -> tuple[Book, dict[str, RegionSpace] | None]:
        """What a reader would have to find now; the map of the regions, if nothing is under way."""
        book = Book(dict(self.book.acked), {handle: set(values) for handle, values in self.book.maybe.items()})
        if self.owner:
            for flight in self._flights:
                book.maybe.setdefault(flight.handle, {book.acked.get(flight.handle)}).add(flight.value)
            if not any(what == "write" for what, _ in self._waits.values()):
                return book, self._core.regions
        return book, None

    def _leave(self) -> None:
        self.world.client_leaves(self)

    # ---- answers

    def receive(self, message: RegionMessage) -> None:
        match message:
            case Revoked():
                self._leave()
            case Failure(request, error, arguments):
                self._failed(request, error, arguments)
            case Reply(request, value):
                what, detail = self._waits.pop(request, ("", None))
                if what:
                    getattr(self, f"_on_{what}")(request, detail, value)

    def _failed(self, request: int, error: str, arguments: list[Any]) -> None:
        what, detail = self._waits.pop(request, ("", None))
        if error == "RegionLostError" and what == "open":
            self.world.region_lost(self, detail)
            self.phase = Phase.REMOVING
            self._ask("remove", lambda n: Remove(n, detail, True), detail)
        elif error == "MemoryLimitError" and what == "new":
            self._core.regions.pop(detail, None)
            self.phase = Phase.READY
        else:
            self.world.note(f"{self.name}: {what} failed, {error} {arguments}")
            self._leave()

    def _on_list(self, request: int, detail: Any, rows: list[RegionRow]) -> None:
        self._to_open = [row.name for row in rows if row.name not in self._opened]
        self.phase = Phase.OPENING
        if not rows and not self._opened:
            self._new_region()
        else:
            self._open_next()

    def _open_next(self) -> None:
        """After the last one they are listed again: until it had lost this one, another client could make a new one."""
        if self._to_open:
            name = self._to_open[0]
            self._opened.add(name)
            self._listed = False
            self._ask("open", lambda n: Open(n, name, 0), name)
        elif not self._listed:
            self._listed = True
            self._ask("list", lambda n: Regions(n, self.store + "."))
        else:
            self._recovered()

    def _on_open(self, request: int, name: str, value: list[int]) -> None:
        self.epochs[name] = value[0]
        self._size = value[1]
        self.phase = Phase.LOADING
        self._walk = Walk(name, HEADER_BYTES + (value[1] - HEADER_BYTES) // 16 * 16)
        self._ask("header", lambda n: ReadRegion(n, name, self.epochs[name], 0, HEADER_BYTES), name)

    def _on_header(self, request: int, name: str, data: bytes) -> None:
        if data == bytes(len(data)):
            # Created, and its client went away before the first write: nothing can be in it.
            self._write(name, self._core.add_region(name, self._size))
            self._to_open.pop(0)
            self._open_next()
            return
        try:
            check_header(name, data, self._size)
        except StoreCorruptError as error:
            raise Violation(str(error)) from error
        self._load_on(name)

    def _load_on(self, name: str) -> None:
        start = self._walk.wanted()
        if start is None:
            self._core.load_region(name, self._size, self._walk.blocks)
            self._to_open.pop(0)
            self._open_next()
            return
        length = min(16 * 1024, self._size - start)
        self._ask("bytes", lambda n: ReadRegion(n, name, self.epochs[name], start, length), (name, start))

    def _on_bytes(self, request: int, detail: tuple[str, int], data: bytes) -> None:
        name, start = detail
        known = len(self._walk.blocks)
        try:
            self._walk.feed(start, data)
        except StoreCorruptError as error:
            raise Violation(str(error)) from error
        for block in self._walk.blocks[known:]:
            at = block.offset - start + BLOCK_BYTES
            self._contents[(name, block.offset)] = bytes(data[at : at + block.length])
        self._load_on(name)

    def _recovered(self) -> None:
        found = {}
        for handle in self._core.places:
            region, block = self._core.where(handle)
            found[handle] = self._contents[(region, block.offset)]
        for region, steps in self._core.recovered():
            self._write(region, steps)
        for other in self.world.clients:
            if other is not self and other.book is self.book and other.owner:
                other.in_doubt()  # it may not know yet that it lost its store, and goes on
                other.zombie, other.owner = True, False
        self.book.check(found, f"{self.name} at daemon {self.daemon}")
        self.book.become(found)
        self._contents = found
        self.checked += 1
        self.recoveries += 1
        self.phase, self._moved_ms = Phase.READY, self.world.now_ms
        self.owner = not self.zombie
        truth = self.world.truth
        for name in self._core.regions:
            if name not in truth.entries or truth.opens.get(name) != self.epochs[name]:
                self.region_removed(name)  # since it was read

    def _on_new(self, request: int, name: str, value: list[int]) -> None:
        self.epochs[name] = value[0]
        self._write(name, self._core.add_region(name, value[1]))
        if self.phase is Phase.OPENING:
            self.book.check({}, self.name)
            self.book.become({})
            self.checked += 1
            self.recoveries += 1
        self.phase, self._moved_ms = Phase.READY, self.world.now_ms
        self.owner = not self.zombie

    def _on_remove(self, request: int, name: str, value: Any) -> None:
        self._leave()

    def _on_close(self, request: int, detail: Any, value: Any) -> None:
        pass

    def emitted(self, request: int, late: bool) -> None:
        """The daemon sent this acknowledgement: from now on it is a promise, wherever the frame is. `late`: it stood still
        between making sure and sending, so the promise is one of that time, and keeps what it says all the same."""
        what, detail = self._waits.get(request, ("", None))
        if what == "write" and not late:
            self.world.check_ack(self, detail)
            if self.zombie:
                raise Violation(
                    f"{self.name}: a write to {detail} was acknowledged, though another client has the store"
                )
        if self.zombie:
            return
        self._moved_ms = self.world.now_ms
        for flight in self._flights:
            if request in flight.requests:
                flight.requests.remove(request)
                if flight.leftover is not None and not flight.requests:
                    self._leftovers.append(flight)
        while self._flights and not self._flights[0].requests and self._flights[0].leftover is None:
            flight = self._flights.popleft()
            self.acks += 1
            if flight.value is None:
                self.book.acked.pop(flight.handle, None)
            else:
                self.book.acked[flight.handle] = flight.value

    def _on_write(self, request: int, detail: Any, value: Any) -> None:
        while self._leftovers:
            flight = self._leftovers.popleft()
            assert flight.leftover is not None
            planned = self._core.plan_forget(flight.leftover, flight.handle)
            flight.leftover, flight.requests = None, {self._write(region, steps) for region, steps in planned}

    def read_emitted(self, request: int, late: bool) -> None:
        """The daemon answered a read."""
        what, detail = self._waits.get(request, ("", None))
        if what in ("header", "bytes", "read") and not late:
            region = detail if what == "header" else detail[0] if what == "bytes" else detail[1]
            self.world.check_ack(self, region)
            if self.zombie and what == "read":
                raise Violation(f"{self.name}: {region} was read, though another client has the store")

    def _on_read(self, request: int, detail: tuple[int, str], data: bytes) -> None:
        handle = detail[0]
        region_block, expected = self._reads.pop(request)
        payload = check_payload("read", region_block, data[:BLOCK_BYTES], data[BLOCK_BYTES:])
        if payload not in expected:
            raise Violation(f"{self.name}: read {_short(payload)} of object {handle}")

    # ---- what it does

    def act(self) -> None:
        chance, world = self.world.chance, self.world
        if self.daemon is None:
            return
        world.client_sends(self, Ping())
        if self.phase is not Phase.READY:
            if world.now_ms - self._since_ms > 40_000:
                self._leave()
            return
        if self._flights and world.now_ms - self._moved_ms > 4_000 and chance.random() < 0.05:
            self._leave()  # no answer for a while: it tries another daemon
            return
        if self.quiet:
            if not self._flights:
                for name in list(self.epochs):
                    self._ask("close", lambda n, name=name: Close(n, name))
                self.done = self.checked > 0
                self._leave()
            return
        for _ in range(chance.randint(1, 4)):
            if self.phase is Phase.READY and len(self._flights) < 16:
                self._operate()

    def _operate(self) -> None:
        chance = self.world.chance
        handles = list(self._core.places)
        dice = chance.random()
        if handles and dice < 0.25:
            handle = chance.choice(handles)
            self._send(handle, None, self._core.plan_delete(handle))
        elif handles and dice < 0.45:
            handle, value = chance.choice(handles), self._value()
            try:
                planned, leftover = self._core.plan_update(handle, value)
                self._send(handle, value, planned, leftover)
            except RegionFullError:
                self._full()
        elif handles and dice < 0.55:
            self._read(chance.choice(handles))
        elif dice < 0.57 and not self._flights:
            self._leave()
        else:
            value = self._value()
            try:
                handle, planned = self._core.plan_create(1, value)
            except RegionFullError:
                self._full()
            else:
                self._send(handle, value, planned)

    def _read(self, handle: int) -> None:
        if any(flight.handle == handle for flight in self._flights):
            return
        region, block = self._core.where(handle)
        length = BLOCK_BYTES + block.length
        request = self._ask(
            "read", lambda n: ReadRegion(n, region, self.epochs[region], block.offset, length), (handle, region)
        )
        self._reads[request] = (block, {self.book.acked.get(handle)})

    def _full(self) -> None:
        if len(self._core.regions) < MAX_REGIONS and self.world.chance.random() < 0.5:
            self._new_region()
        elif self._core.places:
            handle = self.world.chance.choice(list(self._core.places))
            self._send(handle, None, self._core.plan_delete(handle))

    def _new_region(self) -> None:
        numbers = [int(name.rpartition(".")[2]) for name in self._core.regions]
        name = f"{self.store}.{max(numbers, default=-1) + 1:03d}"
        if self.phase is Phase.READY:
            self.phase = Phase.LOADING
        self._ask("new", lambda n: Open(n, name, self.region_bytes), name)

    def _value(self) -> bytes:
        chance = self.world.chance
        length = chance.choice((0, 1, 40, 200, 900, self.region_bytes // 10))
        return self.name.encode() + chance.randbytes(8) + bytes(length)

    def _write(self, region: str, steps: list[Step]) -> int:
        return self._ask("write", lambda n: WriteRegion(n, region, self.epochs[region], steps), region)

    def _send(self, handle: int, value: bytes | None, planned: Planned, leftover: str | None = None) -> None:
        if not self._flights:
            self._moved_ms = self.world.now_ms
        requests = {self._write(region, steps) for region, steps in planned}
        self._flights.append(Flight(handle, value, requests, leftover))


def _short(value: bytes | None) -> str:
    return "absent" if value is None else f"{value[:16].hex()} ({len(value)} bytes)"
