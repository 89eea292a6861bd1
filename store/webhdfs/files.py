"""Files and directories that are durable: the namespace, its journal, and contents in blocks.

Promised: an operation that returned is durable; after a crash at any point each operation is wholly there or not at
all; nobody sees what is not durable yet. Mutations that come while the journal is being written share its next object.

Leases: a file has one writer. A file is seen from the moment it is created, with length 0; its content, new or
appended, appears at once when the writer closes. An overwritten file keeps its old content until then. Creating with
overwrite takes the file from another writer, who is refused when it closes; appending to, truncating or joining a
file that has a writer is refused. A writer that breaks off leaves nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TypeVar

from spark_jms.store.errors import (
    ObjectNotFoundError,
    ResourceAllocationException,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreWriteError,
)
from spark_jms.store.regions.client.object_journal import (
    MAGIC_BYTES,
    WINDOW,
    JournaledState,
    ObjectJournal,
    SnapshotPolicy,
)
from spark_jms.store.regions.client.objects import ConnectionStatistics, Objects
from spark_jms.store.webhdfs.errors import (
    BadOffsetError,
    BeingCreatedError,
    LeaseExpiredError,
    NoSpaceError,
    RemoteError,
    RemoteIOError,
    RetriableError,
)
from spark_jms.store.webhdfs.inode import Status, Summary
from spark_jms.store.webhdfs.namespace import Namespace
from spark_jms.store.webhdfs.path import shown
from spark_jms.store.webhdfs.record import (
    FORMAT_VERSION,
    AnyRecord,
    Block,
    Content,
    Extent,
    Inline,
    Put,
    Spliced,
    decode_batch,
    encode_batch,
)
from spark_jms.store.webhdfs.stream import Reader, Writer

log = logging.getLogger(__name__)
Result = TypeVar("Result")
DEFAULT_FILE_BLOCK_BYTES = 128 * 1024 * 1024  # what is told to clients; says nothing of the objects here


@dataclass(frozen=True)
class FilesOptions:
    """`capacity_bytes`: what GETSTATUS tells, 0 when nobody knows. `inline`: contents this small live in the journal,
    while all of them together stay within their budget. `snapshot`: what makes the journal long; a recovery reads as
    much."""

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
    mutation_count: int
    journal_write_count: int  # mutation_count / journal_write_count is how well they group
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


class _Recovery(JournaledState):
    tree: Namespace

    def restore(self, snapshot: bytes) -> None:
        self.tree = Namespace.restored(snapshot)

    def replay(self, payload: bytes, first: int, count: int) -> None:
        for record in decode_batch(payload):
            self.tree.apply(record)

    def handles(self) -> set[int]:
        return self.tree.handles()


class Files:
    """The open namespace of one connection, for one event loop. Made by `await Files.open(...)`.

    Operations raise RemoteError. Once the store failed (`failure` tells), every one raises RetriableError: what was
    under way may have happened or not, so close this one and open anew on a new connection."""

    def __init__(
        self, journal: ObjectJournal, namespace: Namespace, clock_us: Callable[[], int], options: FilesOptions
    ) -> None:
        self.options = options
        self.failure: BaseException | None = None
        self._journal = journal
        self._tree = namespace
        self._clock_us = clock_us
        self._block_bytes = min(options.block_bytes, journal.objects.max_object_bytes - MAGIC_BYTES)
        self._leases: dict[int, Writer] = {}
        self._pins: Counter[int] = Counter()
        self._doomed: set[int] = set()  # deleted, but a reader still needs them
        self._garbage: deque[int] = deque()
        self._pending: list[AnyRecord] = []
        self._freed: list[int] = []
        self._collecting: asyncio.Future[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._mutations = self._journal_writes = self._read_bytes = self._written_bytes = self._readers = 0

    @classmethod
    async def open(cls, objects: Objects, clock_us: Callable[[], int], options: FilesOptions | None = None) -> Files:
        """Recover what is there. StoreError when the store cannot be read."""
        options = options or FilesOptions()
        policy = SnapshotPolicy(options.snapshot_batches, options.snapshot_journal_bytes, options.snapshot_block_bytes)
        recovery, empty = _Recovery(), Namespace(options.owner, options.group, clock_us())
        journal = await ObjectJournal.recover(objects, recovery, empty.snapshot(), FORMAT_VERSION, policy)
        return cls(journal, recovery.tree, clock_us, options)

    async def close(self) -> None:
        """Finish what is under way. The connection stays the caller's."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))
        self._fail(RetriableError("The namespace was closed"))

    def statistics(self) -> FilesStatistics:
        journal = self._journal
        return FilesStatistics(
            self._mutations, self._journal_writes, journal.batch_count, journal.batch_bytes, journal.snapshot_count,
            self._tree.inline_bytes, self._read_bytes, self._written_bytes, len(self._leases), self._readers,
            journal.garbage_count, journal.objects.statistics(),
        )  # fmt: skip

    # ---- looking

    async def status(self, path: str) -> Status:
        return await self._seen(lambda: self._tree.status(path))

    async def listing(self, path: str, start_after: str = "", limit: int | None = None) -> tuple[list[Status], int]:
        return await self._seen(lambda: self._tree.listing(path, start_after, limit))

    async def summary(self, path: str) -> Summary:
        return await self._seen(lambda: self._tree.summary(path))

    async def xattrs(self, path: str) -> dict[str, bytes]:
        return await self._seen(lambda: dict(self._tree.get(path).xattrs))

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> Reader:
        """Of the content as it is now, whatever happens to the path. Close the reader."""
        reader = None
        try:
            reader = self._reader(path, offset, length)
        finally:
            try:
                await self.settled()
            except RemoteError:
                if reader is not None:
                    reader.close()
                raise
        return reader

    # ---- changing

    async def mkdirs(self, path: str, permission: int = 0o755, owner: str = "", group: str = "") -> None:
        await self._room()
        owner, group = owner or self.options.owner, group or self.options.group
        await self._change(lambda now_us: self._tree.mkdirs(path, owner, group, permission, now_us))

    async def rename(self, source: str, target: str) -> bool:
        return await self._change(lambda now_us: self._tree.rename(source, target, now_us))

    async def rename_strict(self, source: str, target: str, overwrite: bool = False) -> None:
        await self._change(lambda now_us: self._tree.rename_strict(source, target, overwrite, now_us))

    async def delete(self, path: str, recursive: bool = False) -> bool:
        return await self._change(lambda now_us: self._tree.delete(path, recursive, now_us))

    async def truncate(self, path: str, length: int) -> None:
        def decide(now_us: int) -> AnyRecord | None:
            self._unleased(path)
            return self._tree.truncate(path, length, now_us)

        await self._change(decide)

    async def concat(self, path: str, sources: list[str]) -> None:
        def decide(now_us: int) -> AnyRecord:
            for each in (path, *sources):
                self._unleased(each)
            return self._tree.concat(path, sources, now_us)

        await self._change(decide)

    async def set_attributes(
        self,
        path: str,
        permission: int | None = None,
        owner: str | None = None,
        group: str | None = None,
        modified_us: int | None = None,
        accessed_us: int | None = None,
    ) -> None:
        await self._change(
            lambda now_us: self._tree.set_attributes(path, now_us, permission, owner, group, modified_us, accessed_us)
        )

    async def set_replication(self, path: str, replication: int) -> bool:
        return await self._change(lambda now_us: self._tree.set_replication(path, replication, now_us))

    async def set_xattr(self, path: str, name: str, value: bytes, create: bool = True, replace: bool = True) -> None:
        await self._room()
        await self._change(lambda now_us: self._tree.set_xattr(path, name, value, create, replace, now_us))

    async def remove_xattr(self, path: str, name: str) -> None:
        await self._change(lambda now_us: self._tree.remove_xattr(path, name, now_us))

    async def create(
        self,
        path: str,
        overwrite: bool = False,
        create_parent: bool = True,
        permission: int = 0o644,
        owner: str = "",
        replication: int = 1,
        block_bytes: int = DEFAULT_FILE_BLOCK_BYTES,
        client: str = "unknown",
    ) -> Writer:
        """The file is seen when this returns; its content when the writer closes. Close or abort the writer."""
        await self._room()
        owner = owner or self.options.owner
        return await self._seen(
            lambda: self._begin(path, overwrite, create_parent, (owner, permission, replication, block_bytes), client)
        )

    async def append(self, path: str) -> Writer:
        """What is written appears behind the content when the writer closes. Close or abort the writer."""
        await self._room()
        writer = await self._seen(lambda: self._begin_append(path))
        content = writer.inode.content
        if content and content[-1].length < min(self.options.merge_bytes, self._block_bytes):
            try:
                writer.begin_with(await self.load(content[-1]))
            except BaseException:
                await writer.abort()
                raise
        return writer

    # ---- what writers and readers need

    async def load(self, extent: Extent) -> bytes:
        if isinstance(extent, Inline):
            return extent.data
        data = bytes((await self._guard(self._journal.read_data(extent.handle)))[: extent.length])
        if len(data) != extent.length:
            raise RemoteIOError(f"block {extent.handle} is shorter than the file says")
        return data

    async def store(self, data: bytes) -> Block:
        self._check_overload()
        block = Block(await self._guard(self._journal.create_data(data)), len(data))
        self._written_bytes += len(data)
        return block

    async def commit(self, writer: Writer, content: Content) -> None:
        """Let the content of a writer be seen, or refuse it because the file went away under it."""
        inode = writer.inode
        if self._leases.get(inode.number) is not writer or inode.parent is None:
            raise LeaseExpiredError(f"File does not exist or has another writer: {shown(inode.path)}")
        path, now_us = inode.path, self._clock_us()
        record: AnyRecord | None
        if writer.keep is not None:
            record = Spliced(path, now_us, writer.keep, content) if content else None
        else:
            owner, permission, replication, block_bytes = writer.attributes
            number = inode.number
            if inode.open:
                owner, permission = inode.owner, inode.permission  # may have been set meanwhile
            else:
                number = self._tree.next_inode
            record = Put(path, now_us, number, owner, self.options.group, permission, replication, block_bytes, content)
        if record is not None:
            self._submit(record)
            writer.committed = True
        self.release(writer)
        await self.settled()

    def release(self, writer: Writer) -> None:
        """Give up the lease; a file that never got its content goes."""
        if self._leases.get(writer.inode.number) is writer:
            del self._leases[writer.inode.number]
            self._tree.abandon(writer.inode)

    def discard(self, handles: list[int]) -> None:
        """Blocks that nothing durable names any more: delete them, once no reader needs them."""
        for handle in handles:
            if self._pins[handle]:
                self._doomed.add(handle)
            else:
                self._garbage.append(handle)
        if self._garbage and self.failure is None and "reap" not in self._tasks:
            self._start("reap", self._reap())

    def unpin(self, content: Content, byte_count: int) -> None:
        self._readers -= 1
        self._read_bytes += byte_count
        free = []
        for extent in content:
            if isinstance(extent, Block):
                self._pins[extent.handle] -= 1
                if not self._pins[extent.handle]:
                    del self._pins[extent.handle]
                    if extent.handle in self._doomed:
                        self._doomed.discard(extent.handle)
                        free.append(extent.handle)
        self.discard(free)

    def inline_fits(self, size: int) -> bool:
        within = self._tree.inline_bytes + size <= self.options.inline_budget_bytes
        return size <= self.options.inline_bytes and within

    @property
    def block_bytes(self) -> int:
        return self._block_bytes

    async def settled(self) -> None:
        """All that was submitted so far is durable."""
        last = self._collecting or self._writing
        if last is not None:
            await asyncio.shield(last)
        self._check()

    # ---- parts

    def _check(self) -> None:
        if self.failure is not None:
            raise RetriableError(f"The namespace lost its store: {self.failure}")

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error

    async def _guard(self, operation: Awaitable[Result]) -> Result:
        """A store's refusal becomes the door's; a store's failure ends this namespace."""
        self._check()
        try:
            return await operation
        except StoreFullError as error:
            raise NoSpaceError(f"The store is full: {error.detail()}") from error
        except StoreWriteError as error:
            raise RetriableError(str(error)) from error
        except (StoreCorruptError, ObjectNotFoundError) as error:
            raise RemoteIOError(f"A block cannot be read: {error}") from error
        except StoreError as error:
            self._fail(error)
            raise RetriableError(f"The namespace lost its store: {error}") from error

    async def _seen(self, look: Callable[[], Result]) -> Result:
        """What `look` finds now, or how it refuses, told when all that it may have seen is durable."""
        self._check()
        try:
            result = look()
        except RemoteError:
            await self.settled()
            raise
        await self.settled()
        return result

    async def _change(self, decide: Callable[[int], AnyRecord | bool | None]) -> bool:
        self._check()
        try:
            decision = decide(self._clock_us())
        except RemoteError:
            await self.settled()  # nobody is refused because of what is not durable
            raise
        if not isinstance(decision, (bool, type(None))):
            self._submit(decision)
        await self.settled()
        return decision is not False

    def _submit(self, record: AnyRecord) -> None:
        self._check()
        self._freed += self._tree.apply(record)
        self._pending.append(record)
        self._mutations += 1
        if self._collecting is None:
            self._collecting = asyncio.get_running_loop().create_future()
        if "flush" not in self._tasks:
            self._start("flush", self._flush())

    def _start(self, name: str, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"webhdfs {name}")
        self._tasks[name] = task
        task.add_done_callback(lambda done: self._finished(name, done))

    def _finished(self, name: str, task: asyncio.Task[None]) -> None:
        del self._tasks[name]
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)
            for future in (self._writing, self._collecting):
                if future is not None and not future.done():
                    future.set_result(None)  # those who wait look at `failure`
            self._writing = self._collecting = None
        elif name == "flush" and self._pending:  # came between the task's last look and this
            self._start("flush", self._flush())
        elif name == "reap" and self._garbage and self.failure is None:
            self._start("reap", self._reap())

    async def _flush(self) -> None:
        while self._pending:
            batch, freed = self._take()
            await self._append(batch)
            self._settle(freed)
            if self._journal.snapshot_due and self._journal.reserved:
                await self._snapshot()

    async def _snapshot(self) -> None:
        """The changes that came meanwhile are in the tree already, so the snapshot makes them durable, too."""
        batch, freed = self._take()
        try:
            freed += await self._journal.snapshot(self._tree.snapshot(), self._journal.position + len(batch))
        except StoreWriteError as error:
            log.error("%s: cannot write a snapshot, the journal keeps growing: %s", self._journal.objects.name, error)
            if batch:
                await self._append(batch)
        self._settle(freed)

    def _take(self) -> tuple[list[AnyRecord], list[int]]:
        batch, freed = self._pending, self._freed
        self._pending, self._freed = [], []
        self._writing, self._collecting = self._collecting, None
        return batch, freed

    def _settle(self, freed: list[int]) -> None:
        future, self._writing = self._writing, None
        if future is not None and not future.done():
            future.set_result(None)
        self.discard(freed)

    async def _append(self, batch: list[AnyRecord]) -> None:
        """The tree has the records already, so a store that refuses for now is asked again, within a bound."""
        payload = encode_batch(batch)
        for attempt in range(self.options.refused_retries + 1):
            try:
                self._journal_writes += 1
                await self._journal.append(payload, len(batch))
                return
            except StoreWriteError:
                if attempt == self.options.refused_retries:
                    raise
                await asyncio.sleep(self.options.refused_retry_ms / 1000)

    async def _reap(self) -> None:
        while self._garbage:
            window = [self._garbage.popleft() for _ in range(min(WINDOW, len(self._garbage)))]
            await self._journal.delete(window)

    async def _room(self) -> None:
        """What makes the namespace grow needs the reserve, and a store that is not overloaded (R13); deletions do not."""
        self._check_overload()
        if not self._journal.reserved and not await self._guard(self._journal.reserve()):
            raise NoSpaceError("The store is full; files can be deleted, not made")

    def _check_overload(self) -> None:
        try:
            self._journal.objects.check_overload()
        except ResourceAllocationException as error:
            raise NoSpaceError(f"{error.detail()}; files can be deleted, not made") from error

    def _unleased(self, path: str) -> None:
        inode = self._tree.find(path)
        if inode is not None and inode.number in self._leases:
            raise BeingCreatedError(f"{shown(path)} has a writer")

    def _lease(self, writer: Writer) -> Writer:
        number = writer.inode.number
        if number not in self._leases and len(self._leases) >= self.options.max_writers:
            self._tree.abandon(writer.inode)
            raise RetriableError(f"{self.options.max_writers} files are being written; that is the limit")
        self._leases[number] = writer
        return writer

    def _begin(
        self, path: str, overwrite: bool, create_parent: bool, attributes: tuple[str, int, int, int], client: str
    ) -> Writer:
        inode = self._tree.check_create(path, overwrite, create_parent, client)
        owner, permission, *_ = attributes
        group, now_us = self.options.group, self._clock_us()
        if inode is None:
            parent = path.rstrip("/").rpartition("/")[0] or "/"
            made = self._tree.mkdirs(parent, owner, group, 0o755, now_us)
            if made is not None:
                self._submit(made)  # journaled before the file is: the journal keeps the order
            inode = self._tree.begin(path, owner, group, permission, now_us)
        elif inode.open:
            inode.owner, inode.permission = owner, permission
        writer = Writer(self, inode, None)
        writer.attributes = attributes
        return self._lease(writer)

    def _begin_append(self, path: str) -> Writer:
        inode = self._tree.get_file(path)
        self._unleased(path)
        return self._lease(Writer(self, inode, len(inode.content)))

    def _reader(self, path: str, offset: int, length: int | None) -> Reader:
        inode = self._tree.get_file(path)
        if offset < 0 or (offset >= inode.length and inode.length):
            raise BadOffsetError(f"Offset={offset} out of the range [0, {inode.length}); OPEN, path={shown(path)}")
        end = inode.length if length is None else min(inode.length, offset + length)
        for extent in inode.content:
            if isinstance(extent, Block):
                self._pins[extent.handle] += 1
        self._readers += 1
        return Reader(self, inode.content, offset, end)
