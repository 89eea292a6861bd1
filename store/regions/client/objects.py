"""Objects with handles: the port that a store instance offers to services, what implements it, and its fake.

A service (record sets, the WebHDFS namespace) keeps all its durable state in objects of one connection. ObjectConnection
implements the port for a StoreInstance (instance.py), on regions in two memories; `MemoryObjects` is the fake that ships.
Overload is what a store refuses while its daemon is full.

Features: R13, R14 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spark_jms.settings.store import Thresholds
from spark_jms.store.errors import (
    ObjectNotFoundError,
    ObjectTooLargeError,
    ProtocolError,
    ResourceAllocationException,
    StoreError,
)
from spark_jms.store.regions.client.attachment import DAEMON_ROWS, Attachment
from spark_jms.store.regions.client.space import InstanceCore
from spark_jms.store.regions.client.store_regions import PlacedObjects
from spark_jms.store.regions.core.memory_use import SpaceLog, check_new_message, exceeds_yellow, refuses_open
from spark_jms.store.regions.directory.overload import PublishedOverload
from spark_jms.store.regions.protocol.messages import Daemons

log = logging.getLogger("store.replicated")


@dataclass(frozen=True)
class ConnectionStatistics:
    """Counts of requests since the instance opened, and the objects of the connection now."""

    create_count: int = 0
    read_count: int = 0
    update_count: int = 0
    delete_count: int = 0
    object_count: int = 0
    object_bytes: int = 0


class Objects(ABC):
    """One named connection to a store instance. It belongs to one event loop and is not thread-safe.

    An operation is atomic, and durable (both copies hold it) when it returns. A caller may issue operations without
    waiting for earlier ones; they are acknowledged in the order in which they were issued. When the instance fails, any
    operation that was not acknowledged may have happened. No operation spans two objects.
    Every operation raises StoreErrors: RegionUnavailableError, FencedError (another client replaced the instance: stop,
    and open a new one), StoreFullError (memory limit), StoreClosedError.
    """

    name: str
    max_object_bytes: int

    @abstractmethod
    async def check_overload(self) -> None:
        """ResourceAllocationException while the store should accept nothing new. Services call it before they grow;
        `create` and `update` do not, because deletions write too."""

    @abstractmethod
    async def create(self, data: bytes) -> int:
        """The handle of the new object, which this store never used before."""

    @abstractmethod
    async def update(self, handle: int, data: bytes) -> None: ...

    @abstractmethod
    async def delete(self, handle: int) -> None: ...

    @abstractmethod
    async def read(self, handle: int) -> bytes:
        """The bytes, checked against their checksum: StoreCorruptError when they differ."""

    @abstractmethod
    def handles(self) -> Sequence[int]:
        """The handles of the existing objects, in the order of creation."""

    @abstractmethod
    def statistics(self) -> ConnectionStatistics: ...


class MemoryObjects(Objects):
    """The fake. A new one with the same `contents` is a restart after a crash."""

    def __init__(
        self, name: str = "fake", max_object_bytes: int = 8 * 1024 * 1024, contents: dict[int, bytes] | None = None
    ) -> None:
        self.name = name
        self.max_object_bytes = max_object_bytes
        self.contents: dict[int, bytes] = {} if contents is None else contents
        self._next = max(self.contents, default=0) + 1
        self._statistics = ConnectionStatistics()
        self.failure: BaseException | None = None  # raised by every operation once set
        self.overload: StoreError | None = None

    def _begin(self, data: bytes = b"") -> None:
        if self.failure is not None:
            raise self.failure
        if len(data) > self.max_object_bytes:
            raise ObjectTooLargeError(len(data), self.max_object_bytes)

    async def check_overload(self) -> None:
        if self.overload is not None:
            raise self.overload

    async def create(self, data: bytes) -> int:
        self._begin(data)
        handle, self._next = self._next, self._next + 1
        self.contents[handle] = bytes(data)
        self._statistics = replace(self._statistics, create_count=self._statistics.create_count + 1)
        return handle

    async def update(self, handle: int, data: bytes) -> None:
        self._begin(data)
        self._known(handle)
        self.contents[handle] = bytes(data)
        self._statistics = replace(self._statistics, update_count=self._statistics.update_count + 1)

    async def delete(self, handle: int) -> None:
        self._begin()
        self._known(handle)
        del self.contents[handle]
        self._statistics = replace(self._statistics, delete_count=self._statistics.delete_count + 1)

    async def read(self, handle: int) -> bytes:
        self._begin()
        self._known(handle)
        self._statistics = replace(self._statistics, read_count=self._statistics.read_count + 1)
        return self.contents[handle]

    def handles(self) -> Sequence[int]:
        return sorted(self.contents)

    def statistics(self) -> ConnectionStatistics:
        return replace(
            self._statistics,
            object_count=len(self.contents),
            object_bytes=sum(len(data) for data in self.contents.values()),
        )

    def _known(self, handle: int) -> None:
        if handle not in self.contents:
            raise ObjectNotFoundError(handle)


class ObjectConnection(Objects):
    """A named part of the store's objects, with counts of its own."""

    def __init__(
        self, objects: PlacedObjects, overload: Overload, max_object_bytes: int, name: str, number: int
    ) -> None:
        self.name = name
        self.max_object_bytes = max_object_bytes
        self._objects = objects
        self._overload = overload
        self._number = number
        self._creates = self._reads = self._updates = self._deletes = 0
        self._mine: dict[int, int] = {handle: objects.size_of(handle) for handle in objects.handles(number)}

    async def check_overload(self) -> None:
        await self._overload.check()

    def _limit(self, data: bytes) -> None:
        if len(data) > self.max_object_bytes:
            raise ObjectTooLargeError(len(data), self.max_object_bytes)

    def _known(self, handle: int) -> None:
        if handle not in self._mine:
            raise ObjectNotFoundError(handle)

    async def create(self, data: bytes) -> int:
        self._limit(data)
        handle = await self._objects.create(self._number, data)
        self._mine[handle] = len(data)
        self._creates += 1
        return handle

    async def update(self, handle: int, data: bytes) -> None:
        self._limit(data)
        self._known(handle)
        await self._objects.update(handle, data)
        if handle in self._mine:
            self._mine[handle] = len(data)
        self._updates += 1

    async def delete(self, handle: int) -> None:
        self._known(handle)
        del self._mine[handle]
        await self._objects.delete(handle)
        self._deletes += 1

    async def read(self, handle: int) -> bytes:
        self._known(handle)
        self._reads += 1
        return await self._objects.read(handle)

    def handles(self) -> Sequence[int]:
        return sorted(self._mine)

    def statistics(self) -> ConnectionStatistics:
        return ConnectionStatistics(
            self._creates, self._reads, self._updates, self._deletes, len(self._mine), sum(self._mine.values())
        )


