"""Regions as bytes in memory, for tests of the writes planned for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spark_jms.store.regions.client.space import (
    ALIGNMENT,
    BLOCK_BYTES,
    FREE,
    HEADER_BYTES,
    Block,
    Planned,
    RegionSpace,
    Step,
    check_header,
    check_payload,
    walk,
)


def apply(memory: bytearray, steps: Iterable[Step]) -> None:
    for offset, what in steps:
        data = what if isinstance(what, bytes) else bytes(memory[what[0] : what[0] + what[1]])
        assert 0 <= offset <= offset + len(data) <= len(memory), "a write beyond the region"
        memory[offset : offset + len(data)] = data


def apply_all(memories: dict[str, bytearray], planned: Planned) -> None:
    for region, steps in planned:
        apply(memories[region], steps)


def blocks_of(name: str, memory: bytearray, chunk_bytes: int = 0) -> Sequence[Block]:
    """The blocks as a client reads them, in chunks that hold the largest object."""
    check_header(name, bytes(memory[:HEADER_BYTES]), len(memory))
    walker = walk(name, len(memory))
    while (start := walker.wanted()) is not None:
        walker.feed(start, bytes(memory[start : start + (chunk_bytes or len(memory))]))
    return walker.blocks


def payload_of(memory: bytearray, block: Block) -> bytes:
    at = block.offset + BLOCK_BYTES
    return check_payload("test", block, bytes(memory[block.offset : at]), bytes(memory[at : at + block.length]))


def check_row(space: RegionSpace, memory: bytearray) -> None:
    """The bytes agree with the map: blocks without gaps from the header to the end, no two free ones side by side."""
    blocks = blocks_of(space.name, memory)
    end = HEADER_BYTES
    for before, block in zip((None, *blocks), blocks, strict=False):
        assert block.offset == end, "a gap or an overlap"
        assert block.size % ALIGNMENT == 0
        assert not (before and before.connection == FREE == block.connection), "two free blocks side by side"
        end += block.size
    assert end == space.end()
    assert {block.handle: block for block in blocks if block.connection != FREE} == space.used
    free = [block.size for block in blocks if block.connection == FREE]
    assert sum(free) == space.free_bytes == space.size - HEADER_BYTES - space.used_bytes
    assert max(free, default=0) == space.largest_free
