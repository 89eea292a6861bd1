"""Contents on their way in and out, a block at a time: never a whole file in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from spark_jms.store.webhdfs.errors import LeaseExpiredError
from spark_jms.store.webhdfs.inode import Inode
from spark_jms.store.webhdfs.record import Block, Content, Extent, Inline

if TYPE_CHECKING:
    from spark_jms.store.webhdfs.files import Files


class Writer:
    """One writer of one file, from `Files.create` or `Files.append`. Nothing is seen before `close` returns; after
    `abort`, or a refused `close`, nothing ever will be. `keep`: how many extents stay in front, None for a new file."""

    def __init__(self, files: Files, inode: Inode, keep: int | None) -> None:
        self.inode = inode
        self.keep = keep
        self.attributes = ("", 0o644, 1, 0)  # owner, permission, replication, block size: of a new file
        self._files = files
        self._extents: list[Extent] = []
        self._buffer = bytearray()
        self._grew = False
        self._done = False

    def begin_with(self, data: bytes) -> None:
        """The last extent's bytes, to be written again in front of what comes."""
        assert self.keep
        self.keep -= 1
        self._buffer += data

    async def write(self, data: bytes) -> None:
        if self._done:
            raise LeaseExpiredError("the writer was closed")
        self._grew = self._grew or bool(data)
        view, limit = memoryview(data), self._files.block_bytes
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
            if self._buffer and (self._grew or self.keep is None):
                if not self._extents and self._files.inline_fits(len(self._buffer)):
                    self._extents.append(Inline(bytes(self._buffer)))
                else:
                    await self._spill()
            content: Content = tuple(self._extents)
            await self._files.commit(self, content)
        except BaseException:
            await self.abort()
            raise
        self._done = True
        self._buffer = bytearray()

    async def abort(self) -> None:
        if not self._done:
            self._done = True
            self._buffer = bytearray()
            self._files.release(self)
            if not self.committed:
                self._files.discard([extent.handle for extent in self._extents if isinstance(extent, Block)])

    committed = False  # set by Files: from then on the blocks belong to the tree

    async def _spill(self) -> None:
        data, self._buffer = bytes(self._buffer), bytearray()
        block = await self._files.store(data)
        self._extents.append(block)
        if self._done:  # aborted while the block was written
            self._files.discard([block.handle])


class Reader:
    """A range of a file as it was when it was opened. Iterate over it, and close it."""

    def __init__(self, files: Files, content: Content, offset: int, end: int) -> None:
        self.length = max(0, end - offset)
        self._files = files
        self._content = content
        self._offset = offset
        self._end = end
        self._sent = 0
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        position = 0
        for extent in self._content:
            begin, position = position, position + extent.length
            if position <= self._offset:
                continue
            if begin >= self._end:
                break
            data = await self._files.load(extent)
            chunk = data[max(0, self._offset - begin) : self._end - begin]
            self._sent += len(chunk)
            yield chunk

    async def all(self) -> bytes:
        """Everything at once, for small files; closes."""
        try:
            return b"".join([chunk async for chunk in self])
        finally:
            self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._files.unpin(self._content, self._sent)
