"""A store instance: the client that owns regions and keeps objects in them (R7, R8, R12-R16).

Requests of one turn of the event loop, and all that come while WINDOW frames are under way, share a frame: one physical
write on both daemons. They are acknowledged in the order in which they were issued. Any failure ends the instance: it is
opened anew, at this daemon or at another one of its cluster, and recovers what is in its regions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from spark_jms.settings.store import Thresholds
from spark_jms.store.errors import (
    DaemonUnavailableError,
    FencedError,
    MemoryLimitError,
    NameInvalidError,
    ObjectNotFoundError,
    ObjectTooLargeError,
    ProtocolError,
    RegionFullError,
    StoreClosedError,
    StoreCorruptError,
    StoreError,
    error_of,
)
from spark_jms.store.regions.client.attachment import DAEMON_ROWS, OPENED, REGION_ROWS, Attachment, client_name
from spark_jms.store.regions.client.objects import ConnectionStatistics, Objects
from spark_jms.store.regions.client.thresholds import (
    SpaceLog,
    check_message_size,
    check_new_message,
    maximum_message_size_bytes,
    refuses_open,
)
from spark_jms.store.regions.core.config import ClusterConfig
from spark_jms.store.regions.core.instance import CATALOG, InstanceCore, Planned, Walk
from spark_jms.store.regions.core.protocol import MAX_BODY_BYTES, Close, Daemons, Open, ReadRegion, Regions, WriteRegion
from spark_jms.store.regions.core.space import (
    BLOCK_BYTES,
    HEADER_BYTES,
    MAX_REGION_BYTES,
    Step,
    check_header,
    check_payload,
)
from spark_jms.store.regions.global_directory import GlobalDirectory

log = logging.getLogger("store.replicated")

DEFAULT_REGION_BYTES = 64 * 1024 * 1024
READ_BYTES = 4 * 1024 * 1024
FRAME_BYTES = 4 * 1024 * 1024
OBJECT_LIMIT_BYTES = 24 * 1024 * 1024  # a frame takes one, one that is moved for it, and FRAME_BYTES
WINDOW = 4
WATCH_S = 5.0


@dataclass(frozen=True)
class InstanceStatistics:
    """R14: of this instance since it opened."""

    create_count: int = 0
    read_count: int = 0
    update_count: int = 0
    delete_count: int = 0
    object_count: int = 0
    connection_count: int = 0
    physical_write_count: int = 0
    physical_write_bytes: int = 0
    region_count: int = 0
    region_bytes: int = 0
    used_bytes: int = 0


@dataclass
class _Operation:
    """One request: done when all its frames are acknowledged and it is the oldest."""

    future: asyncio.Future[int]
    value: int
    frames: int
    leftover: str | None = None


@dataclass
class _Lane:
    """The frames of one region: steps that wait, and how many frames are under way."""

    epoch: int
    steps: list[Step] = field(default_factory=list)
    operations: list[_Operation] = field(default_factory=list)
    size: int = 0
    under_way: int = 0


class StoreInstance:
    """Made by `await StoreInstance.open(...)`. One event loop. `failed` is called once with the reason."""

    def __init__(self, attachment: Attachment, name: str, region_bytes: int, thresholds: Thresholds) -> None:
        self.name = name
        self.region_bytes = region_bytes
        self.thresholds = thresholds
        self.max_object_bytes = min(maximum_message_size_bytes(thresholds, region_bytes), OBJECT_LIMIT_BYTES)
        self.failure: StoreError | None = None
        self._attachment = attachment
        self._core = InstanceCore()
        self._lanes: dict[str, _Lane] = {}
        self._queue: deque[_Operation] = deque()
        self._connections: dict[str, ObjectConnection] = {}
        self._names: dict[int, str] = {}
        self._loop = asyncio.get_running_loop()
        self._flushing = False
        self._growing: asyncio.Lock = asyncio.Lock()
        self._full = False
        self._writes = self._write_bytes = 0
        self._daemon_used = self._daemon_limit = 0
        self._told_used: dict[str, int] = {}
        self._space_log = SpaceLog(thresholds, name)
        self._watching: asyncio.Task[None] | None = None
        self._on_failure: list[Callable[[StoreError], None]] = []

    # ---- life

    @classmethod
    async def open(
        cls, directory: GlobalDirectory, name: str, *, region_bytes: int = DEFAULT_REGION_BYTES, localindex: int = 0,
        thresholds: Thresholds | None = None, config: ClusterConfig | None = None, daemon: int | None = None,
        role: str = "",
    ) -> StoreInstance:  # fmt: skip
        """RegionOpenError when another client has the store, NoLocalDaemonError, MemoryLimitError, RegionLostError,
        StoreVersionError, StoreCorruptError: by name, and nothing was changed. `daemon`: attach to this very one.
        `role`: begins the name under which administrators see it."""
        _check_name(name)
        config = config or directory.config()
        box: list[StoreInstance] = []

        def lost(reason: str) -> None:
            if box:
                box[0]._fail(FencedError(f"store {name}: {reason}"))

        who = role + client_name(name)
        if daemon is not None:
            attachment = await Attachment.to(directory, config, daemon, who, lost=lost)
        else:
            attachment = await Attachment.local(directory, config, localindex, who, lost=lost)
        self = cls(attachment, name, region_bytes, thresholds or Thresholds())
        try:
            await self._load()
        except BaseException:
            attachment.close()
            raise
        box.append(self)
        attachment.used = self._used
        if attachment.gone:
            raise DaemonUnavailableError(attachment.gone)
        self._watching = asyncio.create_task(self._watch())
        return self

    @property
    def daemon(self) -> int:
        return self._attachment.index

    async def _load(self) -> None:
        await self._look_at_daemon()
        if refuses_open(self.thresholds, self._daemon_used, self._daemon_limit) and not await self._is_here():
            detail = f"store {self.name}: {self._daemon_used} of {self._daemon_limit} bytes are used on its daemon"
            raise MemoryLimitError(detail)
        catalog: dict[int, bytes] = {}
        # Until the list tells nothing new: an owner that is replaced may have made one more region in the meantime.
        while unknown := [name for name in await self._region_names() if name not in self._lanes]:
            for name in unknown:
                await self._load_region(name, catalog)
        if not self._lanes:
            await self._grow()
        for region, steps in self._core.recovered():
            self._push(region, steps, None)
        for payload in catalog.values():
            number = int.from_bytes(payload[:2], "big")
            self._names[number] = payload[2:].decode()
        self._flush()

    async def _region_names(self) -> list[str]:
        return [row.name for row in await self._regions()]

    async def _is_here(self) -> bool:
        """R13: a store whose regions are on this daemon already is neither new nor from elsewhere."""
        rows = await self._regions()
        return bool(rows) and all(self._attachment.index in (row.primary, row.secondary) for row in rows)

    async def _regions(self) -> REGION_ROWS:
        rows: REGION_ROWS = await self._attachment.ask(lambda request: Regions(request, f"{self.name}."), REGION_ROWS)
        return rows

    async def _load_region(self, name: str, catalog: dict[int, bytes]) -> None:
        epoch, size, _ = await self._attachment.ask(lambda request: Open(request, name, 0), OPENED)
        if not HEADER_BYTES + BLOCK_BYTES <= size <= MAX_REGION_BYTES:
            raise ProtocolError(f"region {name} of {size} bytes")
        self._lanes[name] = _Lane(epoch)
        header = await self._read(name, 0, HEADER_BYTES)
        if header == bytes(HEADER_BYTES):
            # Made by a client that died before its first write: nothing can be in it.
            self._push(name, self._core.add_region(name, size), None)
            return
        check_header(name, header, size)
        walk = Walk(name, HEADER_BYTES + (size - HEADER_BYTES) // 16 * 16)
        known, length = 0, READ_BYTES
        while (start := walk.wanted()) is not None:
            data = await self._read(name, start, min(length, size - start))
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
                    catalog[block.handle] = data[at : at + block.length]
            known, length = len(walk.blocks), READ_BYTES
        self._core.load_region(name, size, walk.blocks)

    async def _read(self, region: str, offset: int, length: int) -> bytes:
        epoch = self._lanes[region].epoch
        data: bytes = await self._attachment.ask(
            lambda request: ReadRegion(request, region, epoch, offset, length), bytes
        )
        if len(data) != length:
            raise ProtocolError(f"region {region}: {len(data)} bytes instead of {length}")
        return data

    async def _grow(self) -> None:
        """One more region (R7)."""
        numbers = [int(name.rpartition(".")[2]) for name in self._core.regions]
        name = f"{self.name}.{max(numbers, default=-1) + 1:03d}"
        epoch, size, _ = await self._attachment.ask(lambda request: Open(request, name, self.region_bytes), OPENED)
        if size != self.region_bytes:
            raise ProtocolError(f"region {name} of {size} bytes instead of {self.region_bytes}")
        self._lanes[name] = _Lane(epoch)
        self._push(name, self._core.add_region(name, size), None)
        log.info("store %s: region %s of %d bytes", self.name, name, size)

    async def close(self) -> None:
        """What was issued is finished first."""
        if self._watching is not None:
            self._watching.cancel()
        if self.failure is None:
            if self._queue:
                await asyncio.wait([operation.future for operation in self._queue])
            self._attachment.tell()
            with contextlib.suppress(StoreError):  # the end of the connection closes them too
                for name in list(self._lanes):
                    await self._attachment.ask(lambda request, name=name: Close(request, name))  # type: ignore[misc]
        self._fail(StoreClosedError(f"store {self.name} was closed"))
        self._attachment.close()

    def abandon(self) -> None:
        """In a forked child: drop the descriptor, say nothing."""
        self._attachment.abandon()

    def on_failure(self, call: Callable[[StoreError], None]) -> None:
        """On the event loop. Called at once when it has failed already."""
        if self.failure is not None:
            call(self.failure)
        else:
            self._on_failure.append(call)

    def _fail(self, error: StoreError) -> None:
        if self.failure is not None:
            return
        self.failure = error
        if self._watching is not None:
            self._watching.cancel()
        for operation in self._queue:
            if not operation.future.done():
                operation.future.set_exception(error_of(type(error).__name__, error.args))
                operation.future.exception()
        self._queue.clear()
        for call in self._on_failure:
            call(error)
        self._attachment.close(str(error))

    # ---- the daemon's memory (R13)

    async def _watch(self) -> None:
        while self.failure is None:
            await asyncio.sleep(WATCH_S)
            try:
                await self._look_at_daemon()
            except StoreError as error:
                log.debug("store %s: %s", self.name, error)

    async def _look_at_daemon(self) -> None:
        rows = await self._attachment.ask(Daemons, DAEMON_ROWS)
        row = rows[self._attachment.index] if self._attachment.index < len(rows) else None
        if row is None:
            raise ProtocolError(f"daemon {self._attachment.index} says nothing of itself")
        self._daemon_used, self._daemon_limit = row.used_bytes, row.limit_bytes
        line = self._space_log.observe(self._daemon_used, self._daemon_limit)
        if line is not None:
            log.log(int(line.level), "%s", line.text)

    def _used(self) -> list[tuple[str, int]]:
        """What `lsr` shows, where it is not what was told before."""
        used = {name: space.used_bytes for name, space in self._core.regions.items()}
        changed = [(name, size) for name, size in used.items() if self._told_used.get(name) != size]
        self._told_used = used
        return changed

    def check_new_message(self, message_bytes: int) -> None:
        """ResourceAllocationException: too large for the regions, or this daemon and this store are both overloaded."""
        check_message_size(self.thresholds, message_bytes, self.region_bytes)
        self.check_overload()

    def check_overload(self) -> None:
        """ResourceAllocationException while this daemon and this store are both above yellow."""
        check_new_message(
            self.thresholds, self._daemon_used, self._daemon_limit, self._core.used_bytes, self._core.size_bytes
        )

    # ---- connections

    async def connection(self, name: str) -> ObjectConnection:
        """The one of that name; made when it is new, and then kept for good."""
        self._check()
        known = self._connections.get(name)
        if known is not None:
            return known
        number = next((n for n, known_name in self._names.items() if known_name == name), 0)
        if not number:
            number = max(self._names, default=CATALOG) + 1
            self._names[number] = name
            await self.create(CATALOG, number.to_bytes(2, "big") + name.encode())
        made = self._connections[name] = ObjectConnection(self, name, number)
        return made

    # ---- operations

    async def create(self, connection: int, data: bytes) -> int:
        while True:
            self._check()
            try:
                handle, planned = self._core.plan_create(connection, data)
                break
            except RegionFullError:
                await self._more_room(len(data))
        return await self._issue(handle, planned)

    async def update(self, handle: int, data: bytes) -> None:
        while True:
            self._check()
            try:
                planned, leftover = self._core.plan_update(handle, data)
                break
            except RegionFullError:
                await self._more_room(len(data))
        await self._issue(handle, planned, leftover)

    async def delete(self, handle: int) -> None:
        self._check()
        await self._issue(handle, self._core.plan_delete(handle))

    async def read(self, handle: int) -> bytes:
        """As of now, and only once that is acknowledged. What is planned is sent first, so that it is where the map
        says when the daemon reads it."""
        self._check()
        region, block = self._core.where(handle)
        lane = self._lanes[region]
        if lane.steps:
            self._send(region, lane)
        newest = self._queue[-1].future if self._queue else None
        data = await self._read(region, block.offset, BLOCK_BYTES + block.length)
        if newest is not None:
            await asyncio.wait([newest])
        self._check()
        return check_payload(region, block, data[:BLOCK_BYTES], data[BLOCK_BYTES:])

    async def _more_room(self, length: int) -> None:
        before = len(self._core.regions)
        async with self._growing:
            if len(self._core.regions) == before:
                await self._grow()

    def _issue(self, value: int, planned: Planned, leftover: str | None = None) -> asyncio.Future[int]:
        operation = _Operation(self._loop.create_future(), value, len(planned), leftover)
        self._queue.append(operation)
        for region, steps in planned:
            self._push(region, steps, operation)
        self._flush_soon()
        return operation.future

    def _push(self, region: str, steps: list[Step], operation: _Operation | None) -> None:
        lane = self._lanes[region]
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

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        if self.failure is not None:
            return
        for name, lane in self._lanes.items():
            if lane.steps and (lane.under_way < WINDOW or lane.size >= FRAME_BYTES):
                self._send(name, lane)

    def _send(self, name: str, lane: _Lane) -> None:
        steps, operations, size = lane.steps, lane.operations, lane.size
        lane.steps, lane.operations, lane.size = [], [], 0
        lane.under_way += 1
        self._writes += 1
        self._write_bytes += size
        try:
            self._attachment.begin(
                lambda request: WriteRegion(request, name, lane.epoch, steps),
                lambda _, error: self._acknowledged(lane, operations, error),
            )
        except StoreError as error:
            self._fail(error)

    def _acknowledged(self, lane: _Lane, operations: list[_Operation], error: StoreError | None) -> None:
        """Whoever is woken here and asks for more is still in the frame that goes out in this turn."""
        if error is not None:
            self._fail(error)
            return
        lane.under_way -= 1
        for operation in operations:
            operation.frames -= 1
            if not operation.frames and operation.leftover is not None:
                leftover, operation.leftover, operation.frames = operation.leftover, None, 1
                for region, steps in self._core.plan_forget(leftover, operation.value):
                    self._push(region, steps, operation)
        while self._queue and not self._queue[0].frames and self._queue[0].leftover is None:
            operation = self._queue.popleft()
            if not operation.future.done():
                operation.future.set_result(operation.value)
        self._flush_soon()

    def _check(self) -> None:
        if self.failure is not None:
            raise error_of(type(self.failure).__name__, self.failure.args)

    def handles(self, connection: int) -> list[int]:
        return sorted(handle for handle, place in self._core.places.items() if place.connection == connection)

    def size_of(self, handle: int) -> int:
        return self._core.where(handle)[1].length

    def statistics(self) -> InstanceStatistics:
        counts: Counter[str] = Counter()
        for connection in self._connections.values():
            one = connection.statistics()
            counts.update(
                create=one.create_count, read=one.read_count, update=one.update_count, delete=one.delete_count
            )
        return InstanceStatistics(
            counts["create"], counts["read"], counts["update"], counts["delete"],
            sum(place.connection != CATALOG for place in self._core.places.values()), len(self._connections),
            self._writes, self._write_bytes, len(self._core.regions), self._core.size_bytes, self._core.used_bytes,
        )  # fmt: skip


class ObjectConnection(Objects):
    """A named part of the instance's objects (R14), with counts of its own."""

    def __init__(self, instance: StoreInstance, name: str, number: int) -> None:
        self.name = name
        self._instance = instance
        self._number = number
        self.max_object_bytes = instance.max_object_bytes
        self._creates = self._reads = self._updates = self._deletes = 0
        self._mine: dict[int, int] = {handle: instance.size_of(handle) for handle in instance.handles(number)}

    def check_overload(self) -> None:
        self._instance.check_overload()

    def _limit(self, data: bytes) -> None:
        if len(data) > self.max_object_bytes:
            raise ObjectTooLargeError(len(data), self.max_object_bytes)

    def _known(self, handle: int) -> None:
        if handle not in self._mine:
            raise ObjectNotFoundError(handle)

    async def create(self, data: bytes) -> int:
        self._limit(data)
        handle = await self._instance.create(self._number, data)
        self._mine[handle] = len(data)
        self._creates += 1
        return handle

    async def update(self, handle: int, data: bytes) -> None:
        self._limit(data)
        self._known(handle)
        await self._instance.update(handle, data)
        if handle in self._mine:
            self._mine[handle] = len(data)
        self._updates += 1

    async def delete(self, handle: int) -> None:
        self._known(handle)
        del self._mine[handle]
        await self._instance.delete(handle)
        self._deletes += 1

    async def read(self, handle: int) -> bytes:
        self._known(handle)
        self._reads += 1
        return await self._instance.read(handle)

    def handles(self) -> Sequence[int]:
        return sorted(self._mine)

    def statistics(self) -> ConnectionStatistics:
        return ConnectionStatistics(
            self._creates, self._reads, self._updates, self._deletes, len(self._mine), sum(self._mine.values())
        )


def _check_name(name: str) -> None:
    if not name or len(name) > 100 or not all(c.isalnum() or c in "-_" for c in name):
        raise NameInvalidError(f"a store's name is 1 to 100 letters, digits, - and _: {name[:80]!r}")
