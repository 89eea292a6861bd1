"""Objects with handles: the port that a store instance offers to services, and its fake.

A service (record sets, the WebHDFS namespace) keeps all its durable state in objects of one connection. `StoreInstance`
(instance.py) implements the port on regions in two memories; `MemoryObjects` is the fake that ships.

Features: R13, R14 (docs/FEATURES.md)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from spark_jms.store.errors import ObjectNotFoundError, ObjectTooLargeError, StoreError


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
