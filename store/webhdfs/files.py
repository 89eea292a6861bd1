"""Durable files and directories on the objects of one connection.

An operation that returned is durable. After a crash at any point each operation has happened completely or not at all.
No answer and no refusal tells of something that is not durable yet, or that another process may have changed: an operation
looks at the tree at once, and answers when every edit it may have seen is in the journal, with a proof that the namespace is
still open here.

    Files  →  decisions, tree                    what an operation does to the tree (pure)
           →  edit_log                           edits on their way into the journal
           →  Leases, ContentWriter              one writer a file; contents coming in
           →  blocks: BlockStore, ContentReader  what files are made of; contents going out
                      StoreGuard, ReadProof      the store's refusals and its failure; whether the namespace is still open here

A file has one writer, with a lease. Clients see a file from the moment it is created, with length 0. Its content, new or
appended, appears at once when the writer closes; a file that is overwritten keeps its old content until then. Creating with
overwrite takes the file from another writer, who is refused when it closes. Appending to, truncating or joining a file that has
a writer is refused. A writer that breaks off leaves nothing.

Features: R19 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from spark_jms.store.regions.client.object_journal import ObjectJournal, SnapshotPolicy
from spark_jms.store.regions.client.objects import Objects
from spark_jms.store.webhdfs import decisions
from spark_jms.store.webhdfs.blocks import (
    DEFAULT_FILE_BLOCK_BYTES,
    BlockStore,
    ContentReader,
    FilesOptions,
    FilesStatistics,
    Prove,
    ReadProof,
    StoreGuard,
    nothing_to_prove,
)
from spark_jms.store.webhdfs.decisions import TreeDecision
from spark_jms.store.webhdfs.edit_log import EditLog
from spark_jms.store.webhdfs.errors import (
    BadOffsetError,
    BeingCreatedError,
    LeaseExpiredError,
    RemoteError,
    RetriableError,
)
from spark_jms.store.webhdfs.inode import (
    FORMAT_VERSION,
    AttributesSet,
    Content,
    ContentSummary,
    Edit,
    Extent,
    FileStatus,
    FileWritten,
    InlineExtent,
    Inode,
    Spliced,
    block_handles,
    shown,
)
from spark_jms.store.webhdfs.tree import DirectoryTree, TreeRecovery, encode_tree

Result = TypeVar("Result")


@dataclass(frozen=True)
class NewFile:
    """The attributes a file is created with."""

    owner: str
    group: str
    permission: int = 0o644
    replication: int = 1
    block_bytes: int = 0


@dataclass(eq=False)
class Lease:
    """`new` for a file that gets a whole new content; None for an append, which keeps the first `keep` extents.
    `published`: the content belongs to the tree."""

    inode: Inode
    new: NewFile | None = None
    keep: int = 0
    published: bool = False


class Files:
    """An open namespace, for one event loop. Made by `await Files.open(...)`.

    Operations raise RemoteErrors. Once the store has failed (`failure`), every operation raises RetriableError; what was in
    progress may have happened or not. Close this namespace then, and open another on a new connection.

    It has a method for each operation of WebHDFS, which is why there are many; what they have in common is elsewhere."""

    def __init__(
        self,
        journal: ObjectJournal,
        tree: DirectoryTree,
        clock_us: Callable[[], int],
        options: FilesOptions,
        prove: Prove,
    ) -> None:
        self.options = options
        self._journal = journal
        self.tree = tree
        self._clock_us = clock_us
        self._guard = StoreGuard(journal)
        self._proof = ReadProof(prove, self._guard)
        self._blocks = BlockStore(journal, self._guard, options.block_bytes)
        self._edits = EditLog(journal, tree, self._blocks, self._guard, options)
        self._leases = Leases(tree, self._edits, clock_us, options.max_writers)

    @classmethod
    async def open(
        cls,
        objects: Objects,
        clock_us: Callable[[], int],
        options: FilesOptions | None = None,
        prove: Prove = nothing_to_prove,
    ) -> Files:
        """Recover the namespace; an empty connection becomes an empty one. StoreError when the store cannot be read. `prove`
        confirms that the store is still open here."""
        options = options or FilesOptions()
        policy = SnapshotPolicy(options.snapshot_batches, options.snapshot_journal_bytes, options.snapshot_block_bytes)
        recovery, empty = TreeRecovery(), DirectoryTree(options.owner, options.group, clock_us())
        journal = await ObjectJournal.recover(objects, recovery, encode_tree(empty), FORMAT_VERSION, policy)
        return cls(journal, recovery.tree, clock_us, options, prove)

    @property
    def failure(self) -> BaseException | None:
        return self._guard.failure

    async def close(self) -> None:
        """Finish the writes in progress. The connection stays the caller's."""
        await self._edits.close()
        await self._blocks.close()
        self._guard.fail(RetriableError("The namespace was closed"))

    @property
    def reclaimable_bytes(self) -> int:
        """What the next snapshot of the namespace gives back."""
        return self._journal.reclaimable_bytes

    def statistics(self) -> FilesStatistics:
        journal, edits, blocks = self._journal, self._edits, self._blocks
        return FilesStatistics(
            mutation_count=edits.mutation_count,
            journal_write_count=edits.journal_write_count,
            journal_batches=journal.growth.batches,
            journal_bytes=journal.growth.batch_bytes,
            snapshot_count=journal.snapshot_count,
            inline_bytes=self.tree.inline_bytes,
            read_bytes=blocks.read_bytes,
            written_bytes=blocks.written_bytes,
            open_writers=len(self._leases),
            open_readers=blocks.open_readers,
            garbage_swept=journal.garbage_count,
            connection=journal.objects.statistics(),
        )

    # ---- looking

    async def status(self, path: str) -> FileStatus:
        return await self._look(lambda: self.tree.get(path).status())

    async def listing(self, path: str, start_after: str = "", limit: int | None = None) -> tuple[list[FileStatus], int]:
        """Statuses in the order of names, and how many come after them."""
        return await self._look(lambda: self.tree.listing(path, start_after, limit))

    async def summary(self, path: str) -> ContentSummary:
        return await self._look(lambda: self.tree.get(path).summary())

    async def xattrs(self, path: str) -> dict[str, bytes]:
        return await self._look(lambda: dict(self.tree.get(path).xattrs))

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> ContentReader:
        """The content as it is now, whatever happens to the path. Close the reader."""

        def look() -> ContentReader:
            inode = self.tree.get_file(path)
            if offset < 0 or (offset >= inode.length and inode.length):
                raise BadOffsetError(f"Offset={offset} out of the range [0, {inode.length}); OPEN, path={shown(path)}")
            end = inode.length if length is None else min(inode.length, offset + length)
            return ContentReader(self._blocks, inode.content, offset, end)

        return await self._look(look, ContentReader.close)

    # ---- changing

    async def mkdirs(self, path: str, permission: int = 0o755, owner: str = "", group: str = "") -> None:
        await self._check_room()
        owner, group = owner or self.options.owner, group or self.options.group
        await self._change(lambda now_us: decisions.mkdirs(self.tree, path, owner, group, permission, now_us))

    async def rename(self, source: str, target: str) -> bool:
        return await self._change(lambda now_us: decisions.rename(self.tree, source, target, now_us))

    async def rename_strict(self, source: str, target: str, overwrite: bool = False) -> None:
        await self._change(lambda now_us: decisions.rename_strict(self.tree, source, target, overwrite, now_us))

    async def delete(self, path: str, recursive: bool = False) -> bool:
        return await self._change(lambda now_us: decisions.delete(self.tree, path, recursive, now_us))

    async def truncate(self, path: str, length: int) -> None:
        def decide(now_us: int) -> TreeDecision:
            self._leases.check_free(path)
            return decisions.truncate(self.tree, path, length, now_us)

        await self._change(decide)

    async def concat(self, path: str, sources: list[str]) -> None:
        def decide(now_us: int) -> TreeDecision:
            for each in (path, *sources):
                self._leases.check_free(each)
            return decisions.concat(self.tree, path, sources, now_us)

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
        def decide(now_us: int) -> TreeDecision:
            edit = AttributesSet(path, now_us, permission, owner, group, modified_us, accessed_us)
            return decisions.set_attributes(self.tree, edit)

        await self._change(decide)

    async def set_replication(self, path: str, replication: int) -> bool:
        return await self._change(lambda now_us: decisions.set_replication(self.tree, path, replication, now_us))

    async def set_xattr(self, path: str, name: str, value: bytes, create: bool = True, replace: bool = True) -> None:
        await self._check_room()
        await self._change(lambda now_us: decisions.set_xattr(self.tree, path, name, value, create, replace, now_us))

    async def remove_xattr(self, path: str, name: str) -> None:
        await self._change(lambda now_us: decisions.remove_xattr(self.tree, path, name, now_us))

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
    ) -> ContentWriter:
        """Clients see the file when this returns, and its content when the writer closes. Close or abort the writer."""
        await self._check_room()
        new = NewFile(owner or self.options.owner, self.options.group, permission, replication, block_bytes)

        def begin() -> ContentWriter:
            inode, now_us = decisions.create(self.tree, path, overwrite, create_parent, client), self._clock_us()
            if inode is None:
                parent = path.rstrip("/").rpartition("/")[0] or "/"
                self._do(decisions.mkdirs(self.tree, parent, new.owner, new.group, 0o755, now_us))
                inode = self.tree.begin(path, new.owner, new.group, permission, now_us)
            elif inode.open:
                inode.owner, inode.permission = new.owner, permission
            return self._writer(Lease(inode, new))

        return await self._look(begin)

    async def append(self, path: str) -> ContentWriter:
        """What is written appears behind the content when the writer closes. Close or abort the writer."""
        await self._check_room()

        def begin() -> ContentWriter:
            inode = self.tree.get_file(path)
            self._leases.check_free(path)
            return self._writer(Lease(inode, keep=len(inode.content)))

        writer = await self._look(begin)
        try:
            await writer.merge_last(self.options.merge_bytes)
        except BaseException:
            await writer.abort()
            raise
        return writer

    # ---- parts

    async def _check_room(self) -> None:
        await self._guard.check_overload()
        await self._edits.make_room(0)

    def _writer(self, lease: Lease) -> ContentWriter:
        return ContentWriter(self._leases.take(lease), self._leases, self._blocks, self._edits)

    async def _look(self, look: Callable[[], Result], undo: Callable[[Result], None] | None = None) -> Result:
        """Calls `look`, at once unless its edit needs room first. Returns its result, or raises its refusal, when everything
        it may have seen is durable and the namespace is certainly still open here. `undo` gets the result if that fails."""
        self._guard.check()
        try:
            result = await self._edits.with_room(look)
        except RemoteError:
            await self._may_answer()
            raise
        try:
            await self._may_answer()
        except BaseException:
            if undo is not None:
                undo(result)
            raise
        return result

    async def _may_answer(self) -> None:
        await self._edits.durable()
        await self._proof.require()

    async def _change(self, decide: Callable[[int], TreeDecision]) -> bool:
        """Whether the operation succeeded."""
        return await self._look(lambda: self._do(decide(self._clock_us())))

    def _do(self, decision: TreeDecision) -> bool:
        if decision.edit is not None and decision.journaled:
            self._edits.submit(decision.edit)
        elif decision.edit is not None:
            self.tree.apply(decision.edit)
        return decision.succeeded


