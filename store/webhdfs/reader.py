"""A content on its way out of a file, an extent at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator

from spark_jms.store.webhdfs.blocks import BlockStore
from spark_jms.store.webhdfs.edits import Content


class ContentReader:
    """The bytes from `offset` to `end` of a file as it was when the reader was made, even if the file is deleted
    meanwhile. Iterate over it, and close it."""

    def __init__(self, blocks: BlockStore, content: Content, offset: int, end: int) -> None:
        self.length = max(0, end - offset)
        self._blocks = blocks
        self._content = content
        self._offset = offset
        self._end = end
        self._sent = 0
        self._closed = False
        blocks.pin(content)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        position = 0
        for extent in self._content:
            begin, position = position, position + extent.length
            if position <= self._offset:
                continue
            if begin >= self._end:
                break
            data = await self._blocks.load(extent)
            chunk = data[max(0, self._offset - begin) : self._end - begin]
            self._sent += len(chunk)
            yield chunk

    async def all(self) -> bytes:
        """Everything at once, for small files; closes the reader."""
        try:
            return b"".join([chunk async for chunk in self])
        finally:
            self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._blocks.unpin(self._content, self._sent)
