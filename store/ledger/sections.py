"""Bytes in sections, each with a checksum of its own, so that damage in one leaves the others readable. Pure.

A table gives the length and checksum of each section. It is stored before them under a checksum of its own, because without
it no section can be read.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

_ROW = struct.Struct("<II")
TABLE_ROW_BYTES = _ROW.size
_HEAD = struct.Struct("<II")


@dataclass(frozen=True)
class Lost:
    """The place of a section whose checksum does not match."""

    start: int
    end: int


Section = bytes | Lost


def table_of(sections: Sequence[bytes]) -> bytes:
    return b"".join([_ROW.pack(len(section), zlib.crc32(section)) for section in sections])


def split(data: bytes, at: int, table: bytes, base: int = 0) -> tuple[tuple[Section, ...], int] | None:
    """The sections that the table describes, which begin at `at`, and where they end; None when they are cut off. `data`
    begins at `base` in its file."""
    sections: list[Section] = []
    for length, checksum in _ROW.iter_unpack(table):
        section = data[at : at + length]
        if len(section) < length:
            return None
        sections.append(section if zlib.crc32(section) == checksum else Lost(base + at, base + at + length))
        at += length
    return tuple(sections), at


def pack(sections: Sequence[bytes]) -> bytes:
    """Table and sections in one value."""
    table = table_of(sections)
    return b"".join((_HEAD.pack(len(sections), zlib.crc32(table)), table, *sections))


def unpack(data: bytes) -> tuple[Section, ...] | None:
    """None when the table is damaged, or the value does not end where the table ends."""
    if len(data) < _HEAD.size:
        return None
    count, checksum = _HEAD.unpack_from(data)
    start = _HEAD.size + count * TABLE_ROW_BYTES
    table = data[_HEAD.size : start]
    if len(table) != count * TABLE_ROW_BYTES or zlib.crc32(table) != checksum:
        return None
    found = split(data, start, table)
    return found[0] if found is not None and found[1] == len(data) else None
