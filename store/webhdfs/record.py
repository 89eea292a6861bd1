"""The journal's words: what a mutation did, decided and complete, so that replay asks nothing. Pure.

A record holds the time, the inode numbers and the block handles of what it makes; applying the same records to the
same tree gives the same tree. Content is a tuple of extents: a block object (or its beginning) or a few bytes inline.
A batch is one MessagePack array of records.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

FORMAT_VERSION = 2


class Block(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The first `length` content bytes of a block object."""

    handle: int
    length: int


class Inline(msgspec.Struct, frozen=True, array_like=True, tag=2):
    data: bytes

    @property
    def length(self) -> int:
        return len(self.data)


Extent = Block | Inline
Content = tuple[Extent, ...]


class Record(msgspec.Struct, frozen=True, array_like=True):
    path: str
    now_us: int


class MadeDirectories(Record, frozen=True, array_like=True, tag="d"):
    """Every missing directory of `path`, numbered from `first_inode`."""

    first_inode: int
    owner: str
    group: str
    permission: int


class Put(Record, frozen=True, array_like=True, tag="p"):
    """A file with its whole content, in place of what had the path."""

    inode: int
    owner: str
    group: str
    permission: int
    replication: int
    block_bytes: int
    content: Content


class Spliced(Record, frozen=True, array_like=True, tag="s"):
    """The first `keep` extents stay, `tail` follows them: append and truncate."""

    keep: int
    tail: Content


class Concatenated(Record, frozen=True, array_like=True, tag="c"):
    sources: tuple[str, ...]


class Renamed(Record, frozen=True, array_like=True, tag="r"):
    """`path` became `target`; a file or empty directory there is gone."""

    target: str


class Deleted(Record, frozen=True, array_like=True, tag="x"):
    pass


class AttributesSet(Record, frozen=True, array_like=True, tag="a"):
    """What is None stays."""

    permission: int | None = None
    owner: str | None = None
    group: str | None = None
    modified_us: int | None = None
    accessed_us: int | None = None
    replication: int | None = None


class XAttrSet(Record, frozen=True, array_like=True, tag="t"):
    """None removes it."""

    name: str
    value: bytes | None


AnyRecord = MadeDirectories | Put | Spliced | Concatenated | Renamed | Deleted | AttributesSet | XAttrSet


_ENCODER = msgspec.msgpack.Encoder()
_EDITS = msgspec.msgpack.Decoder(tuple[AnyRecord, ...])


def encode_batch(records: Sequence[AnyRecord]) -> bytes:
    return _ENCODER.encode(records)


def decode_batch(data: bytes) -> tuple[AnyRecord, ...]:
    """ValueError (msgspec's) when it is not one."""
    return _EDITS.decode(data)
