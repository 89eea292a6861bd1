"""One named connection to the objects of a store.

Features: R14 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_jms.store.errors import ObjectNotFoundError, ObjectTooLargeError
from spark_jms.store.regions.client.objects import ConnectionStatistics, Objects
from spark_jms.store.regions.client.overload import Overload
from spark_jms.store.regions.client.placed_objects import PlacedObjects


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
