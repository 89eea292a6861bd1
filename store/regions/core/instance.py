"""A store's objects in its regions: which region gets an object, and the writes that put it there. Pure.

`plan_*` changes the maps at once and returns the writes. The caller sends them in the order of the calls, and discards the
instance when a write fails. An update that moves the object to another region takes two writes: the new block, and after
its acknowledgement `plan_forget`, which frees the old block, because the two regions may fail independently. A crash
between them leaves two blocks with one handle; `recovered` frees the older one.

Features: R7, R12, R14 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_jms.store.errors import ObjectNotFoundError, ObjectTooLargeError, RegionFullError, StoreCorruptError
from spark_jms.store.regions.core.space import (
    BLOCK_BYTES,
    FREE,
    HEADER_BYTES,
    Block,
    RegionSpace,
    Step,
    block_bytes,
    check_payload,
    decode_head,
    fits_in_place,
)

COMPACTION_MOVES = 1_000  # in one turn
COMPACTION_BYTES = 4 * 1024 * 1024
CATALOG = 0  # the connection whose objects name the connections
Planned = list[tuple[str, list[Step]]]


@dataclass(slots=True)
class Place:
    region: str
    connection: int


class InstanceCore:
    def __init__(self) -> None:
        self.regions: dict[str, RegionSpace] = {}
        self.places: dict[int, Place] = {}
        self._handle = 0
        self._order = 0
        self._stale: list[tuple[str, int]] = []

    # ---- regions

    def add_region(self, name: str, size: int) -> list[Step]:
        """A new, empty region."""
        space = self.regions[name] = RegionSpace(name, size)
        return space.format()

    def load_region(self, name: str, size: int, blocks: Sequence[Block]) -> None:
        space = self.regions[name] = RegionSpace(name, size)
        for block in blocks:
            space.load(block)
        # A block written over a free block erases what that block recorded about handles. But its order is higher than all
        # of them: no handle is higher than the order at the time it was given out.
        self._order = max(self._order, space.last_order)
        self._handle = max(self._handle, space.last_handle, self._order)
        for handle, block in space.used.items():
            other = self.places.get(handle)
            if other is not None:
                theirs = self.regions[other.region].used[handle]
                loser = name if theirs.order > block.order else other.region
                self._stale.append((loser, handle))
                if loser == name:
                    continue
            self.places[handle] = Place(name, block.connection)

    def recovered(self) -> Planned:
        """After the last region was loaded: frees the blocks that a later block of the same handle replaces."""
        planned: Planned = [
            (name, self.regions[name].free(handle, self._handle, self._order)) for name, handle in self._stale
        ]
        self._stale = []
        return planned

    @property
    def used_bytes(self) -> int:
        return sum(space.used_bytes for space in self.regions.values())

    @property
    def size_bytes(self) -> int:
        return sum(space.size for space in self.regions.values())

    # ---- objects

    def plan_create(self, connection: int, payload: bytes) -> tuple[int, Planned]:
        """Raises RegionFullError when another region is needed; then nothing has changed."""
        region = self._room(len(payload))
        self._handle += 1
        self._order += 1
        handle = self._handle
        steps = self.regions[region].put(connection, handle, self._order, payload)
        self.places[handle] = Place(region, connection)
        return handle, [(region, steps)]

    def plan_update(self, handle: int, payload: bytes) -> tuple[Planned, str | None]:
        """The writes, and the region that needs `plan_forget` once they are acknowledged, if any."""
        place = self._place(handle)
        old = self.regions[place.region]
        self._order += 1
        try:
            return [(place.region, old.put(place.connection, handle, self._order, payload))], None
        except RegionFullError:
            region = self._room(len(payload), without=place.region)
        space = self.regions[region]
        if handle in space.used:
            raise RegionFullError(f"object {handle} is still being moved out of region {region}")
        steps = space.put(place.connection, handle, self._order, payload)
        self.places[handle] = Place(region, place.connection)
        return [(region, steps)], old.name

    def plan_compaction(self, length: int, handle: int | None = None) -> Planned:
        """Some of the moves that join gaps for an object of that length, a bounded number; none when it needs no more. For
        an update, `handle` is the object. Without this, `plan_create` and `plan_update` make all moves at once."""
        if handle is not None:
            place = self._place(handle)
            space = self.regions[place.region]
            if fits_in_place(space.used[handle], block_bytes(length)):
                return []
            candidates = [space] if space.free_bytes >= block_bytes(length) else list(self.regions.values())
        else:
            candidates = list(self.regions.values())
        if any(space.largest_free >= block_bytes(length) for space in candidates):
            return []
        for space in candidates:
            if space.needs_compaction(length):
                return [(space.name, space.compact(block_bytes(length), COMPACTION_MOVES, COMPACTION_BYTES))]
        return []

    def plan_forget(self, region: str, handle: int) -> Planned:
        """Frees the old block of an object that moved to another region."""
        return [(region, self.regions[region].free(handle, self._handle, self._order))]

    def plan_delete(self, handle: int) -> Planned:
        place = self._place(handle)
        del self.places[handle]
        self._order += 1
        return [(place.region, self.regions[place.region].free(handle, self._handle, self._order))]

    def where(self, handle: int) -> tuple[str, Block]:
        place = self._place(handle)
        return place.region, self.regions[place.region].used[handle]

    def _place(self, handle: int) -> Place:
        place = self.places.get(handle)
        if place is None:
            raise ObjectNotFoundError(handle)
        return place

    def _room(self, length: int, without: str = "") -> str:
        largest = max((space.size for space in self.regions.values()), default=0)
        if self.regions and block_bytes(length) > largest - HEADER_BYTES - BLOCK_BYTES:
            raise ObjectTooLargeError(length, largest - HEADER_BYTES - 2 * BLOCK_BYTES)
        for name, space in self.regions.items():
            if name != without and space.largest_free >= block_bytes(length):
                return name
        for name, space in self.regions.items():
            if name != without and space.room_for(length):
                return name
        raise RegionFullError(f"{length} bytes wanted in {len(self.regions)} regions")


def walk(name: str, size: int) -> Walk:
    return Walk(name, RegionSpace(name, size).end())


class Walk:
    """Reads the blocks of a region from chunks: feed the bytes that `wanted` asks for until it is None."""

    def __init__(self, name: str, end: int) -> None:
        self._name = name
        self._end = end
        self._offset = HEADER_BYTES
        self.blocks: list[Block] = []

    def wanted(self) -> int | None:
        """The offset at which the next chunk should begin; None at the end."""
        return self._offset if self._offset < self._end else None

    def feed(self, start: int, data: bytes) -> None:
        while self._offset < self._end and self._offset + BLOCK_BYTES <= start + len(data):
            at = self._offset - start
            head = data[at : at + BLOCK_BYTES]
            block = decode_head(self._name, self._offset, head)
            if self._offset + block.size > self._end:
                raise StoreCorruptError(self._name, self._offset, "a block goes beyond the region")
            if block.connection == FREE:
                check_payload(self._name, block, head, b"")
            elif at + BLOCK_BYTES + block.length <= len(data):
                check_payload(self._name, block, head, data[at + BLOCK_BYTES : at + BLOCK_BYTES + block.length])
            elif start < self._offset:
                return  # the payload ends beyond this chunk: the next chunk begins with this block
            else:
                raise StoreCorruptError(self._name, self._offset, "the chunk is smaller than its first object")
            self.blocks.append(block)
            self._offset += block.size
