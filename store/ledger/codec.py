"""Ledger entries as bytes and back, as one piece or in sections with checksums. Pure.

Every value has its length before it. `encode` writes the entries as one piece; the layer around has the checksum.
`encode_sections` writes a head, and a section for each change of a record and for each record of a snapshot. The head has
everything but keys and values: it names the record of a damaged section, and it alone tells who holds which record at which
epoch, and the outcome of each transaction.

Each section has a checksum of its own, so damage in one leaves the others readable. A table gives the length and checksum of
each section. It is stored before them under a checksum of its own, because without it no section can be read.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from spark_jms.store.contract import Delete, Operation, Put
from spark_jms.store.errors import StoreError
from spark_jms.store.ledger.record import (
    Cancelled,
    Change,
    Closed,
    Connected,
    Damaged,
    Ended,
    Entry,
    Opened,
    Prepared,
    Resolved,
    Restored,
    Waited,
    Written,
)

_U8, _U16, _U32, _U64 = struct.Struct("<B"), struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<Q")
_OPERATION = struct.Struct("<BH")  # its kind, and the length of its key
_CONNECTED, _ENDED, _OPENED, _CLOSED, _WAITED, _CANCELLED, _WRITTEN, _RESTORED, _PREPARED, _RESOLVED, _DAMAGED = range(
    1, 12
)
_PUT, _DELETE = 1, 2


_ROW = struct.Struct("<II")  # of the table: length and checksum of a section
TABLE_ROW_BYTES = _ROW.size
_HEAD = struct.Struct("<II")  # number of sections, checksum of the table


class DecodeError(Exception):
    """The bytes have the right checksum and still are no entries: the writer was faulty, or of another format."""


@dataclass(frozen=True)
class Lost:
    """The place of a section whose checksum does not match."""

    start: int
    end: int


Section = bytes | Lost


def encode(entries: Iterable[Entry]) -> bytes:
    writer = _Writer()
    for entry in entries:
        _encode_entry(writer, entry)
    return writer.joined()


def encode_sections(entries: Iterable[Entry]) -> list[bytes]:
    sections: list[bytes] = []
    head = _Writer(sections)
    for entry in entries:
        _encode_entry(head, entry)
    return [head.joined(), *sections]


def decode(data: bytes) -> list[Entry]:
    reader = _Reader(data)
    entries: list[Entry] = []
    try:
        while reader.at < len(data):
            entries.append(_decode_entry(reader))
    except StoreError as error:  # Put and Delete check themselves
        raise DecodeError(str(error)) from error
    return entries


def decode_sections(sections: Sequence[Section], file: str) -> list[Entry]:
    """An entry whose section is lost comes without its keys and values, and a `Damaged` follows it."""
    reader = _HeadReader(sections, file)
    entries: list[Entry] = []
    try:
        while reader.at < len(reader.data):
            entries.append(_decode_entry(reader))
            entries += reader.damaged
            reader.damaged = []
    except StoreError as error:
        raise DecodeError(str(error)) from error
    reader.check_all()
    return entries


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


class _Writer:
    """Keys and values come one after the other with the rest, or, with `sections`, in a section of their own."""

    __slots__ = ("_sections", "parts")

    def __init__(self, sections: list[bytes] | None = None) -> None:
        self.parts: list[bytes] = []
        self._sections = sections

    def joined(self) -> bytes:
        return b"".join(self.parts)

    def u8(self, number: int) -> None:
        self.parts.append(_U8.pack(number))

    def u32(self, number: int) -> None:
        self.parts.append(_U32.pack(number))

    def u64(self, number: int) -> None:
        self.parts.append(_U64.pack(number))

    def text(self, text: str) -> None:
        data = text.encode()
        self.parts.append(_U16.pack(len(data)))
        self.parts.append(data)

    def texts(self, texts: Iterable[str]) -> None:
        known = tuple(texts)
        self.u32(len(known))
        for text in known:
            self.text(text)

    def operations(self, operations: Sequence[Operation]) -> None:
        parts = [_U32.pack(len(operations))]
        for operation in operations:
            key = operation.key.encode()
            if isinstance(operation, Put):
                value = operation.value
                parts += (_OPERATION.pack(_PUT, len(key)), key, _U32.pack(len(value)), value)
            else:
                parts += (_OPERATION.pack(_DELETE, len(key)), key)
        self._content(parts)

    def objects(self, objects: Sequence[tuple[str, bytes]]) -> None:
        parts = [_U32.pack(len(objects))]
        for text, value in objects:
            key = text.encode()
            parts += (_U16.pack(len(key)), key, _U32.pack(len(value)), value)
        self._content(parts)

    def _content(self, parts: list[bytes]) -> None:
        if self._sections is None:
            self.parts += parts
        else:
            self._sections.append(b"".join(parts))


def _encode_entry(writer: _Writer, entry: Entry) -> None:
    match entry:
        case Written(changes):  # nearly all are
            writer.u8(_WRITTEN)
            writer.u32(len(changes))
            for change in changes:
                _encode_change(writer, change)
        case Connected(session_id, label):
            writer.u8(_CONNECTED)
            writer.text(session_id)
            writer.text(label)
        case Ended(session_ids):
            writer.u8(_ENDED)
            writer.texts(session_ids)
        case Opened(name, epoch, session_id):
            writer.u8(_OPENED)
            writer.text(name)
            writer.u64(epoch)
            writer.text(session_id)
        case Closed(name, epoch):
            writer.u8(_CLOSED)
            writer.text(name)
            writer.u64(epoch)
        case Waited(name, session_id):
            writer.u8(_WAITED)
            writer.text(name)
            writer.text(session_id)
        case Cancelled(name, session_id):
            writer.u8(_CANCELLED)
            writer.text(name)
            writer.text(session_id)
        case Restored():
            _encode_restored(writer, entry)
        case Prepared(xid, changes, restored):
            writer.u8(_PREPARED)
            writer.text(xid)
            writer.u8(restored)
            writer.u32(len(changes))
            for change in changes:
                _encode_change(writer, change)
        case Resolved(xid, commit):
            writer.u8(_RESOLVED)
            writer.text(xid)
            writer.u8(commit)
        case Damaged(name, file, offset, reason):
            writer.u8(_DAMAGED)
            writer.text(name)
            writer.text(file)
            writer.u64(offset)
            writer.text(reason)


def _encode_change(writer: _Writer, change: Change) -> None:
    writer.text(change.name)
    writer.u64(change.epoch)
    writer.operations(change.operations)


def _encode_restored(writer: _Writer, entry: Restored) -> None:
    writer.u8(_RESTORED)
    writer.text(entry.name)
    writer.u64(entry.epoch)
    writer.texts([] if entry.holder is None else [entry.holder])
    writer.texts(entry.waiters)
    writer.objects(entry.objects)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def content(self, whose: str, what: str) -> _Reader | None:
        """The reader for keys and values; None when they are lost."""
        return self

    def check_end(self) -> None:
        if self.at != len(self.data):
            raise DecodeError("a section continues after its content")

    def _take(self, length: int) -> bytes:
        end = self.at + length
        if end > len(self.data):
            raise DecodeError("an entry ends beyond its frame")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def u8(self) -> int:
        return self._take(1)[0]

    def u32(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self._take(8), "little")

    def text(self) -> str:
        try:
            return self._take(int.from_bytes(self._take(2), "little")).decode()
        except UnicodeDecodeError as error:
            raise DecodeError("a text is not UTF-8") from error

    def texts(self) -> tuple[str, ...]:
        return tuple(self.text() for _ in range(self.u32()))

    def blob(self) -> bytes:
        return self._take(self.u32())

    def operations(self) -> tuple[Operation, ...]:
        """In one loop: each process that follows a store reads those of all others."""
        data, at, found = self.data, self.at + 4, list[Operation]()
        try:
            for _ in range(self.u32()):
                kind, length = _OPERATION.unpack_from(data, at)
                at += _OPERATION.size + length
                key = data[at - length : at].decode()
                if kind == _PUT:
                    (length,) = _U32.unpack_from(data, at)
                    at += _U32.size + length
                    found.append(Put(key, data[at - length : at]))
                elif kind == _DELETE:
                    found.append(Delete(key))
                else:
                    raise DecodeError(f"unknown operation {kind}")
        except struct.error as error:
            raise DecodeError("an entry ends beyond its frame") from error
        except UnicodeDecodeError as error:
            raise DecodeError("a text is not UTF-8") from error
        if at > len(data):
            raise DecodeError("an entry ends beyond its frame")
        self.at = at
        return tuple(found)


class _HeadReader(_Reader):
    """`damaged` collects an entry for each lost section; the caller empties it."""

    def __init__(self, sections: Sequence[Section], file: str) -> None:
        head = sections[0] if sections else b""
        if isinstance(head, Lost):
            raise DecodeError("the head is damaged")
        super().__init__(head)
        self._file = file
        self._left = list(reversed(sections[1:]))
        self._read: list[_Reader] = []
        self.damaged: list[Damaged] = []

    def content(self, whose: str, what: str) -> _Reader | None:
        if not self._left:
            raise DecodeError("a section is missing")
        section = self._left.pop()
        if isinstance(section, Lost):
            why = f"bytes {section.start} to {section.end}, {what}: the checksum does not match"
            self.damaged.append(Damaged(whose, self._file, section.start, why))
            return None
        self._read.append(_Reader(section))
        return self._read[-1]

    def check_all(self) -> None:
        if self._left:
            raise DecodeError("there are more sections than the head describes")
        for section in self._read:
            section.check_end()


def _decode_entry(reader: _Reader) -> Entry:
    kind = reader.u8()
    if kind == _CONNECTED:
        return Connected(reader.text(), reader.text())
    if kind == _ENDED:
        return Ended(reader.texts())
    if kind == _OPENED:
        return Opened(reader.text(), reader.u64(), reader.text())
    if kind == _CLOSED:
        return Closed(reader.text(), reader.u64())
    if kind == _WAITED:
        return Waited(reader.text(), reader.text())
    if kind == _CANCELLED:
        return Cancelled(reader.text(), reader.text())
    if kind == _WRITTEN:
        return Written(tuple(_decode_change(reader, "what was written") for _ in range(reader.u32())))
    if kind == _RESTORED:
        name, epoch, holders, waiters = reader.text(), reader.u64(), reader.texts(), reader.texts()
        content = reader.content(name, "its objects")
        objects = tuple((content.text(), content.blob()) for _ in range(content.u32())) if content else ()
        return Restored(name, epoch, holders[0] if holders else None, waiters, objects)
    if kind == _PREPARED:
        xid, restored = reader.text(), bool(reader.u8())
        what = f"what transaction {xid} promises"
        return Prepared(xid, tuple(_decode_change(reader, what) for _ in range(reader.u32())), restored)
    if kind == _RESOLVED:
        return Resolved(reader.text(), bool(reader.u8()))
    if kind == _DAMAGED:
        return Damaged(reader.text(), reader.text(), reader.u64(), reader.text())
    raise DecodeError(f"unknown entry kind {kind}")


def _decode_change(reader: _Reader, what: str) -> Change:
    name, epoch = reader.text(), reader.u64()
    content = reader.content(name, what)
    return Change(name, epoch, content.operations() if content else ())
