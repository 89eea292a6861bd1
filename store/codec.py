"""Ledger entries as bytes and back. Lengths before everything, values as they are; the frame around it has the
checksum."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from store.contract import Delete, Operation, Put
from store.errors import StoreError
from store.ledger import (
    Cancelled,
    Change,
    Closed,
    Connected,
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
_CONNECTED, _ENDED, _OPENED, _CLOSED, _WAITED, _CANCELLED, _WRITTEN, _RESTORED, _PREPARED, _RESOLVED = range(1, 11)
_PUT, _DELETE = 1, 2


class _Writer:
    def __init__(self) -> None:
        self.parts: list[bytes] = []

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

    def blob(self, data: bytes) -> None:
        self.parts.append(_U32.pack(len(data)))
        self.parts.append(data)


def encode(entries: Iterable[Entry]) -> bytes:
    writer = _Writer()
    for entry in entries:
        _encode_entry(writer, entry)
    return b"".join(writer.parts)


def _encode_entry(writer: _Writer, entry: Entry) -> None:
    match entry:
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
        case Written(changes):
            writer.u8(_WRITTEN)
            writer.u32(len(changes))
            for change in changes:
                _encode_change(writer, change)
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


def _encode_change(writer: _Writer, change: Change) -> None:
    writer.text(change.name)
    writer.u64(change.epoch)
    writer.u32(len(change.operations))
    for operation in change.operations:
        if isinstance(operation, Put):
            writer.u8(_PUT)
            writer.text(operation.key)
            writer.blob(operation.value)
        else:
            writer.u8(_DELETE)
            writer.text(operation.key)


def _encode_restored(writer: _Writer, entry: Restored) -> None:
    writer.u8(_RESTORED)
    writer.text(entry.name)
    writer.u64(entry.epoch)
    writer.texts([] if entry.holder is None else [entry.holder])
    writer.texts(entry.waiters)
    writer.u32(len(entry.objects))
    for key, value in entry.objects:
        writer.text(key)
        writer.blob(value)


class DecodeError(Exception):
    """The bytes passed their checksum and still make no entries: the writer was faulty, or of another format."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

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


def decode(data: bytes) -> list[Entry]:
    reader = _Reader(data)
    entries: list[Entry] = []
    try:
        while reader.at < len(data):
            entries.append(_decode_entry(reader))
    except StoreError as error:  # Put and Delete check themselves
        raise DecodeError(str(error)) from error
    return entries


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
        return Written(tuple(_decode_change(reader) for _ in range(reader.u32())))
    if kind == _RESTORED:
        name, epoch, holders, waiters = reader.text(), reader.u64(), reader.texts(), reader.texts()
        objects = tuple((reader.text(), reader.blob()) for _ in range(reader.u32()))
        return Restored(name, epoch, holders[0] if holders else None, waiters, objects)
    if kind == _PREPARED:
        xid, restored = reader.text(), bool(reader.u8())
        return Prepared(xid, tuple(_decode_change(reader) for _ in range(reader.u32())), restored)
    if kind == _RESOLVED:
        return Resolved(reader.text(), bool(reader.u8()))
    raise DecodeError(f"unknown entry kind {kind}")


def _decode_change(reader: _Reader) -> Change:
    name, epoch = reader.text(), reader.u64()
    operations: list[Operation] = []
    for _ in range(reader.u32()):
        operation = reader.u8()
        if operation == _PUT:
            operations.append(Put(reader.text(), reader.blob()))
        elif operation == _DELETE:
            operations.append(Delete(reader.text()))
        else:
            raise DecodeError(f"unknown operation {operation}")
    return Change(name, epoch, tuple(operations))
