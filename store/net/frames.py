"""The bytes of a connection: the handshake that opens it, then frames, which cut the stream into messages. Pure (no I/O).

    frame    length of the body (u32), number (u32), CRC-32 of these two (u32), CRC-32 of the body (u32), body

Integers are little endian. The number counts the frames of one direction of a connection from 0, so the reader notices a
frame that is lost, doubled or out of order on any transport. The head has a checksum of its own: a reader never waits for
the bytes of a length that was damaged. Anything else than the next whole frame is a ProtocolError: the connection ends,
and nothing of that frame is used.

The handshake is the mutual proof of a secret:

    listener                        connector
    magic, nonce             ->
                             <-     magic, nonce, identity, proof
    one byte: K, M or A      ->     K and the listener's own proof; M = another identity; A = wrong proof

The magic names the service and the version of its protocol: a peer of another version is refused by name. The identity is
what both sides must agree on: the configuration of a cluster, or which engine the connector means. A proof is
HMAC-SHA-256, keyed with the secret, over the side that proves, the magic, the identity and both nonces. So no proof can be
replayed, sent back to its maker, or used at another service.

A handshake is a table of steps for each side. A step waits for a number of bytes, and its method decides on them; it
queues the answer or raises the error with which the handshake ends.

Features: R2, R16, R17 (docs/FEATURES.md)
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

from spark_jms.store.errors import AuthenticationError, ClusterMismatchError, ProtocolError, StoreError

T = TypeVar("T")
MAX_FRAME_BYTES = 64 * 1024 * 1024
_HEAD = struct.Struct("<IIII")
_FIRST = struct.Struct("<II")
NONCE_BYTES = PROOF_BYTES = IDENTITY_BYTES = 32
_MAGIC_BYTES = 8
_PROVED, _MISMATCH, _REFUSED = b"K", b"M", b"A"


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


# -- the handshake -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Service:
    """`code` is six bytes; `title` and `identity` are words for errors: the {title} at HOST:PORT has another {identity}."""

    code: bytes
    version: int  # one digit
    title: str
    identity: str

    @property
    def magic(self) -> bytes:
        return self.code + b"%d\n" % self.version


class State(Enum):
    MAGIC = auto()
    CLAIM = auto()
    NONCE = auto()
    VERDICT = auto()
    PROOF = auto()
    PROVED = auto()
    FAILED = auto()


@dataclass(frozen=True)
class HandshakeStep:
    length: int
    decide: Callable[[Handshake, bytes], None]
    then: State


class Handshake:
    """One side. Send `begin()`, then pass everything that the peer sends to `receive`, and send what it returns, also when
    it has failed. When `proved`, `rest` holds the bytes that came after the handshake. `nonce` is never used twice."""

    def __init__(
        self,
        table: dict[State, HandshakeStep],
        service: Service,
        secret: bytes,
        identity: bytes,
        nonce: bytes,
        peer: str,
    ) -> None:
        self.service = service
        self.failure: StoreError | None = None
        self.rest = b""
        self._table = table
        self._secret = secret
        self._identity = hashlib.sha256(identity).digest()
        self._nonce = nonce
        self._peer = peer
        self._state = State.MAGIC
        self._buffer = b""
        self._answer = b""

    @classmethod
    def listener(cls, service: Service, secret: bytes, identity: bytes, nonce: bytes) -> Handshake:
        return cls(_LISTENER, service, secret, identity, nonce, "a connector")

    @classmethod
    def connector(cls, service: Service, secret: bytes, identity: bytes, nonce: bytes, where: str) -> Handshake:
        return cls(_CONNECTOR, service, secret, identity, nonce, f"the {service.title} at {where}")

    @property
    def proved(self) -> bool:
        return self._state is State.PROVED

    def begin(self) -> bytes:
        return self.service.magic + self._nonce if self._table is _LISTENER else b""

    def receive(self, data: bytes) -> bytes:
        """The bytes to send in answer. It keeps at most one unfinished step of what the peer has sent."""
        self._buffer += data
        self._answer = b""
        while (step := self._table.get(self._state)) and len(self._buffer) >= step.length:
            piece, self._buffer = self._buffer[: step.length], self._buffer[step.length :]
            try:
                step.decide(self, piece)
            except StoreError as error:
                self.failure, self._state, self._buffer = error, State.FAILED, b""
            else:
                self._state = step.then
        if step is None:  # proved or failed
            self.rest, self._buffer = self._buffer if self.proved else b"", b""
        return self._answer

    # ---- the steps

    def _check_magic(self, magic: bytes) -> None:
        service = self.service
        if magic == service.magic:
            return
        if magic.startswith(service.code):
            version = magic[len(service.code) :].decode("ascii", "replace").strip()
            raise ProtocolError(f"{self._peer} speaks version {version} of this protocol, not {service.version}")
        raise ProtocolError(f"{self._peer} does not speak this protocol")

    def _judge_claim(self, claim: bytes) -> None:
        nonce, identity, proof = claim[:NONCE_BYTES], claim[NONCE_BYTES:-PROOF_BYTES], claim[-PROOF_BYTES:]
        if not hmac.compare_digest(identity, self._identity):
            self._answer = _MISMATCH
            raise ClusterMismatchError(f"{self._peer} has another {self.service.identity}")
        if not hmac.compare_digest(proof, self._proof(b"connector", self._nonce, nonce)):
            self._answer = _REFUSED
            raise AuthenticationError(f"{self._peer} could not prove that it knows the secret")
        self._answer = _PROVED + self._proof(b"listener", self._nonce, nonce)

    def _claim(self, nonce: bytes) -> None:
        self._theirs = nonce
        proof = self._proof(b"connector", nonce, self._nonce)
        self._answer = self.service.magic + self._nonce + self._identity + proof

    def _hear_verdict(self, verdict: bytes) -> None:
        if verdict == _MISMATCH:
            raise ClusterMismatchError(f"{self._peer} has another {self.service.identity}")
        if verdict != _PROVED:
            raise AuthenticationError(f"{self._peer} refused the proof")

    def _check_proof(self, proof: bytes) -> None:
        if not hmac.compare_digest(proof, self._proof(b"listener", self._theirs, self._nonce)):
            raise AuthenticationError(f"{self._peer} does not know the secret")

    def _proof(self, side: bytes, listener_nonce: bytes, connector_nonce: bytes) -> bytes:
        proved = side + self.service.magic + self._identity + listener_nonce + connector_nonce
        return hmac.new(self._secret, proved, hashlib.sha256).digest()


_LISTENER = {
    State.MAGIC: HandshakeStep(_MAGIC_BYTES, Handshake._check_magic, State.CLAIM),
    State.CLAIM: HandshakeStep(NONCE_BYTES + IDENTITY_BYTES + PROOF_BYTES, Handshake._judge_claim, State.PROVED),
}
_CONNECTOR = {
    State.MAGIC: HandshakeStep(_MAGIC_BYTES, Handshake._check_magic, State.NONCE),
    State.NONCE: HandshakeStep(NONCE_BYTES, Handshake._claim, State.VERDICT),
    State.VERDICT: HandshakeStep(len(_PROVED), Handshake._hear_verdict, State.PROOF),
    State.PROOF: HandshakeStep(PROOF_BYTES, Handshake._check_proof, State.PROVED),
}
