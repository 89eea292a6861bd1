"""A blocking socket, plain or TLS, with the handshake and frames on it. One thread at a time."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from spark_jms.store.net.frames import FrameReader, frame
from spark_jms.store.net.handshake import Handshake

T = TypeVar("T")
RECEIVE_BYTES = 64 * 1024


def hang_up(connection: socket.socket) -> None:
    """From any thread: a thread that waits for this connection finds its end. On TLS, only the layer below is touched."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class Channel(Generic[T]):
    """Every method raises OSError when the connection ends, and ProtocolError when the peer breaks the protocol."""

    def __init__(
        self,
        connection: socket.socket,
        encode: Callable[[T], bytes],
        decode: Callable[[memoryview], T],
        max_frame_bytes: int,
    ) -> None:
        self._socket = connection
        self._encode = encode
        self._max_frame_bytes = max_frame_bytes
        self._reader = FrameReader(decode, max_frame_bytes)
        self._received: deque[T] = deque()
        self._sent = 0

    def prove(self, handshake: Handshake) -> None:
        """Raises the handshake's failure, after the peer was told."""
        self._socket.sendall(handshake.begin())
        while not handshake.proved:
            self._socket.sendall(handshake.receive(self._some()))
            if handshake.failure is not None:
                raise handshake.failure
        self._received += self._reader.feed(handshake.rest)

    def send(self, message: T) -> None:
        self._socket.sendall(frame(self._sent, self._encode(message), self._max_frame_bytes))
        self._sent += 1

    def receive(self) -> T:
        while not self._received:
            self._received += self._reader.feed(self._some())
        return self._received.popleft()

    def _some(self) -> bytes:
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the peer closed the connection")
        return data
