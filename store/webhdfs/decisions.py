"""What each operation does to the tree, or why it is refused. Pure: a decision changes nothing.

Each function is named like its operation. It raises a RemoteError with HDFS's own text, because programs read them.
"""

from __future__ import annotations

from dataclasses import dataclass

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
from spark_jms.store.webhdfs.inode import (
    MAX_PATH_LEVELS,
    AttributesSet,
    Concatenated,
    Deleted,
    Edit,
    Inode,
    MadeDirectories,
    Renamed,
    Spliced,
    XAttrSet,
    cut,
    join,
    parts_of,
    shown,
)
from spark_jms.store.webhdfs.tree import DirectoryTree

MAX_XATTRS = 32
MAX_XATTR_BYTES = 16 * 1024


@dataclass(frozen=True)
class TreeDecision:
    """`edit` is None when nothing is to be changed. An edit of a file that is open for its first content is applied but
    not journaled: the journal does not know the file yet."""

    edit: Edit | None = None
    succeeded: bool = True
    journaled: bool = True


UNCHANGED = TreeDecision()
FAILED = TreeDecision(succeeded=False)


def mkdirs(tree: DirectoryTree, path: str, owner: str, group: str, permission: int, now_us: int) -> TreeDecision:
    inode, names = tree.root, parts_of(path)
    for depth, name in enumerate(names):
        if inode.children is None:
            raise ParentNotDirectoryError(f"Parent path is not a directory: {shown(join(names[:depth]))}")
        child = inode.children.get(name)
        if child is None:
            return TreeDecision(MadeDirectories(join(names), now_us, tree.next_inode, owner, group, permission))
        inode = child
    if inode.children is None:
        raise FileExistsAlreadyError(f"Path is not a directory: {shown(join(names))}")
    return UNCHANGED


def create(tree: DirectoryTree, path: str, overwrite: bool, create_parent: bool, client: str) -> Inode | None:
    """The file that the new one replaces, if there is one. The edit follows when the content is complete."""
    existing = tree.find(path)
    if existing is not None:
        if existing.children is not None:
            raise FileExistsAlreadyError(f"{shown(path)} already exists as a directory")
        if not overwrite:
            raise FileExistsAlreadyError(f"{shown(path)} for client {client} already exists")
        return existing
    names, parent = parts_of(path), tree.root
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


def truncate(tree: DirectoryTree, path: str, length: int, now_us: int) -> TreeDecision:
    inode = tree.get_file(path)
    _require_content(inode)
    if length < 0:
        raise TruncateArgumentError(f"Cannot truncate to a negative file size: {length}.")
    if length > inode.length:
        raise TruncateArgumentError(
            f"Cannot truncate to a larger file size. Current size: {inode.length}, truncate size: {length}."
        )
    if length == inode.length:
        return UNCHANGED
    keep, before = 0, 0
    while before + inode.content[keep].length <= length:
        before += inode.content[keep].length
        keep += 1
    tail = (cut(inode.content[keep], length - before),) if length > before else ()
    return TreeDecision(Spliced(path, now_us, keep, tail))


def concat(tree: DirectoryTree, path: str, sources: list[str], now_us: int) -> TreeDecision:
    target = tree.get_file(path)
    _require_content(target)
    if not sources:
        raise IllegalArgumentError("concat: no sources given")
    seen = {target.number}
    for source in sources:
        inode = tree.get_file(source)
        _require_content(inode)
        if inode.number in seen:
            raise RemoteIOError(f"concat: the file {shown(source)} occurs twice, or is the target itself")
        if inode.parent is not target.parent:
            raise RemoteIOError(f"Source file {shown(source)} is not in the same directory with the target {path}")
        if not inode.content:
            raise RemoteIOError(f"concat: source file {shown(source)} is invalid or empty or underConstruction")
        seen.add(inode.number)
    return TreeDecision(Concatenated(join(parts_of(path)), now_us, tuple(sources)))


def rename(tree: DirectoryTree, source: str, target: str, now_us: int) -> TreeDecision:
    """The old rename, without options: moves into an existing directory, and fails where the other one refuses."""
    inode = tree.find(source)
    if inode is None or inode is tree.root:
        return FAILED
    _require_content(inode)
    into = tree.find(target)
    if into is not None and into.children is not None:
        target = target.rstrip("/") + "/" + inode.name
        into = tree.find(target)
    if into is inode:
        return UNCHANGED
    if into is not None or _is_below(target, source):
        return FAILED
    parent = tree.find(join(parts_of(target)[:-1]))
    if parent is None or parent.children is None:
        return FAILED
    _require_depth(inode, target)
    return TreeDecision(Renamed(source, now_us, target))


