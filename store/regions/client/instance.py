"""A store instance: the client that owns the regions of a store and keeps objects in them.

Any failure ends the instance. Its service opens it again, at this daemon or at another one of the cluster, and recovers
what the regions hold. Its parts: the regions, the objects in them and writes on their way (store_regions.py), and what it
refuses while the daemon is full (objects.py).

Features: R7, R8, R12, R13, R14, R15, R16 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from spark_jms.settings.store import Thresholds
from spark_jms.store.errors import (
    DaemonUnavailableError,
    FencedError,
    MemoryLimitError,
    NameInvalidError,
    RegionUnavailableError,
    StoreClosedError,
    StoreError,
)
from spark_jms.store.regions.client.attachment import Attachment, client_name
from spark_jms.store.regions.client.objects import ObjectConnection, Overload
from spark_jms.store.regions.client.space import CATALOG, InstanceCore
from spark_jms.store.regions.client.store_regions import PlacedObjects, StoreRegions, WriteBatches
from spark_jms.store.regions.core.memory_use import check_message_size, maximum_message_size_bytes
from spark_jms.store.regions.directory.global_directory import GlobalDirectory, quoted
from spark_jms.store.regions.directory.overload import PublishedOverload
from spark_jms.store.regions.protocol.cluster_config import ClusterConfig
from spark_jms.store.regions.protocol.messages import ConnectionRow, StoreRow

log = logging.getLogger("store.replicated")

DEFAULT_REGION_BYTES = 64 * 1024 * 1024
OBJECT_LIMIT_BYTES = 24 * 1024 * 1024  # a frame holds one object, one that is moved for it, and FRAME_BYTES
PROOF_TRIES, PROOF_PAUSE_S = 20, 0.05
Attach = Callable[[Callable[[str], None]], Awaitable[Attachment]]  # of what to call when the attachment is lost
MAX_QUOTED_BYTES = 219  # 255 of a file's name, less .000_client_meta.f and what makes it temporary
WATCH_S = 5.0  # between two looks at the daemon's memory for the log; a write that may be refused looks for itself
NEAR_S = 1.0  # the same while the store's own regions are above yellow: senders are refused by it


@dataclass(frozen=True)
class InstanceStatistics:
    """Of this instance since it opened."""

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


class StoreInstance:
    """Made by `await StoreInstance.open(...)`. Belongs to one event loop."""

    def __init__(
        self,
        attachment: Attachment,
        name: str,
        region_bytes: int,
        thresholds: Thresholds,
        published: PublishedOverload,
    ) -> None:
        self.name = name
        self.region_bytes = region_bytes
        self.thresholds = thresholds
        self.max_object_bytes = min(maximum_message_size_bytes(thresholds, region_bytes), OBJECT_LIMIT_BYTES)
        self._attachment = attachment
        self._placement = InstanceCore()
        self._regions = StoreRegions(attachment, name, region_bytes)
        self._writes = WriteBatches(self._regions.write, self._placement.plan_forget, self._fail)
        self._objects = PlacedObjects(self._placement, self._regions, self._writes, region_bytes)
        self._overload = Overload(thresholds, name, self._placement, attachment, published)
        self._connections: dict[str, ObjectConnection] = {}
        self._names: dict[int, str] = {}  # of all connections that ever were
        self._reported_used: dict[str, int] = {}
        self._reported_counts: StoreRow | None = None
        self._users: Callable[[], Sequence[ConnectionRow]] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._on_failure: list[Callable[[StoreError], None]] = []

    @classmethod
    async def open(
        cls,
        directory: GlobalDirectory,
        name: str,
        *,
        region_bytes: int = DEFAULT_REGION_BYTES,
        localindex: int = 0,
        thresholds: Thresholds | None = None,
        config: ClusterConfig | None = None,
        daemon: int | None = None,
        role: str = "",
    ) -> StoreInstance:
        """RegionOpenError when another client has the store open; NoLocalDaemonError, MemoryLimitError, RegionLostError,
        StoreVersionError, StoreCorruptError. After an error nothing was changed. `daemon` is the only one to attach to;
        `role` begins the name under which administrators see the client."""
        check_store_name(name)
        cluster = config or directory.config()
        client = role + client_name(name)

        async def attach(lost: Callable[[str], None]) -> Attachment:
            if daemon is not None:
                return await Attachment.to(directory, cluster, daemon, client, lost=lost)
            return await Attachment.local(directory, cluster, localindex, client, lost=lost)

        published = PublishedOverload(directory.path, name, client)
        return await cls.attached(attach, name, published, region_bytes=region_bytes, thresholds=thresholds)

    @classmethod
    async def attached(
        cls,
        attach: Attach,
        name: str,
        published: PublishedOverload,
        *,
        region_bytes: int,
        thresholds: Thresholds | None = None,
    ) -> StoreInstance:
        """The same, with the attachment that `attach` makes; `published` is what senders are told."""
        opened: list[StoreInstance] = []

        def lost(reason: str) -> None:
            for instance in opened:
                instance._fail(FencedError(f"store {name}: {reason}"))

        attachment = await attach(lost)
        self = cls(attachment, name, region_bytes, thresholds or Thresholds(), published)
        try:
            await self._load()
        except BaseException:
            attachment.close()
            raise
        opened.append(self)
        attachment.used = self._changed_used
        attachment.counts = self._changed_counts
        if attachment.gone:
            raise DaemonUnavailableError(attachment.gone)
        self._watching = asyncio.create_task(self._watch())
        return self

    @property
    def daemon(self) -> int:
        return self._attachment.index

    @property
    def failure(self) -> StoreError | None:
        return self._writes.failure

    async def _load(self) -> None:
        await self._overload.observe()
        if self._overload.refuses_open() and not await self._regions.are_here():
            used, limit = self._overload.daemon_used, self._overload.daemon_limit
            raise MemoryLimitError(f"store {self.name}: {used} of {limit} bytes are used on its daemon")
        for payload in await self._objects.load():
            self._names[int.from_bytes(payload[:2], "big")] = payload[2:].decode()

    async def close(self) -> None:
        """Waits until all issued operations are acknowledged, then closes the regions."""
        if self._watching is not None:
            self._watching.cancel()
        if self.failure is None:
            await self._writes.drained()
            self._attachment.tell()
            await self._regions.close()
        self._fail(StoreClosedError(f"store {self.name} was closed"))
        self._attachment.close()

    def abandon(self) -> None:
        """In a forked child: drops the descriptor and sends nothing."""
        self._attachment.abandon()

    def on_failure(self, call: Callable[[StoreError], None]) -> None:
        """`call` runs once, on the event loop; at once when the instance has failed already."""
        if self.failure is not None:
            call(self.failure)
        else:
            self._on_failure.append(call)

    def _fail(self, error: StoreError) -> None:
        if not self._writes.fail(error):
            return
        if not isinstance(error, StoreClosedError):
            log.error("store %s has failed and is closed: %s", self.name, error)
        if self._watching is not None:
            self._watching.cancel()
        for call in self._on_failure:
            call(error)
        self._attachment.close(str(error))

    # ---- the daemon's memory

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        looked_s = loop.time()
        while self.failure is None:
            await asyncio.sleep(min(NEAR_S, WATCH_S))
            if not self._overload.is_near and loop.time() - looked_s < WATCH_S:
                continue
            looked_s = loop.time()
            try:
                await self._overload.observe()
            except StoreError as error:
                log.debug("store %s: %s", self.name, error)

    def _changed_used(self) -> list[tuple[str, int]]:
        """The used bytes of each region, for `lsr`, where they have changed since the last report."""
        used = {name: space.used_bytes for name, space in self._placement.regions.items()}
        changed = [(name, size) for name, size in used.items() if self._reported_used.get(name) != size]
        self._reported_used = used
        return changed

    def reclaims(self, reclaimable: Callable[[], int]) -> None:
        """Of the bytes that the service of this store uses, `reclaimable` are given back by its next snapshot."""
        self._overload.reclaimable = reclaimable

    # ---- counts

    def count_by(self, users: Callable[[], Sequence[ConnectionRow]]) -> None:
        """The connections to report: those of the service that keeps its own things in this store's objects."""
        self._users = users

    def _changed_counts(self) -> StoreRow | None:
        rows = map(_connection_row, self._connections.values()) if self._users is None else self._users()
        row = StoreRow(self.name, self._writes.write_count, tuple(rows))
        if row == self._reported_counts:
            return None
        self._reported_counts = row
        return row

    # ---- ownership

    @property
    def is_new(self) -> bool:
        """This instance has made the store's first region."""
        return self._objects.is_new

    async def prove(self) -> None:
        """The store is open here, at a moment during the call. RegionUnavailableError while the daemon cannot tell; the error
        that ended the instance when it is not."""
        for _ in range(PROOF_TRIES):
            self._writes.check()
            try:
                await self._regions.prove()
                return
            except FencedError:  # the daemon may need its directory to tell; a region that was lost ends the instance
                await asyncio.sleep(PROOF_PAUSE_S)
        self._writes.check()
        raise RegionUnavailableError(f"store {self.name}: its daemon cannot tell whether it is open here")

    async def check_new_message(self, message_bytes: int) -> None:
        """ResourceAllocationException: too large for the regions, or this daemon and this store are both overloaded."""
        check_message_size(self.thresholds, message_bytes, self.region_bytes)
        await self._overload.check()

    # ---- connections

    async def connection(self, name: str) -> ObjectConnection:
        """The connection of that name. A new one is recorded and stays for the life of the store."""
        self._writes.check()
        known = self._connections.get(name)
        if known is not None:
            return known
        number = next((n for n, known_name in self._names.items() if known_name == name), 0)
        if not number:
            number = max(self._names, default=CATALOG) + 1
            self._names[number] = name
            await self._objects.create(CATALOG, number.to_bytes(2, "big") + name.encode())
        made = ObjectConnection(self._objects, self._overload, self.max_object_bytes, name, number)
        self._connections[name] = made
        return made

    def statistics(self) -> InstanceStatistics:
        counts: Counter[str] = Counter()
        for connection in self._connections.values():
            one = connection.statistics()
            counts.update(
                create=one.create_count, read=one.read_count, update=one.update_count, delete=one.delete_count
            )
        return InstanceStatistics(
            create_count=counts["create"],
            read_count=counts["read"],
            update_count=counts["update"],
            delete_count=counts["delete"],
            object_count=self._objects.count,
            connection_count=len(self._connections),
            physical_write_count=self._writes.write_count,
            physical_write_bytes=self._writes.write_bytes,
            region_count=len(self._placement.regions),
            region_bytes=self._placement.size_bytes,
            used_bytes=self._placement.used_bytes,
        )


def _connection_row(connection: ObjectConnection) -> ConnectionRow:
    one = connection.statistics()
    return ConnectionRow(
        connection.name, one.create_count, one.read_count, one.update_count, one.delete_count, one.object_count
    )


def check_store_name(name: str) -> None:
    """NameInvalidError. The longest file of a region is its `_client_meta.f` under a temporary name."""
    if not name or len(name) > 100 or not all(c.isalnum() or c in "-_" for c in name):
        raise NameInvalidError(f"a store's name is 1 to 100 letters, digits, - and _: {name[:80]!r}")
    size = len(quoted(name))
    if size > MAX_QUOTED_BYTES:
        text = f"a store's name is 1 to 100 letters, digits, - and _, and as part of a file's name at most {MAX_QUOTED_BYTES}"
        raise NameInvalidError(f"{text} bytes, where a letter beyond ASCII takes 6 or more: {name[:80]!r} takes {size}")
