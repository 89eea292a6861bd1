"""One connection over asyncio: mutual proof first, frames afterwards (R2, R17).

    listener                        who connects
    magic, nonce             ->
                             <-     magic, nonce, identity (SHA-256 of directory and cfg), proof
    one byte: K, M or A      ->     K and the listener's own proof; M = another directory or cfg; A = wrong proof

A proof is HMAC-SHA-256 over both nonces, keyed with the listener's secret file: whoever has it reads the directory.

A message is handed over in the turn of the event loop in which its last byte comes: a task that waits for it would cost
each write of the store one turn more on each of its four ways.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import cast

from spark_jms.store.errors import AuthenticationError, ClusterMismatchError, DaemonUnavailableError, ProtocolError
from spark_jms.store.regions.core.protocol import FrameReader, RegionMessage, encode

MAGIC = b"JMSQRS1\n"
NONCE_BYTES = 16
MAX_GREETING_BYTES = 4096  # who waits for its turn sends less
HANDSHAKE_TIMEOUT_S = 5.0
HIGH_WATER_BYTES = 64 * 1024 * 1024


def _proof(secret: bytes, side: bytes, theirs: bytes, mine: bytes) -> bytes:
    return hmac.new(secret, side + theirs + mine, hashlib.sha256).digest()


class Connection(asyncio.Protocol):
    """Bytes while the two greet each other, frames both ways afterwards. `send` never waits; `run` hands over what comes,
    until the end, and says why it ended. What nobody takes is not read: at most one piece of what came is kept.
    `made` is told of one that was accepted."""

    def __init__(self, made: Callable[[Connection], None] = lambda connection: None) -> None:
        self._made = made
        self._transport: asyncio.Transport
        self._greeting: bytearray | None = bytearray()  # None once frames come
        self._frames = FrameReader()
        self._number = 0
        self._messages: deque[RegionMessage] = deque()  # came, and nobody took them yet
        self._receive: Callable[[RegionMessage], None] | None = None
        self._waits_for_writing = False
        self._writing_paused = False
        self._reading_paused = False
        self._fault: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.closed = False
        self.heard_s = time.monotonic()

    # ---- what the event loop tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        raw = transport.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._made(self)

    def data_received(self, data: bytes) -> None:
        self.heard_s = time.monotonic()
        try:
            if self._greeting is None:
                self._messages += self._frames.feed(data)
                self._hand_over()
            else:
                self._greeting += data
                if len(self._greeting) > MAX_GREETING_BYTES:
                    raise ProtocolError("not this protocol")
                self._wake()
        except ProtocolError as error:
            self._end(error)

    def eof_received(self) -> None:
        self._end(ConnectionError("the other side hung up"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionError("the other side hung up"))

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._hand_over()

    # ---- what came

    def _hand_over(self) -> None:
        """All that came; what cannot be taken now waits, and nothing more is read until it was."""
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
        """Something came, or it ended: one waits at a time."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    # ---- the handshake

    async def exactly(self, size: int) -> bytes:
        """Bytes of the greeting."""
        assert self._greeting is not None
        while len(self._greeting) < size:
            self._check()
            await self._change()
        found = bytes(self._greeting[:size])
        del self._greeting[:size]
        return found

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def greeted(self) -> None:
        """From here on, frames. Whatever came too early for that is part of them."""
        early, self._greeting = bytes(self._greeting or b""), None
        if early:
            self.data_received(early)

    async def first(self, timeout_s: float = HANDSHAKE_TIMEOUT_S) -> RegionMessage:
        """The first message; whatever came with it is kept for `run`."""
        await asyncio.wait_for(self._came(), timeout_s)
        return self._messages.popleft()

    async def _came(self) -> None:
        while not self._messages:
            self._check()
            await self._change()

    def _check(self) -> None:
        if self._fault is not None:
            raise self._fault
        if self.closed:
            raise ConnectionError("it was closed")

    # ---- frames

    def send(self, message: RegionMessage) -> None:
        if self.closed:
            return
        if self._transport.is_closing():  # lost a moment ago; `run` is about to find out
            self.closed = True
            return
        self._transport.write(encode(self._number, message))
        self._number += 1

    @property
    def unsent_bytes(self) -> int:
        return 0 if self.closed or self._transport.is_closing() else self._transport.get_write_buffer_size()

    async def run(self, receive: Callable[[RegionMessage], None], waits_for_writing: bool = False) -> str:
        """`waits_for_writing`: what was answered is taken before more is asked. Not between daemons, which would wait
        for each other."""
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
        """Close; what the other side has not taken yet is not waited for."""
        if self.unsent_bytes:
            self.abort()
        else:
            self.close()

    def abandon(self) -> None:
        """In a forked child: close its copy of the descriptor, nothing more."""
        self.closed = True
        raw = self._transport.get_extra_info("socket")
        if raw is not None and raw.fileno() >= 0:
            os.close(raw.fileno())

    def abort(self) -> None:
        self.closed = True
        self._transport.abort()
        self._wake()


