"""A store's objects in its regions: the blocks of one region, and which region gets an object. Pure.

A region is a header and a row of blocks without gaps:

    header   magic, format version, region size, CRC                                            64 bytes
    block    magic, connection (0xFFFF = free), block size, length, handle, order, CRC          32 bytes, then payload

The store that has opened the region decides where objects go, and sends byte writes; daemons only keep bytes. All writes
of one plan travel in one frame, and a copy has a frame completely or not at all, so a plan is atomic. `order` rises with
every write of a store: of two blocks with one handle (an update that moved to another region), the one with the higher
order is valid. A free block records the highest handle and order given out when it was written, so that none is reused.

`plan_*` of InstanceCore changes the maps at once and returns the writes. The caller sends them in the order of the calls, and
discards the instance when a write fails. An update that moves the object to another region takes two writes: the new block, and
after its acknowledgement `plan_forget`, which frees the old block, because the two regions may fail independently. A crash
between them leaves two blocks with one handle; `recovered` frees the older one.

Features: R7, R12, R14, R16 (docs/FEATURES.md)
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from spark_jms.store.errors import (
    ObjectNotFoundError,
    ObjectTooLargeError,
    RegionFullError,
    StoreCorruptError,
    StoreVersionError,
)

FORMAT_VERSION = 1
HEADER_BYTES = 64
BLOCK_BYTES = 32
ALIGNMENT = 16
MIN_SPLIT_BYTES = 64
MAX_REGION_BYTES = 4 * 1024**3 - 16
FREE = 0xFFFF
COMPACTION_MOVES = 1_000  # in one turn
COMPACTION_BYTES = 4 * 1024 * 1024
CATALOG = 0  # the connection whose objects name the connections

_MAGIC = b"JMSQRGN\0"
_BLOCK_MAGIC = 0xB10C
_HEADER = struct.Struct("<8sIQ")
_BLOCK = struct.Struct("<HHIIQQ")  # then the CRC of these and the payload
_CRC = struct.Struct("<I")

Step = tuple[int, "bytes | tuple[int, int]"]  # (offset, bytes), or (to, (from, length)): the daemon copies inside
Planned = list[tuple[str, list[Step]]]


# -- the blocks of one region ------------------------------------------------------------------------------------------


class Block(msgspec.Struct, frozen=True):
    offset: int
    size: int  # of the whole block
    connection: int
    handle: int
    order: int
    length: int  # of the payload


def region_header(size: int) -> bytes:
    packed = _HEADER.pack(_MAGIC, FORMAT_VERSION, size)
    return packed + _CRC.pack(zlib.crc32(packed)) + bytes(HEADER_BYTES - len(packed) - _CRC.size)


def check_header(name: str, header: bytes, size: int) -> None:
    """Raises StoreVersionError for another format version, StoreCorruptError for anything else that is wrong."""
    packed = header[: _HEADER.size]
    magic, version, told = _HEADER.unpack(packed)
    if magic != _MAGIC:
        raise StoreCorruptError(name, 0, "not a region")
    if _CRC.unpack_from(header, _HEADER.size)[0] != zlib.crc32(packed):
        raise StoreCorruptError(name, 0, "the region header does not match its checksum")
    if version != FORMAT_VERSION:
        raise StoreVersionError(name, version, FORMAT_VERSION)
    if told != size:
        raise StoreCorruptError(name, 0, f"the header has {told} bytes, the directory {size}")


def encode_block(size: int, connection: int, handle: int, order: int, payload: bytes) -> bytes:
    head = _BLOCK.pack(_BLOCK_MAGIC, connection, size, len(payload), handle, order)
    return head + _CRC.pack(zlib.crc32(payload, zlib.crc32(head))) + payload


def decode_head(name: str, offset: int, head: bytes) -> Block:
    magic, connection, size, length, handle, order = _BLOCK.unpack_from(head)
    if magic != _BLOCK_MAGIC or size < BLOCK_BYTES or length > size - BLOCK_BYTES:
        raise StoreCorruptError(name, offset, "no block begins here")
    return Block(offset, size, connection, handle, order, length)


def check_payload(name: str, block: Block, head: bytes, payload: bytes) -> bytes:
    """The payload. Raises StoreCorruptError when it is not what was written."""
    if _CRC.unpack_from(head, _BLOCK.size)[0] != zlib.crc32(payload, zlib.crc32(head[: _BLOCK.size])):
        raise StoreCorruptError(name, block.offset, f"object {block.handle} does not match its checksum")
    return payload


def block_bytes(length: int) -> int:
    """The size of the block of an object of `length` bytes."""
    return -(-(BLOCK_BYTES + length) // ALIGNMENT) * ALIGNMENT


def fits_in_place(block: Block, need: int) -> bool:
    """An update that needs so many bytes stays in its block, and does not waste more than half of a large one."""
    return need <= block.size <= need + max(need, 1024)


class RegionSpace:
    """The map of one region. Every method that changes it returns the writes that bring the region in line with it."""

    def __init__(self, name: str, size: int) -> None:
        if not HEADER_BYTES + BLOCK_BYTES <= size <= MAX_REGION_BYTES:
            raise ValueError(f"a region has {HEADER_BYTES + BLOCK_BYTES} to {MAX_REGION_BYTES} bytes, not {size}")
        self.name = name
        self.size = size
        self.used: dict[int, Block] = {}  # by handle
        self._at: dict[int, Block] = {}  # by offset, used ones
        self._free: dict[int, int] = {}  # offset -> size
        self._free_ends: dict[int, int] = {}  # end -> offset
        self._by_size: list[tuple[int, int]] = []  # (size, offset), sorted
        self.free_bytes = 0
        self.last_handle = 0
        self.last_order = 0

    @property
    def used_bytes(self) -> int:
        return self.size - HEADER_BYTES - self.free_bytes

    @property
    def largest_free(self) -> int:
        return self._by_size[-1][0] if self._by_size else 0

    def needs_compaction(self, length: int) -> bool:
        """It has the room, but in pieces."""
        return self.largest_free < block_bytes(length) and self.room_for(length)

    def room_for(self, length: int) -> bool:
        return self.free_bytes >= block_bytes(length) + MIN_SPLIT_BYTES

    # ---- a new region, or an existing one

    def format(self) -> list[Step]:
        usable = (self.size - HEADER_BYTES) // ALIGNMENT * ALIGNMENT
        self._add_free(HEADER_BYTES, usable)
        return [(0, region_header(self.size)), (HEADER_BYTES, self._free_block(usable))]

    def load(self, block: Block) -> None:
        """One block, in the order of the region; `Walk` reads them."""
        self.last_handle = max(self.last_handle, block.handle)
        self.last_order = max(self.last_order, block.order)
        if block.connection == FREE:
            self._add_free(block.offset, block.size)
        else:
            self._add_used(block)

    def end(self) -> int:
        return HEADER_BYTES + (self.size - HEADER_BYTES) // ALIGNMENT * ALIGNMENT

    # ---- change

    def put(self, connection: int, handle: int, order: int, payload: bytes) -> list[Step]:
        """Creates or updates an object. Raises RegionFullError when it does not fit; then nothing has changed."""
        self.last_handle, self.last_order = max(self.last_handle, handle), max(self.last_order, order)
        need = block_bytes(len(payload))
        old = self.used.get(handle)
        if old is not None and fits_in_place(old, need):
            return [self._place(old.offset, old.size, connection, handle, order, payload)]
        writes: list[Step] = []
        if self.largest_free < need:
            if self.free_bytes < need:
                raise RegionFullError(f"region {self.name}: {need} bytes wanted, {self.free_bytes} free")
            writes += self.compact(need)
            old = self.used.get(handle)  # compaction may have moved it
        offset, size = self._take(need)
        writes.append(self._place(offset, size, connection, handle, order, payload, need))
        if old is not None:
            writes.append(self._give_back(old))
        return writes

    def free(self, handle: int, last_handle: int, last_order: int) -> list[Step]:
        self.last_handle, self.last_order = max(self.last_handle, last_handle), max(self.last_order, last_order)
        return [self._give_back(self.used.pop(handle))]

    def _place(
        self, offset: int, size: int, connection: int, handle: int, order: int, payload: bytes, need: int = 0
    ) -> Step:
        rest = size - need if need else 0
        if rest >= MIN_SPLIT_BYTES:
            size = need
        else:
            rest = 0
        data = encode_block(size, connection, handle, order, payload)
        self._add_used(Block(offset, size, connection, handle, order, len(payload)))
        if rest:
            self._add_free(offset + size, rest)
            data += bytes(size - len(data)) + self._free_block(rest)
        return offset, data

    def _give_back(self, block: Block) -> Step:
        self._at.pop(block.offset, None)
        offset, size = block.offset, block.size
        before = self._free_ends.get(offset)
        if before is not None:
            size += self._drop_free(before)
            offset = before
        after = self._free.get(offset + size)
        if after is not None:
            self._drop_free(offset + size)
            size += after
        self._add_free(offset, size)
        return offset, self._free_block(size)

    def compact(self, need: int, most_moves: int = 2**63, most_bytes: int = 2**63) -> list[Step]:
        """Moves blocks down into the lowest gap until it is large enough, or so many blocks or bytes were moved. One pass
        costs as many steps as there are blocks: the gap only moves up, and takes in each free block that it meets."""
        steps: list[Step] = []
        gap = min(self._free)
        gap_size = self._free[gap]
        swallowed = {(gap_size, gap)}
        before = self.free_bytes
        while self.largest_free < need and gap_size < need and most_moves > 0 and most_bytes > 0:
            block = self._at.pop(gap + gap_size)
            self._add_used(Block(gap, block.size, block.connection, block.handle, block.order, block.length))
            steps.append((gap, (block.offset, block.size)))
            gap += block.size
            after = self._free.get(gap + gap_size)
            if after is not None:
                swallowed.add((after, gap + gap_size))
                gap_size += after
            steps.append((gap, self._free_block(gap_size)))
            most_moves, most_bytes = most_moves - 1, most_bytes - block.size
        for size, offset in swallowed:
            del self._free[offset], self._free_ends[offset + size]
        self._by_size = [entry for entry in self._by_size if entry not in swallowed]
        self._add_free(gap, gap_size)
        self.free_bytes = before
        return steps

    # ---- the map

    def _take(self, need: int) -> tuple[int, int]:
        size, offset = self._by_size[bisect_left(self._by_size, (need, 0))]
        self._drop_free(offset)
        return offset, size

    def _add_used(self, block: Block) -> None:
        self.used[block.handle] = block
        self._at[block.offset] = block

    def _add_free(self, offset: int, size: int) -> None:
        self._free[offset] = size
        self._free_ends[offset + size] = offset
        insort(self._by_size, (size, offset))
        self.free_bytes += size

    def _drop_free(self, offset: int) -> int:
        size = self._free.pop(offset)
        del self._free_ends[offset + size]
        del self._by_size[bisect_left(self._by_size, (size, offset))]
        self.free_bytes -= size
        return size

    def _free_block(self, size: int) -> bytes:
        return encode_block(size, FREE, self.last_handle, self.last_order, b"")


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


def walk(name: str, size: int) -> Walk:
    return Walk(name, RegionSpace(name, size).end())


# -- which region gets an object ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Place:
    region: str
    connection: int


class InstanceCore:
    """Plans which region gets an object, and the writes that put it there."""

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
