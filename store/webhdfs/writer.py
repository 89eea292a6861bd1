"""A content on its way into a file, a block at a time: never a whole file in memory."""

from __future__ import annotations

from spark_jms.store.webhdfs.blocks import BlockStore
from spark_jms.store.webhdfs.edit_log import EditLog
from spark_jms.store.webhdfs.edits import Extent, InlineExtent, block_handles
from spark_jms.store.webhdfs.errors import LeaseExpiredError
from spark_jms.store.webhdfs.leases import Lease, Leases


class ContentWriter:
    """One writer of one file, from `Files.create` or `Files.append`. Clients see nothing of it before `close` returns, and
    nothing ever after `abort` or a refused `close`."""

    def __init__(self, lease: Lease, leases: Leases, blocks: BlockStore, edits: EditLog) -> None:
        self._lease = lease
        self._leases = leases
        self._blocks = blocks
        self._edits = edits
        self._extents: list[Extent] = []
        self._buffer = bytearray()
        self._grew = False
        self._done = False

    async def merge_last(self, merge_bytes: int) -> None:
        """For an append: if the file's last extent is short, it is written again together with what follows."""
        content, lease = self._lease.inode.content, self._lease
        if content and content[-1].length < min(merge_bytes, self._blocks.block_bytes):
            self._buffer += await self._blocks.load(content[-1])
            lease.keep -= 1

    async def write(self, data: bytes) -> None:
        if self._done:
            raise LeaseExpiredError("the writer was closed")
        self._grew = self._grew or bool(data)
        view, limit = memoryview(data), self._blocks.block_bytes
        while view:
            room = limit - len(self._buffer)
            self._buffer += view[:room]
            view = view[room:]
            if len(self._buffer) >= limit:
                await self._spill()

    async def close(self) -> None:
        if self._done:
            raise LeaseExpiredError("the writer was closed")
        try:
            if self._buffer and (self._grew or self._lease.new is not None):
                if not self._extents and self._edits.fits_inline(len(self._buffer)):
                    self._extents.append(InlineExtent(bytes(self._buffer)))
                else:
                    await self._spill()
            await self._leases.publish(self._lease, tuple(self._extents))
        except BaseException:
            await self.abort()
            raise
        self._done = True
        self._buffer = bytearray()

    async def abort(self) -> None:
        """Does nothing after `close`."""
        if not self._done:
            self._done = True
            self._buffer = bytearray()
            self._leases.end(self._lease)
            if not self._lease.published:
                self._blocks.discard(block_handles(tuple(self._extents)))

    async def _spill(self) -> None:
        data, self._buffer = bytes(self._buffer), bytearray()
        block = await self._blocks.store(data)
        self._extents.append(block)
        if self._done:  # aborted while the block was written
            self._blocks.discard([block.handle])
