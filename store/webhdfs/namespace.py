"""The inode tree as a state table: a mutation is first decided, then applied. Pure: no clock, no I/O.

    decide    a method named like the operation looks at the tree, refuses by a RemoteError or returns a record
    apply     `apply(record)` changes the tree and returns the blocks that nothing refers to any more
    replay    the same records applied to the same snapshot give the same tree, because records leave nothing open

`None` from a decision means that nothing is to be changed and the operation succeeds. The texts of refusals are
HDFS's, because programs read them.
"""

from __future__ import annotations

import msgspec

from spark_jms.store.webhdfs.errors import (
    BeingCreatedError,
    FileExistsAlreadyError,
    IllegalArgumentError,
    NoSuchFileError,
    NotEmptyDirectoryError,
    ParentNotDirectoryError,
    RemoteIOError,
    TruncateArgumentError,
)
from spark_jms.store.webhdfs.inode import Inode, Status, Summary
from spark_jms.store.webhdfs.path import MAX_PATH_LEVELS, join, parts_of, shown
from spark_jms.store.webhdfs.record import (
    AnyRecord,
    AttributesSet,
    Block,
    Concatenated,
    Content,
    Deleted,
    Inline,
    MadeDirectories,
    Put,
    Renamed,
    Spliced,
    XAttrSet,
)

ROOT_INODE = 16385  # HDFS's
MAX_XATTRS = 32
MAX_XATTR_BYTES = 16 * 1024


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """One inode of a snapshot; `parent` is 0 for the root."""

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
    rows: tuple[_Row, ...]


