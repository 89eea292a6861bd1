"""The regions of one store, open through an attachment.

Features: R7, R8, R13 (docs/FEATURES.md)
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from spark_jms.store.errors import ProtocolError, StoreCorruptError, StoreError
from spark_jms.store.regions.client.attachment import OPENED, REGION_ROWS, Attachment
from spark_jms.store.regions.client.write_batches import Answered
from spark_jms.store.regions.core.instance import CATALOG, Walk
from spark_jms.store.regions.core.protocol import MAX_BODY_BYTES, Close, Open, ReadRegion, Regions, WriteRegion
from spark_jms.store.regions.core.space import BLOCK_BYTES, HEADER_BYTES, MAX_REGION_BYTES, Block, Step, check_header

log = logging.getLogger("store.replicated")

READ_BYTES = 4 * 1024 * 1024


@dataclass
class RegionContents:
    """A region as it was found. `catalog` are the payloads of the objects that name connections."""

    blocks: Sequence[Block] = ()
    catalog: list[bytes] = field(default_factory=list)


class StoreRegions:
    def __init__(self, attachment: Attachment, store: str, region_bytes: int) -> None:
        self._attachment = attachment
        self._store = store
        self._region_bytes = region_bytes
        self._epochs: dict[str, int] = {}

    async def _rows(self) -> REGION_ROWS:
        rows: REGION_ROWS = await self._attachment.ask(lambda request: Regions(request, f"{self._store}."), REGION_ROWS)
        return rows

    async def are_here(self) -> bool:
        """A store whose regions are all on this daemon is neither new nor from elsewhere."""
        rows = await self._rows()
        return bool(rows) and all(self._attachment.index in (row.primary, row.secondary) for row in rows)

    async def unopened(self) -> list[str]:
        return [row.name for row in await self._rows() if row.name not in self._epochs]

    async def open(self, name: str) -> int:
        """The region's size in bytes."""
        epoch, size, _ = await self._attachment.ask(lambda request: Open(request, name, 0), OPENED)
        if not HEADER_BYTES + BLOCK_BYTES <= size <= MAX_REGION_BYTES:
            raise ProtocolError(f"region {name} of {size} bytes")
        self._epochs[name] = epoch
        return int(size)

    async def add(self) -> str:
        """Makes one more region, of the store's region size."""
        numbers = [int(name.rpartition(".")[2]) for name in self._epochs]
        name = f"{self._store}.{max(numbers, default=-1) + 1:03d}"
        epoch, size, _ = await self._attachment.ask(lambda request: Open(request, name, self._region_bytes), OPENED)
        if size != self._region_bytes:
            raise ProtocolError(f"region {name} of {size} bytes instead of {self._region_bytes}")
        self._epochs[name] = epoch
        log.info("store %s: region %s of %d bytes", self._store, name, size)
        return name

    async def read(self, region: str, offset: int, length: int) -> bytes:
        epoch = self._epochs[region]
        data: bytes = await self._attachment.ask(
            lambda request: ReadRegion(request, region, epoch, offset, length), bytes
        )
        if len(data) != length:
            raise ProtocolError(f"region {region}: {len(data)} bytes instead of {length}")
        return data

    async def prove(self) -> None:
        """The first region is open here, at a moment during the call, and no other client has opened the store: it would
        have all regions. FencedError."""
        await self.read(next(iter(self._epochs)), 0, 0)

    async def contents(self, name: str, size: int) -> RegionContents | None:
        """None when the client that made the region died before its first write. StoreVersionError, StoreCorruptError."""
        header = await self.read(name, 0, HEADER_BYTES)
        if header == bytes(HEADER_BYTES):
            return None
        check_header(name, header, size)
        found = RegionContents()
        walk = Walk(name, HEADER_BYTES + (size - HEADER_BYTES) // 16 * 16)
        known, length = 0, READ_BYTES
        while (start := walk.wanted()) is not None:
            data = await self.read(name, start, min(length, size - start))
            try:
                walk.feed(start, data)
            except StoreCorruptError:
                if length >= min(size, MAX_BODY_BYTES) or walk.wanted() != start:
                    raise
                length = min(2 * length, MAX_BODY_BYTES)  # the first object is larger than what was read
                continue
            for block in walk.blocks[known:]:
                if block.connection == CATALOG:
                    at = block.offset - start + BLOCK_BYTES
                    found.catalog.append(data[at : at + block.length])
            known, length = len(walk.blocks), READ_BYTES
        found.blocks = walk.blocks
        return found

    def write(self, region: str, steps: list[Step], answered: Answered) -> None:
        self._attachment.begin(
            lambda request: WriteRegion(request, region, self._epochs[region], steps),
            lambda _, error: answered(error),
        )

    async def close(self) -> None:
        with contextlib.suppress(StoreError):  # the end of the connection closes them too
            for name in list(self._epochs):
                await self._attachment.ask(lambda request, name=name: Close(request, name))  # type: ignore[misc]
