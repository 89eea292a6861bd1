"""The regions of one store, open through an attachment; the objects in them, and writes on their way to them.

PlacedObjects keeps each object in a block of one region, as space.py plans it. WriteBatches decides which writes share a frame,
and in which order they are acknowledged: all writes of one turn of the event loop, and all that come while WINDOW frames of a
region are in flight, share a frame, which is one physical write on both daemons. Operations are acknowledged in the order in
which they were issued.

Features: R7, R8, R12, R13, R14 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spark_jms.store.errors import (
    MemoryLimitError,
    ProtocolError,
    RegionFullError,
    StoreCorruptError,
    StoreError,
    error_of,
)
from spark_jms.store.regions.client.attachment import OPENED, REGION_ROWS, Attachment
from spark_jms.store.regions.client.space import (
    BLOCK_BYTES,
    CATALOG,
    HEADER_BYTES,
    MAX_REGION_BYTES,
    Block,
    InstanceCore,
    Planned,
    Step,
    Walk,
    check_header,
    check_payload,
)
from spark_jms.store.regions.protocol.messages import MAX_BODY_BYTES, Close, Open, ReadRegion, Regions, WriteRegion

log = logging.getLogger("store.replicated")

READ_BYTES = 4 * 1024 * 1024
FRAME_BYTES = 4 * 1024 * 1024
WINDOW = 4
Answered = Callable[[StoreError | None], None]


@dataclass
class RegionContents:
    """A region as it was found. `catalog` are the payloads of the objects that name connections."""

    blocks: Sequence[Block] = ()
    catalog: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class _Operation:
    """One request: done when all its frames are acknowledged and no older operation waits. `leftover` is the region of an
    old block that is freed afterwards, in a frame of its own."""

    future: asyncio.Future[int]
    value: int
    frames: int
    leftover: str | None = None


@dataclass(slots=True)
class _Lane:
    """The frames of one region: the steps of the next one, and how many are in flight."""

    steps: list[Step] = field(default_factory=list)
    operations: list[_Operation] = field(default_factory=list)
    size: int = 0
    in_flight: int = 0


class StoreRegions:
    """Opens, reads and writes the regions of a store."""

    def __init__(self, attachment: Attachment, store: str, region_bytes: int) -> None:
        self._attachment = attachment
        self._store = store
        self._region_bytes = region_bytes
        self._epochs: dict[str, int] = {}
        self._full = False  # as the log says

    async def _rows(self) -> REGION_ROWS:
        rows: REGION_ROWS = await self._attachment.ask(lambda request: Regions(request, f"{self._store}."), REGION_ROWS)
        return rows

    async def are_here(self) -> bool:
        """A store whose regions are all on this daemon is neither new nor from elsewhere."""
        rows = await self._rows()
        return bool(rows) and all(self._attachment.index in (row.primary, row.secondary) for row in rows)

    async def unopened(self) -> list[str]:
        return [row.name for row in await self._rows() if row.name not in self._epochs]

    async def open(self, name: str) -> int:
        """The region's size in bytes."""
        epoch, size, _ = await self._attachment.ask(lambda request: Open(request, name, 0), OPENED)
        if not HEADER_BYTES + BLOCK_BYTES <= size <= MAX_REGION_BYTES:
            raise ProtocolError(f"region {name} of {size} bytes")
        self._epochs[name] = epoch
        return int(size)

    async def add(self) -> str:
        """Makes one more region, of the store's region size."""
        numbers = [int(name.rpartition(".")[2]) for name in self._epochs]
        name = f"{self._store}.{max(numbers, default=-1) + 1:03d}"
        try:
            epoch, size, _ = await self._attachment.ask(lambda request: Open(request, name, self._region_bytes), OPENED)
        except MemoryLimitError as error:
            if not self._full:
                self._full = True
                log.error("store %s cannot grow, what needs room is refused: %s", self._store, error)
            raise
        self._full = False
        if size != self._region_bytes:
            raise ProtocolError(f"region {name} of {size} bytes instead of {self._region_bytes}")
        self._epochs[name] = epoch
        log.info("store %s: region %s of %d bytes", self._store, name, size)
        return name

    async def read(self, region: str, offset: int, length: int) -> bytes:
        epoch = self._epochs[region]
        data: bytes = await self._attachment.ask(
            lambda request: ReadRegion(request, region, epoch, offset, length), bytes
        )
        if len(data) != length:
            raise ProtocolError(f"region {region}: {len(data)} bytes instead of {length}")
        return data

    async def prove(self) -> None:
        """The first region is open here, at a moment during the call, and no other client has opened the store: it would
        have all regions. FencedError."""
        await self.read(next(iter(self._epochs)), 0, 0)

    async def contents(self, name: str, size: int) -> RegionContents | None:
        """None when the client that made the region died before its first write. StoreVersionError, StoreCorruptError."""
        header = await self.read(name, 0, HEADER_BYTES)
        if header == bytes(HEADER_BYTES):
            return None
        check_header(name, header, size)
        found = RegionContents()
        walk = Walk(name, HEADER_BYTES + (size - HEADER_BYTES) // 16 * 16)
        known, length = 0, READ_BYTES
        while (start := walk.wanted()) is not None:
            data = await self.read(name, start, min(length, size - start))
            try:
                walk.feed(start, data)
            except StoreCorruptError:
                if length >= min(size, MAX_BODY_BYTES) or walk.wanted() != start:
                    raise
                length = min(2 * length, MAX_BODY_BYTES)  # the first object is larger than what was read
                continue
            for block in walk.blocks[known:]:
                if block.connection == CATALOG:
                    at = block.offset - start + BLOCK_BYTES
                    found.catalog.append(data[at : at + block.length])
            known, length = len(walk.blocks), READ_BYTES
        found.blocks = walk.blocks
        return found

    def write(self, region: str, steps: list[Step], answered: Answered) -> None:
        self._attachment.begin(
            lambda request: WriteRegion(request, region, self._epochs[region], steps),
            lambda _, error: answered(error),
        )

    async def close(self) -> None:
        with contextlib.suppress(StoreError):  # the end of the connection closes them too
            for name in list(self._epochs):
                await self._attachment.ask(lambda request, name=name: Close(request, name))  # type: ignore[misc]


@dataclass
class PlacedObjects:
    """Carries out what the core (`placement`) plans. When an object finds no room, the store gets one more region."""

    placement: InstanceCore
    regions: StoreRegions
    writes: WriteBatches
    region_bytes: int
    is_new: bool = False
    _growing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def load(self) -> list[bytes]:
        """Opens all regions of the store, and makes the first one of a new store. The payloads of the catalog."""
        catalog: list[bytes] = []
        # Until the list has nothing new: an owner that is being replaced may have made one more region in the meantime.
        while names := await self.regions.unopened():
            for name in names:
                size = await self.regions.open(name)
                found = await self.regions.contents(name, size)
                if found is None:
                    self.writes.push(name, self.placement.add_region(name, size))
                else:
                    self.placement.load_region(name, size, found.blocks)
                    catalog += found.catalog
        if not self.placement.regions:
            await self._grow()
            self.is_new = True
        for region, steps in self.placement.recovered():
            self.writes.push(region, steps)
        self.writes.flush()
        return catalog

    async def create(self, connection: int, data: bytes) -> int:
        while True:
            await self._compact(len(data))
            try:
                handle, planned = self.placement.plan_create(connection, data)
                break
            except RegionFullError:
                await self._make_room()
        return await self.writes.issue(handle, planned)

    async def update(self, handle: int, data: bytes) -> None:
        while True:
            await self._compact(len(data), handle)
            try:
                planned, leftover = self.placement.plan_update(handle, data)
                break
            except RegionFullError:
                await self._make_room()
        await self.writes.issue(handle, planned, leftover)

    async def delete(self, handle: int) -> None:
        self.writes.check()
        await self.writes.issue(handle, self.placement.plan_delete(handle))

    async def read(self, handle: int) -> bytes:
        """The object as of now, once that is acknowledged. Writes that wait are sent first, so that the daemon finds the
        object where the map has it."""
        self.writes.check()
        region, block = self.placement.where(handle)
        self.writes.send_now(region)
        newest = self.writes.newest
        data = await self.regions.read(region, block.offset, BLOCK_BYTES + block.length)
        if newest is not None:
            await asyncio.wait([newest])
        self.writes.check()
        return check_payload(region, block, data[:BLOCK_BYTES], data[BLOCK_BYTES:])

    async def _compact(self, length: int, handle: int | None = None) -> None:
        """Other operations run between two parts of a long compaction."""
        self.writes.check()
        while moves := self.placement.plan_compaction(length, handle):
            await self.writes.issue(0, moves)
            self.writes.check()

    async def _make_room(self) -> None:
        before = len(self.placement.regions)
        async with self._growing:
            if len(self.placement.regions) == before:
                await self._grow()

    async def _grow(self) -> None:
        name = await self.regions.add()
        self.writes.push(name, self.placement.add_region(name, self.region_bytes))

    def handles(self, connection: int) -> list[int]:
        return sorted(handle for handle, place in self.placement.places.items() if place.connection == connection)

    def size_of(self, handle: int) -> int:
        return self.placement.where(handle)[1].length

    @property
    def count(self) -> int:
        return sum(place.connection != CATALOG for place in self.placement.places.values())


class WriteBatches:
    """`send` sends the steps of one frame and calls back once, with None when both copies hold it. `forget` plans the writes
    that free a leftover. After `fail` no write is sent, and every operation ends with that error."""

    def __init__(
        self,
        send: Callable[[str, list[Step], Answered], None],
        forget: Callable[[str, int], Planned],
        failed: Callable[[StoreError], None],
    ) -> None:
        self.failure: StoreError | None = None
        self.write_count = self.write_bytes = 0
        self._send_frame = send
        self._forget = forget
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[str, _Lane] = {}
        self._queue: deque[_Operation] = deque()
        self._flushing = False

    def check(self) -> None:
        """Raises the failure, as an error of its own for each caller."""
        if self.failure is not None:
            raise error_of(type(self.failure).__name__, self.failure.args)

    def issue(self, value: int, planned: Planned, leftover: str | None = None) -> asyncio.Future[int]:
        """The future becomes `value` when the operation is acknowledged."""
        operation = _Operation(self._loop.create_future(), value, len(planned), leftover)
        self._queue.append(operation)
        for region, steps in planned:
            self.push(region, steps, operation)
        self._flush_soon()
        return operation.future

    def push(self, region: str, steps: list[Step], operation: _Operation | None = None) -> None:
        lane = self._lanes.get(region) or self._lanes.setdefault(region, _Lane())
        size = sum(len(what) for _, what in steps if isinstance(what, bytes))
        if lane.steps and lane.size + size > FRAME_BYTES:
            self._send(region, lane)
        for step in steps:
            # Between two moves of a compaction the region is whole, so a long one may take several frames.
            if not isinstance(step[1], bytes) and lane.steps and lane.size > FRAME_BYTES:
                self._send(region, lane)
            lane.steps.append(step)
            lane.size += len(step[1]) if isinstance(step[1], bytes) else step[1][1]
        if operation is not None:
            lane.operations.append(operation)

    def send_now(self, region: str) -> None:
        """Sends what waits for this region, so that a read that is asked for next finds it there."""
        lane = self._lanes.get(region)
        if lane is not None and lane.steps:
            self._send(region, lane)

    @property
    def newest(self) -> asyncio.Future[int] | None:
        return self._queue[-1].future if self._queue else None

    async def drained(self) -> None:
        if self._queue:
            await asyncio.wait([operation.future for operation in self._queue])

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flushing = False
        if self.failure is not None:
            return
        for region, lane in self._lanes.items():
            if lane.steps and (lane.in_flight < WINDOW or lane.size >= FRAME_BYTES):
                self._send(region, lane)

    def _send(self, region: str, lane: _Lane) -> None:
        steps, operations, size = lane.steps, lane.operations, lane.size
        lane.steps, lane.operations, lane.size = [], [], 0
        lane.in_flight += 1
        self.write_count += 1
        self.write_bytes += size
        try:
            self._send_frame(region, steps, lambda error: self._acknowledged(lane, operations, error))
        except StoreError as error:
            self._failed(error)

    def _acknowledged(self, lane: _Lane, operations: list[_Operation], error: StoreError | None) -> None:
        """What a caller issues when its future is done still joins the frame that is sent in this turn."""
        if error is not None:
            self._failed(error)
            return
        lane.in_flight -= 1
        for operation in operations:
            operation.frames -= 1
            if not operation.frames and operation.leftover is not None:
                leftover, operation.leftover, operation.frames = operation.leftover, None, 1
                for region, steps in self._forget(leftover, operation.value):
                    self.push(region, steps, operation)
        while self._queue and not self._queue[0].frames and self._queue[0].leftover is None:
            operation = self._queue.popleft()
            if not operation.future.done():
                operation.future.set_result(operation.value)
        self._flush_soon()

    def fail(self, error: StoreError) -> bool:
        """False when it had failed before."""
        if self.failure is not None:
            return False
        self.failure = error
        for operation in self._queue:
            if not operation.future.done():
                operation.future.set_exception(error_of(type(error).__name__, error.args))
                operation.future.exception()  # marks it as retrieved: the caller may have been cancelled
        self._queue.clear()
        return True