def rename_strict(tree: DirectoryTree, source: str, target: str, overwrite: bool, now_us: int) -> TreeDecision:
    """The rename with options, which refuses by name. Without `overwrite`, one of two that race is refused."""
    inode = tree.find(source)
    if inode is None:
        raise NoSuchFileError(f"rename source {shown(source)} is not found.")
    if inode is tree.root:
        raise RemoteIOError("rename source cannot be the root")
    _require_content(inode)
    existing = tree.find(target)
    if existing is inode:
        raise FileExistsAlreadyError(f"The source {shown(source)} and destination {shown(target)} are the same")
    if _is_below(target, source):
        raise RemoteIOError(f"Rename destination {target} is a directory or file under source {source}")
    if existing is tree.root:
        raise RemoteIOError("rename destination cannot be the root")
    if existing is not None:
        if (existing.children is None) != (inode.children is None):
            raise RemoteIOError(f"Source {source} Destination {target} both should be either file or directory")
        if not overwrite:
            raise FileExistsAlreadyError(f"rename destination {shown(target)} already exists")
        if existing.children:
            raise RemoteIOError(f"rename cannot overwrite non empty destination directory {shown(target)}")
    parent = tree.find(join(parts_of(target)[:-1]))
    if parent is None:
        raise NoSuchFileError(f"rename destination parent {shown(target)} not found.")
    if parent.children is None:
        raise ParentNotDirectoryError(f"rename destination parent {shown(target)} is a file.")
    _require_depth(inode, target)
    return TreeDecision(Renamed(source, now_us, target))


def delete(tree: DirectoryTree, path: str, recursive: bool, now_us: int) -> TreeDecision:
    """Fails when there is nothing to delete; the root stays. The writer of an open file is refused when it closes."""
    inode = tree.find(path)
    if inode is None:
        return FAILED
    if inode.children and not recursive:
        raise NotEmptyDirectoryError(f"`{shown(path)} is non empty': Directory is not empty")
    if inode is tree.root:
        return FAILED
    return TreeDecision(Deleted(path, now_us), journaled=not inode.open)


def set_attributes(tree: DirectoryTree, attributes: AttributesSet) -> TreeDecision:
    """The attributes of an open file are journaled with its content."""
    return TreeDecision(attributes, journaled=not tree.get(attributes.path).open)


def set_replication(tree: DirectoryTree, path: str, replication: int, now_us: int) -> TreeDecision:
    """Fails for a directory, as in HDFS. The number is kept; the store decides how many copies there are."""
    inode = tree.get(path)
    if inode.children is not None:
        return FAILED
    _require_content(inode)
    return TreeDecision(AttributesSet(path, now_us, replication=replication))


def set_xattr(
    tree: DirectoryTree, path: str, name: str, value: bytes, create: bool, replace: bool, now_us: int
) -> TreeDecision:
    inode = tree.get(path)
    _require_content(inode)
    if name in inode.xattrs and not replace:
        raise RemoteIOError(f"XAttr: {shown(name)} already exists. The REPLACE flag must be specified.")
    if name not in inode.xattrs and not create:
        raise RemoteIOError(f"XAttr: {shown(name)} does not exist. The CREATE flag must be specified.")
    if len(name) + len(value) > MAX_XATTR_BYTES:
        raise IllegalArgumentError(f"The XAttr is too big. The maximum is {MAX_XATTR_BYTES} bytes")
    if name not in inode.xattrs and len(inode.xattrs) >= MAX_XATTRS:
        raise RemoteIOError(f"Cannot add additional XAttr to inode, would exceed limit of {MAX_XATTRS}")
    return TreeDecision(XAttrSet(path, now_us, name, value))


def remove_xattr(tree: DirectoryTree, path: str, name: str, now_us: int) -> TreeDecision:
    inode = tree.get(path)
    _require_content(inode)
    if name not in inode.xattrs:
        raise RemoteIOError(f"No matching attributes found for remove operation: {shown(name)}")
    return TreeDecision(XAttrSet(path, now_us, name, None))


def _require_content(inode: Inode) -> None:
    """Refuse a file that is open for its first content."""
    if inode.open:
        raise BeingCreatedError(f"{shown(inode.path)} is being created by another client")


def _require_depth(inode: Inode, target: str) -> None:
    """Refuse a rename that would make a path below a directory deeper than the limit."""
    depth = len(parts_of(target))
    if inode.children and any(depth + _levels(each, inode) > MAX_PATH_LEVELS for each in inode.walk()):
        raise RemoteIOError(f"Pathname too long.  Limit {MAX_PATH_LEVELS} levels below {shown(target)}")


def _is_below(path: str, directory: str) -> bool:
    names, prefix = parts_of(path), parts_of(directory)
    return len(names) > len(prefix) and names[: len(prefix)] == prefix


def _levels(inode: Inode, top: Inode) -> int:
    levels = 0
    while inode is not top:
        assert inode.parent is not None
        inode, levels = inode.parent, levels + 1
    return levels
