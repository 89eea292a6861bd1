"""What the tree of a namespace is made of: files and directories, the edits that change them, and paths. Pure.

An edit is decided and complete: it holds the time, the inode numbers and the block handles of what it makes, so that
replay asks nothing and the same edits applied to the same tree give the same tree. Content is a tuple of extents: a
block object (or its beginning), or a few bytes inline. A batch of the journal is a MessagePack array of edits. Paths are
absolute, with names between single slashes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from spark_jms.store.webhdfs.errors import IllegalArgumentError, PathComponentTooLongError, RemoteIOError

FORMAT_VERSION = 3  # of edits and of snapshots of the tree
ROW_BYTES = 128  # of a file or directory in a snapshot, beside its texts and content
HEADER_BYTES = 16
MAX_PATH_CHARACTERS = 8000  # HDFS's own limits
MAX_PATH_LEVELS = 1000
MAX_NAME_BYTES = 255


class BlockExtent(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The first `length` bytes of a block object."""

    handle: int
    length: int


class InlineExtent(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Bytes that the edit itself carries."""

    data: bytes

    @property
    def length(self) -> int:
        return len(self.data)


Extent = BlockExtent | InlineExtent
Content = tuple[Extent, ...]


@dataclass(frozen=True)
class FileStatus:
    """The answer to GETFILESTATUS. `path_suffix` is the name in a listing, "" for the path that was asked."""

    path_suffix: str
    is_directory: bool
    length: int
    owner: str
    group: str
    permission: int
    replication: int
    block_bytes: int
    modified_us: int
    accessed_us: int
    inode: int
    children: int


@dataclass(frozen=True)
class ContentSummary:
    """The answer to GETCONTENTSUMMARY; lengths in bytes."""

    length: int
    files: int
    directories: int
    space_consumed: int


class Inode:
    """One file or directory. `children` is None for a file. `parent` is None for the root and once the inode was removed.

    `open` marks a file whose first content is being written: clients see it, but no edit and no snapshot has it, so a
    crash removes it."""

    __slots__ = (
        "_names",
        "accessed_us",
        "block_bytes",
        "children",
        "content",
        "group",
        "modified_us",
        "name",
        "number",
        "open",
        "owner",
        "parent",
        "permission",
        "replication",
        "xattrs",
    )

    def __init__(
        self, number: int, name: str, owner: str, group: str, permission: int, now_us: int, directory: bool
    ) -> None:
        self.number = number
        self.name = name
        self.parent: Inode | None = None
        self.children: dict[str, Inode] | None = {} if directory else None
        self.owner = owner
        self.group = group
        self.permission = permission
        self.replication = 0
        self.block_bytes = 0
        self.modified_us = now_us
        self.accessed_us = 0 if directory else now_us
        self.content: Content = ()
        self.xattrs: dict[str, bytes] = {}
        self.open = False
        self._names: list[str] | None = None

    @property
    def length(self) -> int:
        return sum(extent.length for extent in self.content)

    @property
    def path(self) -> str:
        names: list[str] = []
        inode = self
        while inode.parent is not None:
            names.append(inode.name)
            inode = inode.parent
        return join(tuple(reversed(names)))

    def attach(self, child: Inode, name: str) -> None:
        assert self.children is not None
        child.name, child.parent = name, self
        self.children[name] = child
        self._names = None

    def detach(self) -> None:
        assert self.parent is not None
        assert self.parent.children is not None
        del self.parent.children[self.name]
        self.parent._names = None
        self.parent = None

    def names(self) -> list[str]:
        """The names of the children, sorted by their bytes as HDFS does."""
        if self._names is None:
            self._names = sorted(self.children or (), key=str.encode)
        return self._names

    def walk(self) -> Iterator[Inode]:
        """This inode and all below it, parents first. Without recursion: a tree may be 1000 levels deep."""
        stack = [self]
        while stack:
            inode = stack.pop()
            yield inode
            if inode.children:
                stack.extend(inode.children[name] for name in reversed(inode.names()))

    def status(self, path_suffix: str = "") -> FileStatus:
        return FileStatus(
            path_suffix=path_suffix,
            is_directory=self.children is not None,
            length=self.length,
            owner=self.owner,
            group=self.group,
            permission=self.permission,
            replication=self.replication,
            block_bytes=self.block_bytes,
            modified_us=self.modified_us,
            accessed_us=self.accessed_us,
            inode=self.number,
            children=len(self.children or ()),
        )

    def summary(self) -> ContentSummary:
        length = files = directories = space = 0
        for inode in self.walk():
            if inode.children is None:
                files += 1
                length += inode.length
                space += inode.length * inode.replication
            else:
                directories += 1
        return ContentSummary(length, files, directories, space)


# -- edits of the tree, as the journal keeps them ----------------------------------------------------------------------


class TreeEdit(msgspec.Struct, frozen=True, array_like=True):
    path: str
    now_us: int


class MadeDirectories(TreeEdit, frozen=True, array_like=True, tag="d"):
    """Every missing directory of `path` was made, numbered from `first_inode`."""

    first_inode: int
    owner: str
    group: str
    permission: int


class FileWritten(TreeEdit, frozen=True, array_like=True, tag="p"):
    """A file with its whole content replaced the one at `path`, if there was one."""

    inode: int
    owner: str
    group: str
    permission: int
    replication: int
    block_bytes: int
    content: Content


class Spliced(TreeEdit, frozen=True, array_like=True, tag="s"):
    """The first `keep` extents stayed and `tail` followed them: append and truncate."""

    keep: int
    tail: Content


class Concatenated(TreeEdit, frozen=True, array_like=True, tag="c"):
    """The sources were joined to `path` and removed."""

    sources: tuple[str, ...]


class Renamed(TreeEdit, frozen=True, array_like=True, tag="r"):
    """`path` became `target` and replaced the file or empty directory there."""

    target: str


class Deleted(TreeEdit, frozen=True, array_like=True, tag="x"):
    pass


class AttributesSet(TreeEdit, frozen=True, array_like=True, tag="a"):
    """None leaves an attribute as it is."""

    permission: int | None = None
    owner: str | None = None
    group: str | None = None
    modified_us: int | None = None
    accessed_us: int | None = None
    replication: int | None = None


class XAttrSet(TreeEdit, frozen=True, array_like=True, tag="t"):
    """None removes the attribute."""

    name: str
    value: bytes | None


Edit = MadeDirectories | FileWritten | Spliced | Concatenated | Renamed | Deleted | AttributesSet | XAttrSet


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(tuple[Edit, ...])


def encode_edits(edits: Sequence[Edit]) -> bytes:
    return _ENCODER.encode(edits)


def decode_edits(data: bytes) -> tuple[Edit, ...]:
    """ValueError when these are not edits."""
    return _DECODER.decode(data)


def growth_of(edit: Edit) -> int:
    """By how many bytes the edit makes a snapshot of the tree longer, at most. What it removes is not subtracted."""
    match edit:
        case MadeDirectories(path=path, owner=owner, group=group):
            return len(path.encode()) + path.count("/") * (ROW_BYTES + len(owner.encode()) + len(group.encode()))
        case FileWritten() | Spliced():
            return ROW_BYTES + len(_ENCODER.encode(edit))
        case Renamed(path=path, target=target):
            return max(0, len(target.rpartition("/")[2].encode()) - len(path.rpartition("/")[2].encode()))
        case AttributesSet(owner=owner, group=group):
            return len((owner or "").encode()) + len((group or "").encode())
        case XAttrSet(name=name, value=value):
            return 0 if value is None else len(name.encode()) + len(value) + HEADER_BYTES
    return 0  # Deleted, Concatenated


def cut(extent: Extent, length: int) -> Extent:
    """The first `length` bytes of an extent."""
    return BlockExtent(extent.handle, length) if isinstance(extent, BlockExtent) else InlineExtent(extent.data[:length])


def block_handles(content: Content) -> list[int]:
    return [extent.handle for extent in content if isinstance(extent, BlockExtent)]


def inline_bytes(content: Content) -> int:
    return sum(extent.length for extent in content if isinstance(extent, InlineExtent))


# -- paths -------------------------------------------------------------------------------------------------------------


@lru_cache(256)  # an operation takes the same path apart several times
def parts_of(path: str) -> tuple[str, ...]:
    """The names of a path. `//` and a slash at the end do not count; `.`, `..` and control characters are refused."""
    if not path.startswith("/"):
        raise IllegalArgumentError(f'Invalid value: "{shown(path)}" is not an absolute path')
    if len(path) > MAX_PATH_CHARACTERS or path.count("/") > MAX_PATH_LEVELS:
        raise RemoteIOError(
            f"Pathname too long.  Limit {MAX_PATH_CHARACTERS} characters, {MAX_PATH_LEVELS} levels: {shown(path)}"
        )
    names = tuple(name for name in path.split("/") if name)
    for name in names:
        _check(name, path)
    return names


def join(names: tuple[str, ...]) -> str:
    return "/" + "/".join(names)


def shown(text: str) -> str:
    """`text` for a message, shortened: a client may send a very long one."""
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"


def _check(name: str, path: str) -> None:
    if name in (".", "..") or any(character < " " or character == "\x7f" for character in name):
        raise IllegalArgumentError(f"Invalid path name Invalid file name: {shown(path)!a}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise IllegalArgumentError(f"Invalid path name {shown(path)!a}: not Unicode") from None
    if size > MAX_NAME_BYTES:
        raise PathComponentTooLongError(
            f"The maximum path component name limit of {shown(name)} in directory {shown(path)} is exceeded: "
            f"limit={MAX_NAME_BYTES} length={size}"
        )