class Namespace:
    """The tree. Not thread-safe. Files that are open for their first content are kept out of snapshots and records."""

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

    def status(self, path: str) -> Status:
        return self.get(path).status()

    def listing(self, path: str, start_after: str = "", limit: int | None = None) -> tuple[list[Status], int]:
        """Statuses in the order of names, and how many come after them. A file lists as itself, with no suffix."""
        inode = self.get(path)
        if inode.children is None:
            return [inode.status()], 0
        names = inode.names()
        first = _after(names, start_after) if start_after else 0
        chosen = names[first:] if limit is None else names[first : first + limit]
        return [inode.children[name].status(name) for name in chosen], len(names) - first - len(chosen)

    def summary(self, path: str) -> Summary:
        return self.get(path).summary()

    def handles(self) -> set[int]:
        """Of all block objects in use."""
        return {extent.handle for inode in self.root.walk() for extent in inode.content if isinstance(extent, Block)}

    # ---- decisions

    def mkdirs(self, path: str, owner: str, group: str, permission: int, now_us: int) -> MadeDirectories | None:
        inode, names = self.root, parts_of(path)
        for depth, name in enumerate(names):
            if inode.children is None:
                raise ParentNotDirectoryError(f"Parent path is not a directory: {shown(join(names[:depth]))}")
            child = inode.children.get(name)
            if child is None:
                return MadeDirectories(join(names), now_us, self.next_inode, owner, group, permission)
            inode = child
        if inode.children is None:
            raise FileExistsAlreadyError(f"Path is not a directory: {shown(join(names))}")
        return None

    def check_create(self, path: str, overwrite: bool, create_parent: bool, client: str) -> Inode | None:
        """The file that is to be replaced, if there is one. Refuses what `create` would refuse."""
        names = parts_of(path)
        existing = self.find(path)
        if existing is not None:
            if existing.children is not None:
                raise FileExistsAlreadyError(f"{shown(path)} already exists as a directory")
            if not overwrite:
                raise FileExistsAlreadyError(f"{shown(path)} for client {client} already exists")
            return existing
        parent = self.root
        for depth, name in enumerate(names):
            if parent.children is None:
                raise ParentNotDirectoryError(f"{shown(join(names[:depth]))} (is not a directory)")
            child = parent.children.get(name)
            if child is None:
                if depth + 1 < len(names) and not create_parent:
                    raise NoSuchFileError(f"Parent directory doesn't exist: {shown(join(names[:-1]))}")
                break
            parent = child
        return None

    def begin(self, path: str, owner: str, group: str, permission: int, now_us: int) -> Inode:
        """Show a file that is about to get its first content. The parent must be there. Nothing to journal."""
        parent, name = self._parent_of(path)
        inode = Inode(self._number(), name, owner, group, permission, now_us, directory=False)
        inode.open = True
        parent.attach(inode, name)
        return inode

    def abandon(self, inode: Inode) -> None:
        """Take back what `begin` showed, if it is still there."""
        if inode.open and inode.parent is not None:
            inode.detach()

    def truncate(self, path: str, length: int, now_us: int) -> Spliced | None:
        inode = self.get_file(path)
        self._closed(inode)
        if length < 0:
            raise TruncateArgumentError(f"Cannot truncate to a negative file size: {length}.")
        if length > inode.length:
            raise TruncateArgumentError(
                f"Cannot truncate to a larger file size. Current size: {inode.length}, truncate size: {length}."
            )
        if length == inode.length:
            return None
        keep, before = 0, 0
        while before + inode.content[keep].length <= length:
            before += inode.content[keep].length
            keep += 1
        tail = (cut(inode.content[keep], length - before),) if length > before else ()
        return Spliced(path, now_us, keep, tail)

    def concat(self, path: str, sources: list[str], now_us: int) -> Concatenated:
        target = self.get_file(path)
        self._closed(target)
        if not sources:
            raise IllegalArgumentError("concat: no sources given")
        seen = {target.number}
        for source in sources:
            inode = self.get_file(source)
            self._closed(inode)
            if inode.number in seen:
                raise RemoteIOError(f"concat: the file {shown(source)} occurs twice, or is the target itself")
            if inode.parent is not target.parent:
                raise RemoteIOError(f"Source file {shown(source)} is not in the same directory with the target {path}")
            if not inode.content:
                raise RemoteIOError(f"concat: source file {shown(source)} is invalid or empty or underConstruction")
            seen.add(inode.number)
        return Concatenated(join(parts_of(path)), now_us, tuple(sources))

    def rename(self, source: str, target: str, now_us: int) -> Renamed | bool:
        """The old rename, without options: into a directory that is there, and False instead of most refusals."""
        inode = self.find(source)
        if inode is None or inode is self.root:
            return False
        self._closed(inode)
        into = self.find(target)
        if into is not None and into.children is not None:
            target = target.rstrip("/") + "/" + inode.name
            into = self.find(target)
        if into is inode:
            return True
        if into is not None or _below(target, source):
            return False
        parent = self.find(join(parts_of(target)[:-1]))
        if parent is None or parent.children is None:
            return False
        self._fits(inode, target)
        return Renamed(source, now_us, target)

    def rename_strict(self, source: str, target: str, overwrite: bool, now_us: int) -> Renamed:
        """The rename with options: refuses by name. Without `overwrite`, of two that race one finds the other's."""
        inode = self.find(source)
        if inode is None:
            raise NoSuchFileError(f"rename source {shown(source)} is not found.")
        if inode is self.root:
            raise RemoteIOError("rename source cannot be the root")
        self._closed(inode)
        existing = self.find(target)
        if existing is inode:
            raise FileExistsAlreadyError(f"The source {shown(source)} and destination {shown(target)} are the same")
        if _below(target, source):
            raise RemoteIOError(f"Rename destination {target} is a directory or file under source {source}")
        if existing is self.root:
            raise RemoteIOError("rename destination cannot be the root")
        if existing is not None:
            if (existing.children is None) != (inode.children is None):
                raise RemoteIOError(f"Source {source} Destination {target} both should be either file or directory")
            if not overwrite:
                raise FileExistsAlreadyError(f"rename destination {shown(target)} already exists")
            if existing.children:
                raise RemoteIOError(f"rename cannot overwrite non empty destination directory {shown(target)}")
        parent = self.find(join(parts_of(target)[:-1]))
        if parent is None:
            raise NoSuchFileError(f"rename destination parent {shown(target)} not found.")
        if parent.children is None:
            raise ParentNotDirectoryError(f"rename destination parent {shown(target)} is a file.")
        self._fits(inode, target)
        return Renamed(source, now_us, target)

    def delete(self, path: str, recursive: bool, now_us: int) -> Deleted | bool:
        """False when there is nothing to delete; the root stays. True when there is nothing to journal: a file that is
        open for its first content goes at once, and its writer is told at its close."""
        inode = self.find(path)
        if inode is None:
            return False
        if inode.open:
            self.abandon(inode)
            return True
        if inode.children and not recursive:
            raise NotEmptyDirectoryError(f"`{shown(path)} is non empty': Directory is not empty")
        if inode is self.root:
            return False
        return Deleted(path, now_us)

    def set_attributes(
        self,
        path: str,
        now_us: int,
        permission: int | None = None,
        owner: str | None = None,
        group: str | None = None,
        modified_us: int | None = None,
        accessed_us: int | None = None,
    ) -> AttributesSet | None:
        record = AttributesSet(path, now_us, permission, owner, group, modified_us, accessed_us)
        if self.get(path).open:  # journaled with the file, when it is closed
            self._attributes(record)
            return None
        return record

    def set_replication(self, path: str, replication: int, now_us: int) -> AttributesSet | bool:
        """False for a directory, as in HDFS. The number is kept; the store decides how many copies there are."""
        inode = self.get(path)
        if inode.children is not None:
            return False
        self._closed(inode)
        return AttributesSet(path, now_us, replication=replication)

    def set_xattr(self, path: str, name: str, value: bytes, create: bool, replace: bool, now_us: int) -> XAttrSet:
        inode = self.get(path)
        self._closed(inode)
        if name in inode.xattrs and not replace:
            raise RemoteIOError(f"XAttr: {shown(name)} already exists. The REPLACE flag must be specified.")
        if name not in inode.xattrs and not create:
            raise RemoteIOError(f"XAttr: {shown(name)} does not exist. The CREATE flag must be specified.")
        if len(name) + len(value) > MAX_XATTR_BYTES:
            raise IllegalArgumentError(f"The XAttr is too big. The maximum is {MAX_XATTR_BYTES} bytes")
        if name not in inode.xattrs and len(inode.xattrs) >= MAX_XATTRS:
            raise RemoteIOError(f"Cannot add additional XAttr to inode, would exceed limit of {MAX_XATTRS}")
        return XAttrSet(path, now_us, name, value)

    def remove_xattr(self, path: str, name: str, now_us: int) -> XAttrSet:
        inode = self.get(path)
        self._closed(inode)
        if name not in inode.xattrs:
            raise RemoteIOError(f"No matching attributes found for remove operation: {shown(name)}")
        return XAttrSet(path, now_us, name, None)

    # ---- applying

    def apply(self, record: AnyRecord) -> list[int]:
        """Change the tree by a decided record; the handles of the blocks that are now garbage."""
        if isinstance(record, Put):
            return self._put(record)
        if isinstance(record, Renamed):
            return self._renamed(record)
        if isinstance(record, MadeDirectories):
            return self._made(record)
        if isinstance(record, Deleted):
            inode = self.get(record.path)
            self._touch(inode, record.now_us)
            inode.detach()
            return self._free(inode)
        if isinstance(record, Spliced):
            inode = self.get_file(record.path)
            dropped = inode.content[record.keep :]
            self._set_content(inode, inode.content[: record.keep] + record.tail)
            inode.modified_us = record.now_us
            kept = {extent.handle for extent in record.tail if isinstance(extent, Block)}
            return [e.handle for e in dropped if isinstance(e, Block) and e.handle not in kept]
        if isinstance(record, Concatenated):
            inode = self.get_file(record.path)
            for source in record.sources:
                child = self.get_file(source)
                inode.content += child.content
                child.detach()
            inode.modified_us = record.now_us
            self._touch(inode, record.now_us)
            return []
        if isinstance(record, XAttrSet):
            inode = self.get(record.path)
            if record.value is None:
                del inode.xattrs[record.name]
            else:
                inode.xattrs[record.name] = record.value
            return []
        self._attributes(record)
        return []

    def _put(self, record: Put) -> list[int]:
        parent, name = self._parent_of(record.path)
        assert parent.children is not None
        old = parent.children.get(name)
        freed: list[int] = []
        if old is not None and old.number != record.inode:
            old.detach()
            freed = self._free(old)
        if old is not None and old.number == record.inode:
            inode = old
        else:
            inode = Inode(record.inode, name, record.owner, record.group, record.permission, record.now_us, False)
            parent.attach(inode, name)
        inode.owner, inode.group, inode.permission = record.owner, record.group, record.permission
        inode.replication, inode.block_bytes, inode.open = record.replication, record.block_bytes, False
        inode.modified_us = inode.accessed_us = record.now_us
        self._set_content(inode, record.content)
        parent.modified_us = record.now_us
        self.next_inode = max(self.next_inode, record.inode + 1)
        return freed

    def _renamed(self, record: Renamed) -> list[int]:
        inode, old = self.get(record.path), self.find(record.target)
        parent, name = self._parent_of(record.target)
        freed: list[int] = []
        if old is not None:
            old.detach()
            freed = self._free(old)
        self._touch(inode, record.now_us)
        inode.detach()
        parent.attach(inode, name)
        parent.modified_us = record.now_us
        return freed

    def _made(self, record: MadeDirectories) -> list[int]:
        inode, number = self.root, record.first_inode
        for name in parts_of(record.path):
            assert inode.children is not None
            child = inode.children.get(name)
            if child is None:
                child = Inode(number, name, record.owner, record.group, record.permission, record.now_us, True)
                number += 1
                inode.attach(child, name)
                inode.modified_us = record.now_us
            inode = child
        self.next_inode = max(self.next_inode, number)
        return []

    def _attributes(self, record: AttributesSet) -> None:
        inode = self.get(record.path)
        inode.permission = inode.permission if record.permission is None else record.permission
        inode.owner = inode.owner if record.owner is None else record.owner
        inode.group = inode.group if record.group is None else record.group
        inode.modified_us = inode.modified_us if record.modified_us is None else record.modified_us
        inode.accessed_us = inode.accessed_us if record.accessed_us is None else record.accessed_us
        inode.replication = inode.replication if record.replication is None else record.replication

    # ---- snapshots

    def snapshot(self) -> bytes:
        """The whole tree but the files that are open for their first content."""
        rows = [_row(inode) for inode in self.root.walk() if not inode.open]
        return msgspec.msgpack.encode((self.next_inode, rows))

    @classmethod
    def restored(cls, data: bytes) -> Namespace:
        """ValueError when it is not a snapshot."""
        snapshot = msgspec.msgpack.decode(data, type=_Snapshot)
        namespace = cls()
        by_number: dict[int, Inode] = {}
        for row in snapshot.rows:
            inode = Inode(row.number, row.name, row.owner, row.group, row.permission, row.modified_us, row.directory)
            inode.replication, inode.block_bytes = row.replication, row.block_bytes
            inode.accessed_us, inode.xattrs = row.accessed_us, row.xattrs
            namespace._set_content(inode, row.content)
            by_number[row.number] = inode
            if not row.parent:
                namespace.root = inode
            elif row.parent in by_number:
                by_number[row.parent].attach(inode, row.name)
            else:
                raise ValueError(f"inode {row.number} comes before its parent {row.parent}")
        namespace.next_inode = snapshot.next_inode
        return namespace

    # ---- parts

    def _number(self) -> int:
        self.next_inode += 1
        return self.next_inode - 1

    def _parent_of(self, path: str) -> tuple[Inode, str]:
        names = parts_of(path)
        parent = self.find(join(names[:-1]))
        if not names or parent is None or parent.children is None:
            raise NoSuchFileError(f"Parent directory doesn't exist: {shown(path)}")
        return parent, names[-1]

    def _set_content(self, inode: Inode, content: Content) -> None:
        self.inline_bytes += inline_bytes(content) - inline_bytes(inode.content)
        inode.content = content

    def _free(self, inode: Inode) -> list[int]:
        """After it was detached: the handles of all blocks below; open writers find their file gone."""
        freed = []
        for each in inode.walk():
            self.inline_bytes -= inline_bytes(each.content)
            freed += [extent.handle for extent in each.content if isinstance(extent, Block)]
            if each is not inode:
                each.parent = None
        return freed

    @staticmethod
    def _touch(inode: Inode, now_us: int) -> None:
        if inode.parent is not None:
            inode.parent.modified_us = now_us

    @staticmethod
    def _closed(inode: Inode) -> None:
        if inode.open:
            raise BeingCreatedError(f"{shown(inode.path)} is being created by another client")

    @staticmethod
    def _fits(inode: Inode, target: str) -> None:
        """No path below a renamed directory may become deeper than the limit."""
        depth = len(parts_of(target))
        if inode.children and any(depth + _levels(each, inode) > MAX_PATH_LEVELS for each in inode.walk()):
            raise RemoteIOError(f"Pathname too long.  Limit {MAX_PATH_LEVELS} levels below {shown(target)}")


