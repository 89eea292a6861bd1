"""Edits of the directory tree, as the journal keeps them. Pure.

An edit is decided and complete: it holds the time, the inode numbers and the block handles of what it makes, so that
replay asks nothing and the same edits applied to the same tree give the same tree. Content is a tuple of extents: a
block object (or its beginning), or a few bytes inline. A batch of the journal is a MessagePack array of edits.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

FORMAT_VERSION = 3  # of edits and of snapshots of the tree


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

ROW_BYTES = 128  # of a file or directory in a snapshot, beside its texts and content
HEADER_BYTES = 16

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
