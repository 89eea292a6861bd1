"""Leases: a file has one writer.

Clients see a file from the moment it is created, with length 0. Its content, new or appended, appears at once when the
writer closes; a file that is overwritten keeps its old content until then. Creating with overwrite takes the file from
another writer, who is refused when it closes. Appending to, truncating or joining a file that has a writer is refused.
A writer that breaks off leaves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_jms.store.webhdfs.edit_log import EditLog
from spark_jms.store.webhdfs.edits import Content, Edit, FileWritten, Spliced
from spark_jms.store.webhdfs.errors import BeingCreatedError, LeaseExpiredError, RetriableError
from spark_jms.store.webhdfs.inode import Inode
from spark_jms.store.webhdfs.path import shown
from spark_jms.store.webhdfs.tree import DirectoryTree


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


class Leases:
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