async def listen_handshake(connection: Connection, secret: bytes, identity: bytes) -> None:
    """The listener's side. Raises, with the connection closed, before the first frame."""
    try:
        await asyncio.wait_for(_listen(connection, secret, identity), HANDSHAKE_TIMEOUT_S)
    except BaseException:
        connection.close()
        raise


async def _listen(connection: Connection, secret: bytes, identity: bytes) -> None:
    nonce = os.urandom(NONCE_BYTES)
    connection.write(MAGIC + nonce)
    if await connection.exactly(len(MAGIC)) != MAGIC:
        raise ProtocolError("not this protocol")
    theirs = await connection.exactly(NONCE_BYTES)
    same = hmac.compare_digest(await connection.exactly(32), identity)
    proof = await connection.exactly(32)
    if not same:
        connection.write(b"M")
        raise ClusterMismatchError("a connection from another directory, or with another rs_daemons.cfg")
    if not hmac.compare_digest(proof, _proof(secret, b"connects" + identity, nonce, theirs)):
        connection.write(b"A")
        raise AuthenticationError("a connection that could not prove that it reads the directory")
    connection.write(b"K" + _proof(secret, b"listens", theirs, nonce))
    connection.greeted()


async def connect(host: str, port: int, secret: bytes, identity: bytes) -> Connection:
    """DaemonUnavailableError, ClusterMismatchError or AuthenticationError."""
    where = f"{host}:{port}"
    loop = asyncio.get_running_loop()
    try:
        _, connection = await asyncio.wait_for(loop.create_connection(Connection, host, port), HANDSHAKE_TIMEOUT_S)
    except (OSError, asyncio.TimeoutError) as error:
        raise DaemonUnavailableError(f"{where}: {error or 'no answer'}") from error
    try:
        await asyncio.wait_for(_greet(connection, where, secret, identity), HANDSHAKE_TIMEOUT_S)
    except (OSError, asyncio.TimeoutError) as error:
        connection.close()
        raise DaemonUnavailableError(f"{where}: {error or 'no answer'}") from error
    except BaseException:
        connection.close()
        raise
    return connection


async def _greet(connection: Connection, where: str, secret: bytes, identity: bytes) -> None:
    if await connection.exactly(len(MAGIC)) != MAGIC:
        raise ProtocolError(f"{where} does not speak this protocol")
    theirs, nonce = await connection.exactly(NONCE_BYTES), os.urandom(NONCE_BYTES)
    connection.write(MAGIC + nonce + identity + _proof(secret, b"connects" + identity, theirs, nonce))
    answer = await connection.exactly(1)
    if answer == b"M":
        raise ClusterMismatchError(f"the daemon at {where} runs with another directory or another rs_daemons.cfg")
    if answer != b"K":
        raise AuthenticationError(f"the daemon at {where} refused the proof")
    if not hmac.compare_digest(await connection.exactly(32), _proof(secret, b"listens", nonce, theirs)):
        raise AuthenticationError(f"whoever listens at {where} is not the daemon of this directory")
    connection.greeted()
