"""The bytes of a journal file: a header, then frames. Pure.

    header  preamble (magic, version, checksum of both: this part never changes), generation, journal id, checksum
    frame   mark, length, own offset, checksum of the payload, checksum of this frame header; then the payload

A frame header names its own offset and its checksum is seeded with the journal id, so that the bytes of an older
journal, or of a journal stored as a value, are never taken for a frame. That makes it safe to look for good frames
*behind* a bad one, which tells a torn last write from damage.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from store.errors import StoreCorruptError, StoreVersionError

FORMAT_VERSION = 1
MAGIC = b"JMSQSTOR"
_PREAMBLE = struct.Struct("<8sII")
_BODY = struct.Struct("<Q16sI")
HEADER_BYTES = _PREAMBLE.size + _BODY.size

MARK = b"\x9eFR\xc3"
_FRAME = struct.Struct("<4sIQII")
FRAME_HEADER_BYTES = _FRAME.size


@dataclass(frozen=True)
class Header:
    generation: int
    journal_id: bytes

    @property
    def seed(self) -> int:
        return zlib.crc32(self.journal_id)


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
        raise StoreCorruptError(file, _PREAMBLE.size, "the checksum of the header does not fit")
    return Header(generation, journal_id)


def encode_frame(payload: bytes, offset: int, seed: int) -> bytes:
    first = struct.pack("<4sIQI", MARK, len(payload), offset, zlib.crc32(payload))
    return first + struct.pack("<I", zlib.crc32(first, seed)) + payload


@dataclass(frozen=True)
class Scan:
    """Payloads with their offsets, the offset after the last good frame, and what is wrong there ("" = nothing)."""

    payloads: tuple[tuple[int, bytes], ...]
    end: int
    wrong: str


def _frame_length(data: bytes, at: int, base: int, seed: int) -> int | None:
    """The payload length, when a good frame header stands here."""
    if at + FRAME_HEADER_BYTES > len(data):
        return None
    mark, length, offset, _, check = _FRAME.unpack_from(data, at)
    if mark != MARK or offset != base + at:
        return None
    if check != zlib.crc32(data[at : at + FRAME_HEADER_BYTES - 4], seed):
        return None
    return int(length)


def scan(data: bytes, base: int, seed: int) -> Scan:
    """All good frames from the start of data (which is at `base` in its file) to the first that is not."""
    payloads: list[tuple[int, bytes]] = []
    at = 0
    while at < len(data):
        length = _frame_length(data, at, base, seed)
        if length is None:
            cut = len(data) - at < FRAME_HEADER_BYTES
            wrong = "a frame header is cut off" if cut else "there is no good frame header"
            return Scan(tuple(payloads), base + at, wrong)
        start = at + FRAME_HEADER_BYTES
        payload = data[start : start + length]
        if len(payload) < length:
            return Scan(tuple(payloads), base + at, "a frame is cut off")
        if zlib.crc32(payload) != _FRAME.unpack_from(data, at)[3]:
            return Scan(tuple(payloads), base + at, "the checksum of a frame does not fit")
        payloads.append((base + at, payload))
        at = start + length
    return Scan(tuple(payloads), base + at, "")


def find_frame(data: bytes, base: int, seed: int) -> int | None:
    """The offset of the first good frame header behind the start of data: proof that more was written later."""
    at = data.find(MARK, 1)
    while at >= 0:
        if _frame_length(data, at, base, seed) is not None:
            return base + at
        at = data.find(MARK, at + 1)
    return None
