"""The directory tree of a namespace: how an edit changes it, its snapshots, and its recovery. Pure: no clock, no I/O.

decide    a function of decisions.py looks at the tree and gives an edit, or refuses by a RemoteError
apply     `tree.apply(edit)` changes the tree and returns the blocks that nothing names any more
replay    applies the same edits to the same snapshot and gets the same tree, because an edit leaves nothing open
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import msgspec

from spark_jms.store.regions.client.object_journal import JournaledState
from spark_jms.store.webhdfs.errors import NoSuchFileError
from spark_jms.store.webhdfs.inode import (
    AttributesSet,
    Concatenated,
    Content,
    Deleted,
    Edit,
    FileStatus,
    FileWritten,
    Inode,
    MadeDirectories,
    Renamed,
    Spliced,
    TreeEdit,
    XAttrSet,
    block_handles,
    decode_edits,
    inline_bytes,
    join,
    parts_of,
    shown,
)

ROOT_INODE = 16385  # HDFS's


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


class DirectoryTree:
    """Not thread-safe. A file that is open for its first content is in the tree, but in no edit and no snapshot."""

    def __init__(self, owner: str = "hdfs", group: str = "supergroup", now_us: int = 0) -> None:
        self.root = Inode(ROOT_INODE, "", owner, group, 0o755, now_us, directory=True)
        self.next_inode = ROOT_INODE + 1
        self.inline_bytes = 0

    # ---- looking

    def find(self, path: str) -> Inode | None:
        inode: Inode | None = self.root
        for name in parts_of(path):
            if inode is None or inode.children is None:
                return None
            inode = inode.children.get(name)
        return inode

    def get(self, path: str) -> Inode:
        inode = self.find(path)
        if inode is None:
            raise NoSuchFileError(f"File does not exist: {shown(path)}")
        return inode

    def get_file(self, path: str) -> Inode:
        inode = self.get(path)
        if inode.children is not None:
            raise NoSuchFileError(f"Path is not a file: {shown(path)}")
        return inode

    def get_parent(self, path: str) -> tuple[Inode, str]:
        """The directory that holds `path`, and the name in it."""
        names = parts_of(path)
        parent = self.find(join(names[:-1]))
        if not names or parent is None or parent.children is None:
            raise NoSuchFileError(f"Parent directory doesn't exist: {shown(path)}")
        return parent, names[-1]

    def listing(self, path: str, start_after: str = "", limit: int | None = None) -> tuple[list[FileStatus], int]:
        """Statuses in the order of names, and how many come after them. A file lists as itself, with no suffix."""
        inode = self.get(path)
        if inode.children is None:
            return [inode.status()], 0
        names = inode.names()
        first = bisect_right(names, start_after.encode("utf-8", "surrogatepass"), key=str.encode) if start_after else 0
        chosen = names[first:] if limit is None else names[first : first + limit]
        return [inode.children[name].status(name) for name in chosen], len(names) - first - len(chosen)

    def handles(self) -> set[int]:
        """Of all block objects in use."""
        return {handle for inode in self.root.walk() for handle in block_handles(inode.content)}

    # ---- changing

    def begin(self, path: str, owner: str, group: str, permission: int, now_us: int) -> Inode:
        """Show a file that is about to get its first content. Its parent must exist. Nothing is journaled."""
        parent, name = self.get_parent(path)
        inode = Inode(self.next_inode, name, owner, group, permission, now_us, directory=False)
        self.next_inode += 1
        inode.open = True
        parent.attach(inode, name)
        return inode

    def abandon(self, inode: Inode) -> None:
        """Remove a file that never got its first content, if it is still in the tree."""
        if inode.open and inode.parent is not None:
            inode.detach()

    def apply(self, edit: Edit) -> list[int]:
        """Change the tree; returns the handles of the blocks that are now garbage."""
        return _APPLY[type(edit)](self, edit)

    def set_content(self, inode: Inode, content: Content) -> None:
        self.inline_bytes += inline_bytes(content) - inline_bytes(inode.content)
        inode.content = content

    def remove(self, inode: Inode | None) -> list[int]:
        """Detach it with all below it; returns the handles of its blocks. Its writers find their file removed."""
        if inode is None:
            return []
        inode.detach()
        freed: list[int] = []
        for each in inode.walk():
            self.inline_bytes -= inline_bytes(each.content)
            freed += block_handles(each.content)
            if each is not inode:
                each.parent = None
        return freed


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
    """The tree from the journal: `tree` is there once `restore` was called."""

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


# -- one function for each kind of edit --------------------------------------------------------------------------------


def _made_directories(tree: DirectoryTree, edit: MadeDirectories) -> list[int]:
    inode, number = tree.root, edit.first_inode
    for name in parts_of(edit.path):
        assert inode.children is not None
        child = inode.children.get(name)
        if child is None:
            child = Inode(number, name, edit.owner, edit.group, edit.permission, edit.now_us, directory=True)
            number += 1
            inode.attach(child, name)
            inode.modified_us = edit.now_us
        inode = child
    tree.next_inode = max(tree.next_inode, number)
    return []


def _file_written(tree: DirectoryTree, edit: FileWritten) -> list[int]:
    parent, name = tree.get_parent(edit.path)
    assert parent.children is not None
    inode, freed = parent.children.get(name), []
    if inode is None or inode.number != edit.inode:
        freed = tree.remove(inode)
        inode = Inode(edit.inode, name, edit.owner, edit.group, edit.permission, edit.now_us, directory=False)
        parent.attach(inode, name)
    inode.owner, inode.group, inode.permission = edit.owner, edit.group, edit.permission
    inode.replication, inode.block_bytes, inode.open = edit.replication, edit.block_bytes, False
    inode.modified_us = inode.accessed_us = parent.modified_us = edit.now_us
    tree.set_content(inode, edit.content)
    tree.next_inode = max(tree.next_inode, edit.inode + 1)
    return freed


def _spliced(tree: DirectoryTree, edit: Spliced) -> list[int]:
    inode = tree.get_file(edit.path)
    dropped, kept = inode.content[edit.keep :], block_handles(edit.tail)
    tree.set_content(inode, inode.content[: edit.keep] + edit.tail)
    inode.modified_us = edit.now_us
    return [handle for handle in block_handles(dropped) if handle not in kept]


def _concatenated(tree: DirectoryTree, edit: Concatenated) -> list[int]:
    inode = tree.get_file(edit.path)
    for source in edit.sources:
        child = tree.get_file(source)
        inode.content += child.content
        child.detach()
    inode.modified_us = edit.now_us
    _touch_parent(inode, edit)
    return []


def _renamed(tree: DirectoryTree, edit: Renamed) -> list[int]:
    inode = tree.get(edit.path)
    parent, name = tree.get_parent(edit.target)
    freed = tree.remove(tree.find(edit.target))
    _touch_parent(inode, edit)
    inode.detach()
    parent.attach(inode, name)
    parent.modified_us = edit.now_us
    return freed


def _deleted(tree: DirectoryTree, edit: Deleted) -> list[int]:
    inode = tree.get(edit.path)
    if not inode.open:
        _touch_parent(inode, edit)
    return tree.remove(inode)


def _attributes_set(tree: DirectoryTree, edit: AttributesSet) -> list[int]:
    inode = tree.get(edit.path)
    for name in ("permission", "owner", "group", "modified_us", "accessed_us", "replication"):
        value = getattr(edit, name)
        if value is not None:
            setattr(inode, name, value)
    return []


def _xattr_set(tree: DirectoryTree, edit: XAttrSet) -> list[int]:
    inode = tree.get(edit.path)
    if edit.value is None:
        del inode.xattrs[edit.name]
    else:
        inode.xattrs[edit.name] = edit.value
    return []


def _touch_parent(inode: Inode, edit: TreeEdit) -> None:
    if inode.parent is not None:
        inode.parent.modified_us = edit.now_us


_APPLY: dict[type[Edit], Callable[[DirectoryTree, Any], list[int]]] = {
    MadeDirectories: _made_directories,
    FileWritten: _file_written,
    Spliced: _spliced,
    Concatenated: _concatenated,
    Renamed: _renamed,
    Deleted: _deleted,
    AttributesSet: _attributes_set,
    XAttrSet: _xattr_set,
}
