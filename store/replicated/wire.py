"""One connection over asyncio: mutual proof first, frames afterwards (R2, R17).

    listener                        who connects
    magic, nonce             ->
                             <-     magic, nonce, identity (SHA-256 of directory and cfg), proof
    one byte: K, M or A      ->     K and the listener's own proof; M = another directory or cfg; A = wrong proof

A proof is HMAC-SHA-256 over both nonces, keyed with the listener's secret file: whoever has it reads the directory.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import socket
import time
from collections.abc import Callable

from store.errors import AuthenticationError, ClusterMismatchError, DaemonUnavailableError, ProtocolError
from store.replicated.core.protocol import FrameReader, Message, encode

MAGIC = b"JMSQRS1\n"
NONCE_BYTES = 16
HANDSHAKE_TIMEOUT_S = 5.0
HIGH_WATER_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 1 << 20


def _proof(secret: bytes, side: bytes, theirs: bytes, mine: bytes) -> bytes:
    return hmac.new(secret, side + theirs + mine, hashlib.sha256).digest()


class Connection:
    """Frames both ways. `send` never waits; `run` reads until the end and says why it ended."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._frames = FrameReader()
        self._number = 0
        self._early: list[Message] = []
        self.closed = False
        self.heard_s = time.monotonic()
        raw = writer.get_extra_info("socket")
        if raw is not None and raw.family in (socket.AF_INET, socket.AF_INET6):
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        writer.transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def send(self, message: Message) -> None:
        if self.closed:
            return
        if self._writer.transport.is_closing():  # lost a moment ago; `run` is about to find out
            self.closed = True
            return
        self._writer.write(encode(self._number, message))
        self._number += 1

    @property
    def unsent_bytes(self) -> int:
        return (
            0 if self.closed or self._writer.transport.is_closing() else self._writer.transport.get_write_buffer_size()
        )

    async def drain(self) -> None:
        await self._writer.drain()

    async def first(self, timeout_s: float = HANDSHAKE_TIMEOUT_S) -> Message:
        """The first message; whatever came with it is kept for `run`."""
        await asyncio.wait_for(self._read_early(), timeout_s)
        return self._early.pop(0)

    async def _read_early(self) -> None:
        while not self._early:
            self._early += await self._read()

    async def run(self, receive: Callable[[Message], None], waits_for_writing: bool = False) -> str:
        """`waits_for_writing`: what was answered is taken before more is asked. Not between daemons, which would wait
        for each other."""
        try:
            early, self._early = self._early, []
            for message in early:
                receive(message)
            while not self.closed:
                for message in await self._read():
                    receive(message)
                    if waits_for_writing:
                        await self._writer.drain()
        except (OSError, ProtocolError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            self.close()
        return "closed"

    async def _read(self) -> list[Message]:
        data = await self._reader.read(CHUNK_BYTES)
        if not data:
            raise ConnectionError("the other side hung up")
        self.heard_s = time.monotonic()
        return self._frames.feed(data)

    def close(self) -> None:
        self.closed = True
        if not self._writer.transport.is_closing():
            self._writer.close()

    def leave(self) -> None:
        """Close; what the other side has not taken yet is not waited for."""
        if self.unsent_bytes:
            self.abort()
        else:
            self.close()

    def abandon(self) -> None:
        """In a forked child: close its copy of the descriptor, nothing more."""
        self.closed = True
        raw = self._writer.get_extra_info("socket")
        if raw is not None and raw.fileno() >= 0:
            os.close(raw.fileno())

    def abort(self) -> None:
        self.closed = True
        self._writer.transport.abort()


async def listen_handshake(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, identity: bytes
) -> Connection:
    """The listener's side. Raises, with the connection closed, before the first frame."""
    try:
        await asyncio.wait_for(_listen(reader, writer, secret, identity), HANDSHAKE_TIMEOUT_S)
    except BaseException:
        writer.close()
        raise
    return Connection(reader, writer)


async def _listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, secret: bytes, identity: bytes) -> None:
    nonce = os.urandom(NONCE_BYTES)
    writer.write(MAGIC + nonce)
    if await reader.readexactly(len(MAGIC)) != MAGIC:
        raise ProtocolError("not this protocol")
    theirs = await reader.readexactly(NONCE_BYTES)
    same = hmac.compare_digest(await reader.readexactly(32), identity)
    proof = await reader.readexactly(32)
    if not same:
        await _refuse(writer, b"M")
        raise ClusterMismatchError("a connection from another directory, or with another rs_daemons.cfg")
    if not hmac.compare_digest(proof, _proof(secret, b"connects" + identity, nonce, theirs)):
        await _refuse(writer, b"A")
        raise AuthenticationError("a connection that could not prove that it reads the directory")
    writer.write(b"K" + _proof(secret, b"listens", theirs, nonce))


async def _refuse(writer: asyncio.StreamWriter, answer: bytes) -> None:
    writer.write(answer)
    await writer.drain()


async def connect(host: str, port: int, secret: bytes, identity: bytes) -> Connection:
    """DaemonUnavailableError, ClusterMismatchError or AuthenticationError."""
    where = f"{host}:{port}"
    try:
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(host, port, limit=4 * CHUNK_BYTES), HANDSHAKE_TIMEOUT_S
        )
    except (OSError, asyncio.TimeoutError) as error:
        raise DaemonUnavailableError(f"{where}: {error or 'no answer'}") from error
    try:
        await asyncio.wait_for(_greet(reader, writer, where, secret, identity), HANDSHAKE_TIMEOUT_S)
    except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError) as error:
        writer.close()
        raise DaemonUnavailableError(f"{where}: {error or 'no answer'}") from error
    except BaseException:
        writer.close()
        raise
    return Connection(reader, writer)


async def _greet(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, where: str, secret: bytes, identity: bytes
) -> None:
    if await reader.readexactly(len(MAGIC)) != MAGIC:
        raise ProtocolError(f"{where} does not speak this protocol")
    theirs, nonce = await reader.readexactly(NONCE_BYTES), os.urandom(NONCE_BYTES)
    writer.write(MAGIC + nonce + identity + _proof(secret, b"connects" + identity, theirs, nonce))
    answer = await reader.readexactly(1)
    if answer == b"M":
        raise ClusterMismatchError(f"the daemon at {where} runs with another directory or another rs_daemons.cfg")
    if answer != b"K":
        raise AuthenticationError(f"the daemon at {where} refused the proof")
    if not hmac.compare_digest(await reader.readexactly(32), _proof(secret, b"listens", nonce, theirs)):
        raise AuthenticationError(f"whoever listens at {where} is not the daemon of this directory")
