"""Frames: how a stream of bytes is cut into messages. Pure (bytes in, messages out).

    frame    length of the body (u32), number (u32), CRC-32 of these two (u32), CRC-32 of the body (u32), body

Integers are little endian. The number counts the frames of one direction of a connection from 0, so the reader notices a
frame that is lost, doubled or out of order on any transport. The head has a checksum of its own: a reader never waits for
the bytes of a length that was damaged. Anything else than the next whole frame is a ProtocolError: the connection ends,
and nothing of that frame is used.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Generic, TypeVar

from spark_jms.store.errors import ProtocolError

T = TypeVar("T")
MAX_FRAME_BYTES = 64 * 1024 * 1024
_HEAD = struct.Struct("<IIII")
_FIRST = struct.Struct("<II")


def frame(number: int, body: bytes, max_frame_bytes: int = MAX_FRAME_BYTES) -> bytes:
    if len(body) > max_frame_bytes:
        raise ProtocolError(f"a frame of {len(body)} bytes; at most {max_frame_bytes}")
    number &= 0xFFFFFFFF
    return _HEAD.pack(len(body), number, zlib.crc32(_FIRST.pack(len(body), number)), zlib.crc32(body)) + body


class FrameReader(Generic[T]):
    """The messages in the bytes of one connection, however the transport cuts them. `decode` turns a body into a message;
    a ValueError, TypeError, RecursionError or OverflowError of it becomes a ProtocolError."""

    def __init__(
        self, decode: Callable[[memoryview], T], max_frame_bytes: int = MAX_FRAME_BYTES, first: int = 0
    ) -> None:
        self._decode = decode
        self._buffer = bytearray()
        self._number = first
        self._max = max_frame_bytes
        self._broken = False

    def feed(self, data: bytes) -> list[T]:
        """Decodes whole frames where they lie and keeps only the beginning of the next one."""
        if self._broken:
            raise ProtocolError("the connection was given up")
        kept = self._buffer
        if kept:
            kept += data
        received = memoryview(kept or data)
        messages: list[T] = []
        start, size = 0, len(received)
        try:
            while size - start >= _HEAD.size:
                length, number, head_crc, crc = _HEAD.unpack_from(received, start)
                if zlib.crc32(received[start : start + _FIRST.size]) != head_crc:
                    raise ProtocolError(f"the head of frame {self._number} does not match its checksum")
                if length > self._max:
                    raise ProtocolError(f"a frame of {length} bytes; at most {self._max}")
                if number != self._number & 0xFFFFFFFF:
                    raise ProtocolError(f"frame {number} instead of {self._number}")
                end = start + _HEAD.size + length
                if size < end:
                    break
                messages.append(self._message(number, crc, received[start + _HEAD.size : end]))
                self._number += 1
                start = end
        except ProtocolError:
            self._broken, self._buffer = True, bytearray()
            raise
        if not kept:
            kept += received[start:]
        else:
            received.release()
            del kept[:start]
        return messages

    def _message(self, number: int, crc: int, body: memoryview) -> T:
        if zlib.crc32(body) != crc:
            raise ProtocolError(f"frame {number} does not match its checksum")
        try:
            return self._decode(body)
        except (ValueError, TypeError, RecursionError, OverflowError) as error:  # msgspec's errors are ValueErrors
            raise ProtocolError(f"frame {number}: {error}") from error