def cut(extent: Block | Inline, length: int) -> Block | Inline:
    """The first `length` bytes of an extent."""
    return Block(extent.handle, length) if isinstance(extent, Block) else Inline(extent.data[:length])


def inline_bytes(content: Content) -> int:
    return sum(extent.length for extent in content if isinstance(extent, Inline))


def _row(inode: Inode) -> _Row:
    return _Row(
        inode.number, 0 if inode.parent is None else inode.parent.number, inode.name, inode.children is not None,
        inode.owner, inode.group, inode.permission, inode.replication, inode.block_bytes, inode.modified_us,
        inode.accessed_us, inode.content, inode.xattrs,
    )  # fmt: skip


def _below(path: str, directory: str) -> bool:
    names, prefix = parts_of(path), parts_of(directory)
    return len(names) > len(prefix) and names[: len(prefix)] == prefix


def _levels(inode: Inode, top: Inode) -> int:
    levels = 0
    while inode is not top:
        assert inode.parent is not None
        inode, levels = inode.parent, levels + 1
    return levels


def _after(names: list[str], start_after: str) -> int:
    key, low, high = start_after.encode("utf-8", "surrogatepass"), 0, len(names)
    while low < high:
        middle = (low + high) // 2
        if names[middle].encode() <= key:
            low = middle + 1
        else:
            high = middle
    return low