class Leases:
    """Which files have a writer."""

    def __init__(self, tree: DirectoryTree, edits: EditLog, clock_us: Callable[[], int], max_writers: int) -> None:
        self._tree = tree
        self._edits = edits
        self._clock_us = clock_us
        self._max_writers = max_writers
        self._leases: dict[int, Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def check_free(self, path: str) -> None:
        """Refuse a file that has a writer."""
        inode = self._tree.find(path)
        if inode is not None and inode.number in self._leases:
            raise BeingCreatedError(f"{shown(path)} has a writer")

    def take(self, lease: Lease) -> Lease:
        """Takes the file from an earlier writer."""
        number = lease.inode.number
        if number not in self._leases and len(self._leases) >= self._max_writers:
            self._tree.abandon(lease.inode)
            raise RetriableError(f"{self._max_writers} files are being written; that is the limit")
        self._leases[number] = lease
        return lease

    async def publish(self, lease: Lease, content: Content) -> None:
        """Make the content visible and durable and end the lease. LeaseExpiredError when the file was removed or taken."""
        await self._edits.with_room(lambda: self._publish(lease, content))
        await self._edits.durable()

    def _publish(self, lease: Lease, content: Content) -> None:
        inode = lease.inode
        if self._leases.get(inode.number) is not lease or inode.parent is None:
            raise LeaseExpiredError(f"File does not exist or has another writer: {shown(inode.path)}")
        edit = self._edit(lease, content)
        if edit is not None:
            self._edits.submit(edit)
            lease.published = True
        self.end(lease)

    def end(self, lease: Lease) -> None:
        """A file that never got its first content is removed."""
        if self._leases.get(lease.inode.number) is lease:
            del self._leases[lease.inode.number]
            self._tree.abandon(lease.inode)

    def _edit(self, lease: Lease, content: Content) -> Edit | None:
        inode, new, now_us = lease.inode, lease.new, self._clock_us()
        if new is None:
            return Spliced(inode.path, now_us, lease.keep, content) if content else None
        number, owner, permission = self._tree.next_inode, new.owner, new.permission
        if inode.open:
            number, owner, permission = inode.number, inode.owner, inode.permission  # may have been set meanwhile
        return FileWritten(
            inode.path, now_us, number, owner, new.group, permission, new.replication, new.block_bytes, content
        )


class ContentWriter:
    """One writer of one file, from `Files.create` or `Files.append`: a block at a time, never a whole file in memory. Clients
    see nothing of it before `close` returns, and nothing ever after `abort` or a refused `close`."""

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
