"""One connection between daemons, or of a client and a daemon, over asyncio: the handshake, then frames.

The connection hands a message over in the turn of the event loop in which its last byte arrives: a task that waits for it
would cost each write of the store one turn more on each of its four ways.

Features: R2, R17 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import cast

from spark_jms.store.errors import DaemonUnavailableError, ProtocolError, StoreError
from spark_jms.store.net.frames import NONCE_BYTES, Handshake, Service
from spark_jms.store.regions.protocol.messages import RegionMessage, encode, message_reader

DAEMON = Service(b"JMSQRS", 2, "daemon", "directory or another rs_daemons.cfg")
HANDSHAKE_TIMEOUT_S = 5.0
HIGH_WATER_BYTES = 64 * 1024 * 1024


class DaemonConnection(asyncio.Protocol):
    """`proved` waits for the handshake. `send` never waits. `run` hands over the messages until the end and returns why it
    ended. The connection stops reading while messages wait to be consumed, so it keeps at most what one read has brought.
    `made` is called with a connection that a listener accepted."""

    def __init__(
        self, handshake: Handshake, made: Callable[[DaemonConnection], None] = lambda connection: None
    ) -> None:
        self._handshake: Handshake | None = handshake  # None once it is done and frames follow
        self._made = made
        self._transport: asyncio.Transport
        self._frames = message_reader()
        self._number = 0
        self._messages: deque[RegionMessage] = deque()  # received and not consumed yet
        self._receive: Callable[[RegionMessage], None] | None = None
        self._waits_for_writing = False
        self._writing_paused = False
        self._reading_paused = False
        self._fault: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self.heard_s = self._loop.time()

    # ---- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        if self._handshake is not None:
            self._transport.write(self._handshake.begin())
        self._made(self)

    def data_received(self, data: bytes) -> None:
        self.heard_s = self._loop.time()
        try:
            if self._handshake is not None:
                data = self._shake(self._handshake, data)
            self._messages += self._frames.feed(data)
            self._hand_over()
        except StoreError as error:
            self._end(error)

    def _shake(self, handshake: Handshake, data: bytes) -> bytes:
        """The bytes that follow the handshake, if it is done."""
        self._transport.write(handshake.receive(data))
        if handshake.failure is not None:
            raise handshake.failure
        if handshake.proved:
            self._handshake = None
            self._wake()
        return handshake.rest

    def eof_received(self) -> None:
        self._end(ConnectionError("the peer closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionError("the peer closed the connection"))

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._hand_over()

    # ---- messages

    def _hand_over(self) -> None:
        """Hands over every message that the receiver takes now. While one waits, the connection stops reading."""
        messages = self._messages
        while messages and not self.closed:
            if self._receive is None or (self._waits_for_writing and self._writing_paused):
                self._pause_reading()
                self._wake()
                return
            try:
                self._receive(messages.popleft())
            except Exception as error:  # noqa: BLE001 - `run` raises it
                self._end(error)
        self._resume_reading()

    def _pause_reading(self) -> None:
        if not self._reading_paused and not self._transport.is_closing():
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and not self._transport.is_closing():
            self._reading_paused = False
            self._transport.resume_reading()

    def _end(self, error: Exception) -> None:
        self._fault = self._fault or error
        self.close()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _change(self) -> None:
        """Data arrived, or the connection ended. One task waits at a time."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    # ---- the beginning

    async def proved(self) -> None:
        """Returns once both sides have proved themselves. Otherwise raises why not, with the connection closed."""
        try:
            await asyncio.wait_for(self._wait_for(lambda: self._handshake is None), HANDSHAKE_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    async def first(self, timeout_s: float = HANDSHAKE_TIMEOUT_S) -> RegionMessage:
        """The first message. `run` hands over the ones after it."""
        await asyncio.wait_for(self._wait_for(lambda: bool(self._messages)), timeout_s)
        return self._messages.popleft()

    async def _wait_for(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._check()
            await self._change()

    def _check(self) -> None:
        if self._fault is not None:
            raise self._fault
        if self.closed:
            raise ConnectionError("the connection was closed")

    # ---- frames

    def send(self, message: RegionMessage) -> None:
        if self.closed:
            return
        if self._transport.is_closing():  # just lost; `run` is about to notice
            self.closed = True
            return
        self._transport.write(encode(self._number, message))
        self._number += 1

    @property
    def unsent_bytes(self) -> int:
        return 0 if self.closed or self._transport.is_closing() else self._transport.get_write_buffer_size()

    async def run(self, receive: Callable[[RegionMessage], None], waits_for_writing: bool = False) -> str:
        """`waits_for_writing`: the peer must take its answers before the connection reads its next requests. Not between
        daemons, which would wait for each other."""
        self._receive, self._waits_for_writing = receive, waits_for_writing
        try:
            self._hand_over()
            while not self.closed:
                await self._change()
            if self._fault is not None:
                raise self._fault
        except (OSError, ProtocolError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            self.close()
        return "closed"

    def close(self) -> None:
        self.closed = True
        self._transport.close()
        self._wake()

    def leave(self) -> None:
        """Closes without waiting for the peer to take what was sent."""
        if self.unsent_bytes:
            self.abort()
        else:
            self.close()

    def abandon(self) -> None:
        """In a forked child: closes its copy of the descriptor and sends nothing."""
        self.closed = True
        raw = self._transport.get_extra_info("socket")
        if raw is not None and raw.fileno() >= 0:
            os.close(raw.fileno())

    def abort(self) -> None:
        self.closed = True
        self._transport.abort()
        self._wake()


def accepted(secret: bytes, identity: bytes, made: Callable[[DaemonConnection], None]) -> DaemonConnection:
    """For a listener: one for each connection."""
    return DaemonConnection(Handshake.listener(DAEMON, secret, identity, os.urandom(NONCE_BYTES)), made)


async def connect(host: str, port: int, secret: bytes, identity: bytes) -> DaemonConnection:
    """DaemonUnavailableError, ClusterMismatchError, AuthenticationError or ProtocolError."""
    where = f"{host}:{port}"
    handshake = Handshake.connector(DAEMON, secret, identity, os.urandom(NONCE_BYTES), where)
    loop = asyncio.get_running_loop()
    try:
        made = loop.create_connection(lambda: DaemonConnection(handshake), host, port)
        _, connection = await asyncio.wait_for(made, HANDSHAKE_TIMEOUT_S)
        await connection.proved()
    except (OSError, asyncio.TimeoutError) as error:
        raise DaemonUnavailableError(f"{where}: {error or 'no answer'}") from error
    return connection
