"""The directory tree as bytes: snapshots of it, and its recovery from the journal. Pure."""

from __future__ import annotations

import msgspec

from spark_jms.store.regions.client.object_journal import JournaledState
from spark_jms.store.webhdfs.edits import Content, decode_edits
from spark_jms.store.webhdfs.inode import Inode
from spark_jms.store.webhdfs.tree import DirectoryTree


class _InodeRow(msgspec.Struct, frozen=True, array_like=True):
    """`parent` is 0 for the root."""

    number: int
    parent: int
    name: str
    directory: bool
    owner: str
    group: str
    permission: int
    replication: int
    block_bytes: int
    modified_us: int
    accessed_us: int
    content: Content
    xattrs: dict[str, bytes]


class _Snapshot(msgspec.Struct, frozen=True, array_like=True):
    next_inode: int
    rows: list[_InodeRow]


def encode_tree(tree: DirectoryTree) -> bytes:
    """The whole tree except files that are open for their first content."""
    rows = [_row(inode) for inode in tree.root.walk() if not inode.open]
    return msgspec.msgpack.encode(_Snapshot(tree.next_inode, rows))


def decode_tree(data: bytes) -> DirectoryTree:
    """ValueError when it is not a snapshot."""
    snapshot = msgspec.msgpack.decode(data, type=_Snapshot)
    tree = DirectoryTree()
    by_number: dict[int, Inode] = {}
    for row in snapshot.rows:
        inode = Inode(row.number, row.name, row.owner, row.group, row.permission, row.modified_us, row.directory)
        inode.replication, inode.block_bytes = row.replication, row.block_bytes
        inode.accessed_us, inode.xattrs = row.accessed_us, row.xattrs
        tree.set_content(inode, row.content)
        by_number[row.number] = inode
        if not row.parent:
            tree.root = inode
        elif row.parent in by_number:
            by_number[row.parent].attach(inode, row.name)
        else:
            raise ValueError(f"inode {row.number} comes before its parent {row.parent}")
    tree.next_inode = snapshot.next_inode
    return tree


class TreeRecovery(JournaledState):
    """`tree` is there once `restore` was called."""

    tree: DirectoryTree

    def restore(self, snapshot: bytes) -> None:
        self.tree = decode_tree(snapshot)

    def replay(self, payload: bytes, first: int, count: int) -> None:
        for edit in decode_edits(payload):
            self.tree.apply(edit)

    def handles(self) -> set[int]:
        return self.tree.handles()

    def size(self) -> int:
        return len(encode_tree(self.tree))


def _row(inode: Inode) -> _InodeRow:
    return _InodeRow(
        number=inode.number,
        parent=0 if inode.parent is None else inode.parent.number,
        name=inode.name,
        directory=inode.children is not None,
        owner=inode.owner,
        group=inode.group,
        permission=inode.permission,
        replication=inode.replication,
        block_bytes=inode.block_bytes,
        modified_us=inode.modified_us,
        accessed_us=inode.accessed_us,
        content=inode.content,
        xattrs=inode.xattrs,
    )
