"""The wire: frames to messages and back. Pure (bytes in, messages out).

    frame    length of the body (u32), number (u32), CRC-32 of these two (u32), CRC-32 of the body (u32),
             body: one message in msgpack

The number counts the frames of a connection from 0, so a frame that is lost, doubled or out of order is noticed on any
transport. Whatever does not fit is a ProtocolError: the connection ends, and nothing of the frame is used.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import msgspec

from spark_jms.store.errors import ProtocolError

MAX_FRAME_BYTES = 64 * 1024 * 1024
MAX_BODY_BYTES = 56 * 1024 * 1024  # of the region's bytes in one frame, either way
_HEAD = struct.Struct("<IIII")
_FIRST = struct.Struct("<II")


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


# ---- between daemons


class Hello(Message, frozen=True):
    """The first frame of every connection, both ways. `role`: daemon, client or admin."""

    role: str
    index: int
    incarnation: str
    client: str = ""


class Heartbeat(Message, frozen=True):
    """Every heartbeat_ms on every connection between daemons: what others need to know for placement and for `lsd`."""

    used_bytes: int
    limit_bytes: int
    draining: bool
    started_us: int
    now_us: int
    regions_closed: int
    regions_open_primary: int
    regions_open_replica: int
    resilvers: int
    clock_ms: float  # the sender's own
    echo_ms: float  # the receiver's, as it last came here; -1 = never


class Begin(Message, frozen=True):
    """Item 1 of a stream: make an empty copy of this region, of zeros."""

    stream: str
    name: str
    region_id: str
    epoch: int
    size: int


class Adopt(Message, frozen=True):
    """Item 1 of a stream on a copy that is complete: from now on it follows the sender."""

    stream: str
    name: str
    region_id: str
    epoch: int


class Replicate(Message, frozen=True):
    """Item `seq` of a stream: byte writes, applied together. A resilvered chunk is a Replicate as any other."""

    stream: str
    name: str
    epoch: int
    seq: int
    writes: list[tuple[int, bytes]]


class Ack(Message, frozen=True):
    """All items up to `seq` are in the copy."""

    stream: str
    seq: int


class Refused(Message, frozen=True):
    """The follower does not follow, or not any more. `reason`: stale, memory, unknown."""

    stream: str
    reason: str


class MoveRequest(Message, frozen=True):
    """Whoever is primary of this closed region: bring it to the sender (R9)."""

    name: str


class Notice(Message, frozen=True):
    """The directory says something new of this region: read it."""

    name: str


class Usage(Message, frozen=True):
    """How many bytes of a region are taken, as the store that has it open told the sender."""

    name: str
    used_bytes: int


class RemoveRequest(Message, frozen=True):
    """To the primary: delete this region."""

    name: str
    force: bool
    request: int


class Drain(Message, frozen=True):
    """Move all copies away, then stop (R4)."""


class Halt(Message, frozen=True):
    """Stop now."""


# ---- from clients and administrators; every request is answered by Reply or Failure with its number


class Open(Message, frozen=True):
    request: int
    name: str
    size: int  # of a new region, which must not exist; 0 = it must exist


class Close(Message, frozen=True):
    request: int
    name: str


class WriteRegion(Message, frozen=True):
    """Writes (offset, bytes) and moves (to, (from, length)), in order, together."""

    request: int
    name: str
    epoch: int
    steps: list[tuple[int, bytes | tuple[int, int]]]


class ReadRegion(Message, frozen=True):
    request: int
    name: str
    epoch: int
    offset: int
    length: int


class Regions(Message, frozen=True):
    """With a prefix: the entries of the directory whose name begins so."""

    request: int
    prefix: str


class Daemons(Message, frozen=True):
    request: int


class Remove(Message, frozen=True):
    request: int
    name: str
    force: bool


class Shutdown(Message, frozen=True):
    request: int
    indexes: list[int]
    force: bool


class Ping(Message, frozen=True):
    """A client's sign of life, and how many bytes are taken of its regions, where that has changed."""

    used: list[tuple[str, int]] = []


class Reply(Message, frozen=True):
    request: int
    value: Any = None


class Failure(Message, frozen=True):
    """`error` is the name of a class of store.errors, `arguments` what it is made of."""

    request: int
    error: str
    arguments: list[Any]


class Lost(Message, frozen=True):
    """To a client: you do not have this region open any more."""

    name: str
    reason: str


AnyMessage = (
    Hello | Heartbeat | Begin | Adopt | Replicate | Ack | Refused | MoveRequest | Notice | Usage | RemoveRequest | Drain
    | Halt | Open | Close | WriteRegion | ReadRegion | Regions | Daemons | Remove | Shutdown | Ping | Reply | Failure | Lost
)  # fmt: skip


_encoder = msgspec.msgpack.Encoder()


def encode(number: int, message: Message) -> bytes:
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(f"a frame of {len(body)} bytes; at most {MAX_FRAME_BYTES}")
    number &= 0xFFFFFFFF
    return _HEAD.pack(len(body), number, zlib.crc32(_FIRST.pack(len(body), number)), zlib.crc32(body)) + body


class FrameReader:
    """Bytes of one connection, in any cut, to its messages."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES, first: int = 0) -> None:
        self._buffer = bytearray()
        self._number = first
        self._max = max_frame_bytes
        self._broken = False

    def feed(self, data: bytes) -> list[Message]:
        """Whole frames are read where they lie; only the beginning of one that is not whole yet is kept."""
        if self._broken:
            raise ProtocolError("the connection was given up")
        kept = self._buffer
        if kept:
            kept += data
        came = memoryview(kept or data)
        messages: list[Message] = []
        start, size = 0, len(came)
        try:
            while size - start >= _HEAD.size:
                length, number, head_crc, crc = _HEAD.unpack_from(came, start)
                if zlib.crc32(came[start : start + _FIRST.size]) != head_crc:
                    raise ProtocolError(f"the head of frame {self._number} does not fit its checksum")
                if length > self._max:
                    raise ProtocolError(f"a frame of {length} bytes; at most {self._max}")
                if number != self._number & 0xFFFFFFFF:
                    raise ProtocolError(f"frame {number} instead of {self._number}")
                end = start + _HEAD.size + length
                if size < end:
                    break
                messages.append(_decode(number, crc, came[start + _HEAD.size : end]))
                self._number += 1
                start = end
        except ProtocolError:
            self._broken, self._buffer = True, bytearray()
            raise
        if not kept:
            kept += came[start:]
        else:
            came.release()
            del kept[:start]
        return messages


def _decode(number: int, crc: int, body: memoryview) -> Message:
    if zlib.crc32(body) != crc:
        raise ProtocolError(f"frame {number} does not fit its checksum")
    try:
        message: Message = _decoder.decode(body)
        return message
    except (
        ValueError,
        TypeError,
        RecursionError,
        OverflowError,
    ) as error:  # DecodeError and UnicodeDecodeError are ValueErrors
        raise ProtocolError(f"frame {number}: {error}") from error


_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(AnyMessage)
