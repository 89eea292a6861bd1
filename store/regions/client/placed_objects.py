"""The objects of a store: each in a block of one of its regions.

Features: R7, R12, R14 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from spark_jms.store.errors import RegionFullError
from spark_jms.store.regions.client.store_regions import StoreRegions
from spark_jms.store.regions.client.write_batches import WriteBatches
from spark_jms.store.regions.core.instance import CATALOG, InstanceCore
from spark_jms.store.regions.core.space import BLOCK_BYTES, check_payload


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
