"""What a store instance opens of its store (R7, R8)."""

from __future__ import annotations

import asyncio

from spark_jms.store.regions.client.space import InstanceCore
from spark_jms.store.regions.client.store_regions import PlacedObjects, RegionContents, StoreRegions, WriteBatches

SIZE = 65_536


class ListedLater(StoreRegions):
    """The second region appears when the first one is open: the owner that is being replaced has just made it."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    async def unopened(self) -> list[str]:
        there = ["s.000", "s.001"][: len(self.opened) + 1]
        return [name for name in there if name not in self.opened]

    async def open(self, name: str) -> int:
        self.opened.append(name)
        return SIZE

    async def contents(self, name: str, size: int) -> RegionContents | None:
        return None


def test_store_opens_a_region_that_its_last_owner_has_just_made() -> None:
    """R8: it lists the regions until no new one appears."""

    async def run() -> None:
        regions, placement = ListedLater(), InstanceCore()
        writes = WriteBatches(lambda region, steps, answered: answered(None), placement.plan_forget, lambda error: None)
        await PlacedObjects(placement, regions, writes, SIZE).load()
        assert regions.opened == ["s.000", "s.001"]
        assert sorted(placement.regions) == regions.opened

    asyncio.run(run())
