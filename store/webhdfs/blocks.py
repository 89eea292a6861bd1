"""The blocks that files are made of: written, read, and deleted once no file and no reader needs them."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Sequence

from spark_jms.store.regions.client.object_journal import MAGIC_BYTES, WINDOW, ObjectJournal
from spark_jms.store.webhdfs.edits import BlockExtent, Content, Extent, InlineExtent, block_handles
from spark_jms.store.webhdfs.errors import RemoteIOError
from spark_jms.store.webhdfs.guard import StoreGuard


class BlockStore:
    """A block is a data object of the journal. A reader pins the blocks of its content; blocks that are discarded
    meanwhile are deleted when the last reader closes. Deleting happens in the background."""

    def __init__(self, journal: ObjectJournal, guard: StoreGuard, block_bytes: int) -> None:
        self.block_bytes = min(block_bytes, journal.objects.max_object_bytes - MAGIC_BYTES)
        self.read_bytes = self.written_bytes = self.open_readers = 0
        self._journal = journal
        self._guard = guard
        self._pins: Counter[int] = Counter()
        self._doomed: set[int] = set()  # discarded, but pinned
        self._garbage: deque[int] = deque()
        self._deleting: asyncio.Task[None] | None = None

    async def load(self, extent: Extent) -> bytes:
        if isinstance(extent, InlineExtent):
            return extent.data
        data = bytes((await self._guard.call(self._journal.read_data(extent.handle)))[: extent.length])
        if len(data) != extent.length:
            raise RemoteIOError(f"block {extent.handle} is shorter than the file says")
        return data

    async def store(self, data: bytes) -> BlockExtent:
        await self._guard.check_overload()
        block = BlockExtent(await self._guard.call(self._journal.create_data(data)), len(data))
        self.written_bytes += len(data)
        return block

    def pin(self, content: Content) -> None:
        self.open_readers += 1
        self._pins.update(block_handles(content))

    def unpin(self, content: Content, read_bytes: int) -> None:
        self.open_readers -= 1
        self.read_bytes += read_bytes
        free = []
        for handle in block_handles(content):
            self._pins[handle] -= 1
            if not self._pins[handle]:
                del self._pins[handle]
                if handle in self._doomed:
                    self._doomed.discard(handle)
                    free.append(handle)
        self.discard(free)

    def discard(self, handles: Sequence[int]) -> None:
        """Delete objects that nothing durable names any more, once no reader needs them."""
        for handle in handles:
            if self._pins[handle]:
                self._doomed.add(handle)
            else:
                self._garbage.append(handle)
        if self._garbage and self._guard.failure is None and self._deleting is None:
            self._deleting = asyncio.get_running_loop().create_task(self._delete(), name="webhdfs delete")

    async def close(self) -> None:
        """Wait until all garbage is deleted."""
        while self._deleting is not None:
            await asyncio.wait([self._deleting])

    async def _delete(self) -> None:
        try:
            while self._garbage:
                window = [self._garbage.popleft() for _ in range(min(WINDOW, len(self._garbage)))]
                await self._journal.delete(window)
        except Exception as error:  # noqa: BLE001  whatever it is, it ends the namespace
            self._guard.fail(error)
        except asyncio.CancelledError as error:
            self._guard.fail(error)
            raise
        finally:
            self._deleting = None
