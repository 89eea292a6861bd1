"""The map of a region and its bytes agree after any operations in any order (R7, R12)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.store.errors import RegionFullError, StoreCorruptError, StoreVersionError
from spark_jms.store.regions.client.space import (
    BLOCK_BYTES,
    HEADER_BYTES,
    MAX_REGION_BYTES,
    RegionSpace,
    block_bytes,
    check_header,
    region_header,
)
from tests.harness.stores.regions_instances import apply, blocks_of, check_row, payload_of

LENGTHS = st.one_of(st.integers(0, 90), st.integers(0, 1200))
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["create", "create", "update", "delete"]), st.integers(0, 1000), LENGTHS), max_size=70
)


@given(st.integers(HEADER_BYTES + BLOCK_BYTES, 4096), OPERATIONS)
def test_bytes_and_map_agree(size: int, operations: list[tuple[str, int, int]]) -> None:
    """R7: after every operation the row has no gap, and reading it back gives the same map and the same objects."""
    space, memory = RegionSpace("r", size), bytearray(size)
    apply(memory, space.format())
    objects: dict[int, bytes] = {}
    handle = order = 0
    for what, which, length in operations:
        order += 1
        payload = bytes([order % 251]) * length
        known = list(objects)
        if what == "create":
            handle += 1
            target = handle
        elif known:
            target = known[which % len(known)]
        else:
            continue
        if what == "delete":
            del objects[target]
            apply(memory, space.free(target, handle, order))
        else:
            before = bytes(memory)
            try:
                steps = space.put(1, target, order, payload)
            except RegionFullError:
                assert space.free_bytes < block_bytes(length), "there was room"
                assert bytes(memory) == before
            else:
                apply(memory, steps)
                objects[target] = payload
        check_row(space, memory)
        assert {h: payload_of(memory, b) for h, b in space.used.items()} == objects
        recovered = RegionSpace("r", size)
        for block in blocks_of("r", memory, chunk_bytes=2048):
            recovered.load(block)
        assert (recovered.used, recovered.free_bytes) == (space.used, space.free_bytes)
        # No handle was above the order of its time, and the latest order cannot get lost with a block.
        assert recovered.last_order >= max((b.order for b in space.used.values()), default=0)


def test_space_is_recycled() -> None:
    """R7, R12: a region that is never more than half full takes any number of objects."""
    space, memory = RegionSpace("r", 65_536), bytearray(65_536)
    apply(memory, space.format())
    for number in range(1, 3000):
        apply(memory, space.put(1, number, number, bytes(100 + number * 37 % 700)))
        if number > 40:
            apply(memory, space.free(number - 40, number, number))
    check_row(space, memory)
    assert len(space.used) == 40


def test_compaction_joins_gaps() -> None:
    """R7: when an object needs the room; no object changes."""
    space, memory = RegionSpace("r", 8192), bytearray(8192)
    apply(memory, space.format())
    handle = 0
    while space.free_bytes >= 2 * block_bytes(200):
        handle += 1
        apply(memory, space.put(1, handle, handle, bytes([handle]) * 200))
    for gone in range(1, handle, 2):
        apply(memory, space.free(gone, handle, handle + gone))
    assert space.largest_free < block_bytes(2000) <= space.free_bytes
    apply(memory, space.put(1, handle + 1, 3 * handle, b"x" * 2000))
    check_row(space, memory)
    for kept, block in space.used.items():
        assert payload_of(memory, block) == (b"x" * 2000 if kept > handle else bytes([kept]) * 200)


@pytest.mark.parametrize("most_moves", [2**63, 7])
def test_compaction_moves_each_block_once(most_moves: int) -> None:
    """R7: in parts of a bounded number of moves, and the region is whole after each part."""
    space, memory = RegionSpace("r", 262_144), bytearray(262_144)
    apply(memory, space.format())
    handle = 0
    while space.free_bytes >= 2 * block_bytes(50):
        handle += 1
        apply(memory, space.put(1, handle, handle, bytes([handle % 256]) * 50))
    for gone in range(1, handle, 2):
        apply(memory, space.free(gone, handle, handle + gone))
    need, moves = space.free_bytes, 0
    while space.largest_free < need:
        steps = space.compact(need, most_moves)
        assert 0 < len(steps) <= 2 * most_moves
        moves += len(steps) // 2
        apply(memory, steps)
        check_row(space, memory)
    assert moves <= len(space.used)
    for kept, block in space.used.items():
        assert payload_of(memory, block) == bytes([kept % 256]) * 50


def test_compaction_takes_time_in_proportion() -> None:
    """R7: twice as many blocks cost twice as many steps in the map, not four times."""

    class Counted(dict[int, int]):
        looks = 0

        def __iter__(self) -> Iterator[int]:
            Counted.looks += len(self)
            return super().__iter__()

        def get(self, key: int, default: Any = None) -> Any:
            Counted.looks += 1
            return super().get(key, default)

    def looks(size: int) -> int:
        space = RegionSpace("r", size)
        space.format()
        handle = 0
        while space.free_bytes >= 2 * block_bytes(50):
            handle += 1
            space.put(1, handle, handle, bytes(50))
        for gone in range(1, handle, 2):
            space.free(gone, handle, handle + gone)
        space._free, Counted.looks = Counted(space._free), 0
        space.compact(space.free_bytes)
        return Counted.looks

    assert 0 < looks(2 * 65_536) <= 2.2 * looks(65_536)


@pytest.mark.parametrize("at", [0, 9, 15, 20])
def test_damaged_header_is_refused(at: int) -> None:
    """R16: the checksum is checked before the version and the size are believed."""
    header = bytearray(region_header(4096))
    header[at] ^= 1
    with pytest.raises(StoreCorruptError):
        check_header("r", bytes(header), 4096)


def test_header_of_another_version_or_size_is_refused() -> None:
    """R16: by StoreVersionError or by the two sizes."""
    with pytest.raises(StoreCorruptError, match="the directory 8192"):
        check_header("r", region_header(4096), 8192)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("spark_jms.store.regions.client.space.FORMAT_VERSION", 2)
        later = region_header(4096)
    with pytest.raises(StoreVersionError):
        check_header("r", later, 4096)


@given(st.data())
def test_flipped_bit_never_becomes_an_object(data: st.DataObject) -> None:
    """R7: reading an object back gives what was written, or a StoreCorruptError. Free blocks are checked too."""
    space, memory = RegionSpace("r", 2048), bytearray(2048)
    apply(memory, space.format())
    for handle in range(1, 6):
        apply(memory, space.put(1, handle, handle, bytes([handle]) * 60 * handle))
    apply(memory, space.free(2, 5, 6))
    before = {b.handle: payload_of(memory, b) for b in blocks_of("r", memory) if b.connection != 0xFFFF}
    bit = data.draw(st.integers(HEADER_BYTES * 8, 2048 * 8 - 1))
    memory[bit // 8] ^= 1 << bit % 8
    try:
        after = {b.handle: payload_of(memory, b) for b in blocks_of("r", memory) if b.connection != 0xFFFF}
    except StoreCorruptError:
        return
    assert after == before  # the bit was in unused bytes


@pytest.mark.parametrize("size", [0, HEADER_BYTES + BLOCK_BYTES - 1, MAX_REGION_BYTES + 1])
def test_region_size_is_limited(size: int) -> None:
    """R7: room for one block at least, offsets of 32 bits at most."""
    with pytest.raises(ValueError, match="a region has"):
        RegionSpace("r", size)
