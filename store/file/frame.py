"""The bytes of a journal file, a header, then frames, and what they mean when not all of them are good. Pure.

    header  preamble (magic, version, checksum of both: this part never changes), generation, journal id, checksum
    frame   mark, number of sections, own offset, checksum of these and of the table; the table of the sections (length
            and checksum of each); then the sections

The first section of a frame is its *head*, which tells what the others are (ledger/codec.py). A frame whose table and
head are good is understood, whatever is damaged in its other sections; without them nothing of the frame is. Version 2 is the
first with sections.

A frame header contains its own offset, and its checksum is seeded with the journal id. So bytes of an older journal, or of a
journal that is stored as a value, are never taken for a frame. That makes it safe to look for good frames *behind* a bad
one, which tells a torn last write from damage:

    what is damaged                       where                                         judgement
    a section other than the head of      a frame follows, or it was acknowledged       damage of one record set, which the head
    its frame                                                                           names: that record set is refused
    the same                              last in the file, not acknowledged            a torn last write: cut off
    the header, table or head of a frame  good frames follow, or it was acknowledged    damage of unknown extent: the whole store
                                                                                        is refused
    the same                              last in the file, not acknowledged            a torn last write: cut off
    the file, or its frames, end before   –                                             damage: the whole store is refused
    the acknowledged length

A frame is written only when the one before it is complete, so only the last one can be torn. The lock file (locks.py) knows
the acknowledged length. Without it the length counts as 0, and damage of the last frame looks like a torn write. Zeros behind
the last frame are its reserve (journal.py), not damage.

Features: S9 (docs/FEATURES.md)
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from spark_jms.store.errors import StoreCorruptError, StoreVersionError
from spark_jms.store.ledger.codec import TABLE_ROW_BYTES, Lost, Section, split, table_of

FORMAT_VERSION = 2
MAGIC = b"JMSQSTOR"
_PREAMBLE = struct.Struct("<8sII")
_BODY = struct.Struct("<Q16sI")
HEADER_BYTES = _PREAMBLE.size + _BODY.size

MARK = b"\x9eFR\xc3"
_FRAME = struct.Struct("<4sIQI")
FRAME_HEADER_BYTES = _FRAME.size


@dataclass(frozen=True)
class Header:
    generation: int
    journal_id: bytes

    @property
    def seed(self) -> int:
        return zlib.crc32(self.journal_id)


@dataclass(frozen=True)
class Frame:
    """A frame whose table and head are good; other sections of it may be lost."""

    offset: int
    end: int
    sections: tuple[Section, ...]

    @property
    def lost(self) -> bool:
        return any(isinstance(section, Lost) for section in self.sections)


@dataclass(frozen=True)
class FrameScan:
    """Frames, the offset after the last of them, and what is wrong there ("" when at most the reserve's zeros follow)."""

    frames: tuple[Frame, ...]
    end: int
    wrong: str


@dataclass(frozen=True)
class Judged:
    """The frames that count, up to `end`. `torn`: what follows has to be cut off."""

    frames: tuple[Frame, ...]
    end: int
    torn: bool


def encode_header(header: Header, version: int = FORMAT_VERSION) -> bytes:
    first = struct.pack("<8sI", MAGIC, version)
    body = struct.pack("<Q16s", header.generation, header.journal_id)
    return first + struct.pack("<I", zlib.crc32(first)) + body + struct.pack("<I", zlib.crc32(body))


def decode_header(data: bytes, file: str) -> Header:
    if len(data) < _PREAMBLE.size:
        raise StoreCorruptError(file, 0, "the header is cut off")
    magic, version, check = _PREAMBLE.unpack_from(data)
    if magic != MAGIC or check != zlib.crc32(data[: _PREAMBLE.size - 4]):
        raise StoreCorruptError(file, 0, "this is not the header of a journal")
    if version != FORMAT_VERSION:
        raise StoreVersionError(file, version, FORMAT_VERSION)
    if len(data) < HEADER_BYTES:
        raise StoreCorruptError(file, _PREAMBLE.size, "the header is cut off")
    generation, journal_id, check = _BODY.unpack_from(data, _PREAMBLE.size)
    if check != zlib.crc32(data[_PREAMBLE.size : HEADER_BYTES - 4]):
        raise StoreCorruptError(file, _PREAMBLE.size, "the checksum of the header does not match")
    return Header(generation, journal_id)


def encode_frame(sections: Sequence[bytes], offset: int, seed: int) -> bytes:
    first = struct.pack("<4sIQ", MARK, len(sections), offset)
    table = table_of(sections)
    check = zlib.crc32(table, zlib.crc32(first, seed))
    return b"".join((first, struct.pack("<I", check), table, *sections))


def scan(data: bytes, base: int, seed: int) -> FrameScan:
    """All frames from the start of `data` to the first that cannot be understood. `base` is the offset of `data` in its file."""
    frames: list[Frame] = []
    at = 0

    def stopped(wrong: str) -> FrameScan:
        return FrameScan(tuple(frames), base + at, wrong)

    while at < len(data):
        table = _table(data, at, base, seed)
        if table is None:
            if data[at:] == bytes(len(data) - at):
                break
            cut = len(data) - at < FRAME_HEADER_BYTES
            return stopped("a frame header is cut off" if cut else "there is no good frame header")
        found = split(data, at + FRAME_HEADER_BYTES + len(table), table, base)
        if found is None:
            return stopped("a frame is cut off")
        sections, end = found
        if isinstance(sections[0], Lost):
            return stopped("the checksum of the head of a frame does not match")
        frames.append(Frame(base + at, base + end, sections))
        at = end
    return stopped("")


def find_frame(data: bytes, base: int, seed: int) -> int | None:
    """The offset of the first good frame header after the start of `data`: proof that more was written later."""
    at = data.find(MARK, 1)
    while at >= 0:
        if _table(data, at, base, seed) is not None:
            return base + at
        at = data.find(MARK, at + 1)
    return None


def judge(data: bytes, base: int, seed: int, acknowledged: int, file: str) -> Judged:
    """Judges `data`, which begins at offset `base` of `file`. StoreCorruptError when the whole store must be refused."""
    found, size = scan(data, base, seed), base + len(data)
    if size < acknowledged:
        raise StoreCorruptError(file, size, f"the file ends here, and {acknowledged} bytes were acknowledged")
    if found.wrong:
        later = find_frame(data[found.end - base :], found.end, seed)
        if later is not None:
            raise StoreCorruptError(file, found.end, f"{found.wrong}, and good data follows at byte {later}")
        if found.end < acknowledged:
            raise StoreCorruptError(file, found.end, f"{found.wrong}, and it was acknowledged")
    elif found.end < acknowledged:
        raise StoreCorruptError(file, found.end, f"the frames end here, and {acknowledged} bytes were acknowledged")
    last = found.frames[-1] if found.frames else None
    if last is not None and last.lost and not found.wrong and acknowledged < last.end:
        return Judged(found.frames[:-1], last.offset, torn=True)
    return Judged(found.frames, found.end, torn=bool(found.wrong))


def _table(data: bytes, at: int, base: int, seed: int) -> bytes | None:
    """The table of the sections; None unless a good frame header begins here."""
    start = at + FRAME_HEADER_BYTES
    if start > len(data):
        return None
    mark, count, offset, check = _FRAME.unpack_from(data, at)
    end = start + count * TABLE_ROW_BYTES
    if mark != MARK or offset != base + at or not count or end > len(data):
        return None
    table = data[start:end]
    return table if check == zlib.crc32(table, zlib.crc32(data[at : start - 4], seed)) else None