class Overload:
    """How full the daemon of a store is, and what the store refuses for that reason.

    The daemon's memory is as it was last observed, beside the space of the store (`placement`). What a service of the store
    takes only until its next snapshot (`reclaimable`) does not count: nothing but more writes would bring that snapshot, and
    they would be refused.
    """

    def __init__(
        self,
        thresholds: Thresholds,
        store: str,
        placement: InstanceCore,
        attachment: Attachment,
        published: PublishedOverload,
    ) -> None:
        self._thresholds = thresholds
        self._placement = placement
        self._attachment = attachment
        self._space_log = SpaceLog(thresholds, store)
        self._published = published
        self._told = False  # senders: that they are refused
        self._telling: asyncio.Task[None] | None = None
        self.daemon_used = self.daemon_limit = 0
        self.reclaimable: Callable[[], int] = lambda: 0

    def _usage(self) -> tuple[int, int]:
        """The bytes that the store uses, and those of its regions."""
        return max(0, self._placement.used_bytes - self.reclaimable()), self._placement.size_bytes

    @property
    def is_near(self) -> bool:
        """The daemon's use decides whether new messages are refused."""
        return self._told or exceeds_yellow(self._thresholds, *self._usage())

    async def observe(self) -> None:
        """Asks the daemon. Logs when a threshold was crossed."""
        index = self._attachment.index
        rows = await self._attachment.ask(Daemons, DAEMON_ROWS)
        row = rows[index] if index < len(rows) else None
        if row is None:
            raise ProtocolError(f"daemon {index} reports nothing of itself")
        self.daemon_used, self.daemon_limit = row.used_bytes, row.limit_bytes
        line = self._space_log.observe(row.used_bytes, row.limit_bytes)
        if line is not None:
            log.log(int(line.level), "%s", line.text)
        self._tell_senders()

    def _tell_senders(self) -> None:
        """Off the loop, when it has changed: the directory may hang, and a failure is repeated at the next look."""
        try:
            self._judge()
            reason = ""
        except ResourceAllocationException as error:
            reason = error.detail()
        if bool(reason) != self._told and (self._telling is None or self._telling.done()):
            self._telling = asyncio.get_running_loop().create_task(self._tell(reason))

    async def _tell(self, reason: str) -> None:
        try:
            await asyncio.to_thread(self._published.put, reason)
            self._told = bool(reason)
        except OSError as error:
            log.error("senders cannot be told whether the store accepts messages: %s", error)

    def _judge(self) -> None:
        check_new_message(self._thresholds, self.daemon_used, self.daemon_limit, *self._usage())

    def refuses_open(self) -> bool:
        return refuses_open(self._thresholds, self.daemon_used, self.daemon_limit)

    async def check(self) -> None:
        """ResourceAllocationException while this daemon and this store are both above yellow. The store knows its own use;
        only when that is above, it asks the daemon, so that the answer is of now."""
        if self.is_near:
            await self.observe()
            self._judge()
