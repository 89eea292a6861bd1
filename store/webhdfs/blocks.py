"""What files are made of, and the store below it: blocks, contents on their way out, the store's refusals, proof to own it.

Blocks are written, read, and deleted once no file and no reader needs them. A StoreGuard turns the store's refusals into those
of the door, and its failure ends the namespace. A ReadProof is proof that this process still has the namespace open, for what it
answers from memory. Its theory is that of an engine's reads (store/processes.py): the answer is made first, then a proof is
required that is at most LEASE_MS old; and a process that has just opened the namespace keeps it closed for START_WAIT_MS. So
when a newer write exists, each proof of a door that was stopped has expired.

Features: R8, R13, R19 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TypeVar

from spark_jms.store.errors import (
    ObjectNotFoundError,
    RegionUnavailableError,
    ResourceAllocationException,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreWriteError,
)
from spark_jms.store.processes import ReadLease
from spark_jms.store.regions.client.object_journal import MAGIC_BYTES, WINDOW, ObjectJournal
from spark_jms.store.regions.client.objects import ConnectionStatistics
from spark_jms.store.webhdfs.errors import NoSpaceError, RemoteIOError, RetriableError
from spark_jms.store.webhdfs.inode import BlockExtent, Content, Extent, InlineExtent, block_handles

Result = TypeVar("Result")

# RegionUnavailableError when it cannot tell now; any other StoreError: not open any more.
Prove = Callable[[], Awaitable[None]]

DEFAULT_FILE_BLOCK_BYTES = 128 * 1024 * 1024  # what clients are told; the block objects of the store are smaller


@dataclass(frozen=True)
class FilesOptions:
    """What a namespace is opened with. `capacity_bytes` is the capacity that GETSTATUS reports; 0 means unknown.

    Contents of at most `inline_bytes` are kept in the journal while all of them together stay within
    `inline_budget_bytes`. A snapshot is due after `snapshot_batches`, `snapshot_journal_bytes` or
    `snapshot_block_bytes`: that is how much a recovery reads."""

    owner: str = "hdfs"
    group: str = "supergroup"
    capacity_bytes: int = 0
    block_bytes: int = 1024 * 1024
    inline_bytes: int = 1024
    inline_budget_bytes: int = 16 * 1024 * 1024
    merge_bytes: int = 64 * 1024  # an append rewrites a last extent up to this size, so extents stay few
    snapshot_batches: int = 1024
    snapshot_journal_bytes: int = 8 * 1024 * 1024
    snapshot_block_bytes: int = 256 * 1024 * 1024
    max_writers: int = 256
    refused_retries: int = 100  # of a journal write that the store refuses for now (one copy left, full)
    refused_retry_ms: int = 100


@dataclass(frozen=True)
class FilesStatistics:
    """Counts since the namespace was opened; `journal_batches`, `journal_bytes` and `inline_bytes` as of now."""

    mutation_count: int
    journal_write_count: int  # mutation_count / journal_write_count is how well mutations share writes
    journal_batches: int
    journal_bytes: int
    snapshot_count: int
    inline_bytes: int
    read_bytes: int
    written_bytes: int
    open_writers: int
    open_readers: int
    garbage_swept: int
    connection: ConnectionStatistics


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


class ContentReader:
    """A content on its way out, an extent at a time: the bytes from `offset` to `end` of a file as it was when the reader was
    made, even if the file is deleted meanwhile. Iterate over it, and close it."""

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


class StoreGuard:
    """The store as the namespace sees it. `failure` is the error that ended the namespace. Once it is set, `check` refuses
    everything."""

    def __init__(self, journal: ObjectJournal) -> None:
        self.failure: BaseException | None = None
        self._journal = journal

    def check(self) -> None:
        if self.failure is not None:
            raise RetriableError(f"The namespace lost its store: {self.failure}")

    def fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error

    async def call(self, operation: Awaitable[Result]) -> Result:
        """Await an operation of the store; its errors become RemoteErrors."""
        if self.failure is not None and isinstance(operation, Coroutine):
            operation.close()
        self.check()
        try:
            return await operation
        except ResourceAllocationException:
            raise
        except StoreFullError as error:
            raise NoSpaceError(f"The store is full: {error.detail()}") from error
        except StoreWriteError as error:
            raise RetriableError(str(error)) from error
        except (StoreCorruptError, ObjectNotFoundError) as error:
            raise RemoteIOError(f"A block cannot be read: {error}") from error
        except StoreError as error:
            self.fail(error)
            raise RetriableError(f"The namespace lost its store: {error}") from error

    async def check_overload(self) -> None:
        """Refuse what makes the namespace grow while the store is overloaded."""
        try:
            await self.call(self._journal.objects.check_overload())
        except ResourceAllocationException as error:
            raise NoSpaceError(f"{error.detail()}; files can be deleted, not made") from error


class ReadProof:
    """Proof that this process still has the namespace open."""

    def __init__(self, prove: Prove, guard: StoreGuard, lease: ReadLease | None = None) -> None:
        self._prove = prove
        self._guard = guard
        self._lease = lease or ReadLease()
        self._proving = asyncio.Lock()  # readers that wait at the same time share one proof

    async def require(self) -> None:
        """Call it after the answer was made. RetriableError when the answer may be out of date."""
        if self._lease.holds():
            return
        async with self._proving:
            if self._lease.holds():
                return
            self._guard.check()
            asked_ms = self._lease.now_ms()
            try:
                await self._prove()
            except RegionUnavailableError as error:
                raise RetriableError(f"The door cannot tell whether it still serves the namespace: {error}") from error
            except StoreError as error:
                self._guard.fail(error)
                raise RetriableError(f"The namespace lost its store: {error}") from error
            self._lease.proved(asked_ms)


async def nothing_to_prove() -> None:
    """For objects that no other process can open."""
