"""What engine and clients say to each other, as bytes. Pure.

    frame    length of the body (4 bytes, little endian), crc32 of the body (4 bytes), body
    body     one message in msgpack (msgspec); ledger entries in it as store/ledger/codec.py writes them

The engine speaks first (`Challenge`); the client proves that it knows the secret the engine published in the place both
can read, and the engine proves the same. From then on the client asks, the engine answers, one by one.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib

import msgspec

from spark_jms.store.engine.entry_log import Page, Verdict
from spark_jms.store.errors import StoreError
from spark_jms.store.ledger.codec import decode, encode
from spark_jms.store.ledger.ledger import Entry

WIRE_VERSION = 2
_HEAD = struct.Struct("<II")
HEAD_BYTES = _HEAD.size
FRAME_LIMIT_BYTES = 1 << 30
GREETING_LIMIT_BYTES = 4096  # of whoever has proved nothing yet


class WireError(Exception):
    """The other side sent what is no frame or no message: the connection is of no use any more."""


class Challenge(msgspec.Struct, frozen=True, array_like=True, tag="challenge"):
    version: int
    incarnation: str
    nonce: bytes


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    version: int
    client_id: str
    nonce: bytes
    proof: bytes


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag="welcome"):
    session_timeout_ms: float
    proof: bytes


class Fetch(msgspec.Struct, frozen=True, array_like=True, tag="fetch"):
    incarnation: str
    position: int


class Append(msgspec.Struct, frozen=True, array_like=True, tag="append"):
    incarnation: str
    position: int
    token: str
    base: int
    again: bool
    entries: bytes


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    session_ids: tuple[str, ...]


class Alive(msgspec.Struct, frozen=True, array_like=True, tag="alive"):
    """As a question: which of these? As an answer: these."""

    session_ids: tuple[str, ...]


class Paged(msgspec.Struct, frozen=True, array_like=True, tag="paged"):
    """The answer to Fetch and Append; `verdict` is "" to a Fetch."""

    incarnation: str
    verdict: str
    position: int
    snapshot: bool
    entries: bytes


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    pass


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag="refusal"):
    """An error of store/errors.py by its name; name "" when the engine is the engine no more."""

    name: str
    facts: tuple[str | int | None, ...]


Question = Fetch | Append | Beat | Alive
Answer = Paged | Alive | Done | Refusal
Any_ = Challenge | Hello | Welcome | Fetch | Append | Beat | Alive | Paged | Done | Refusal

_decoder: msgspec.msgpack.Decoder[Any_] = msgspec.msgpack.Decoder(Any_)
_encoder = msgspec.msgpack.Encoder()


def frame(message: Any_) -> bytes:
    body = _encoder.encode(message)
    if len(body) > FRAME_LIMIT_BYTES:
        raise WireError(f"a message of {len(body)} bytes")
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def body_length(head: bytes, limit_bytes: int = FRAME_LIMIT_BYTES) -> int:
    length = int(_HEAD.unpack(head)[0])
    if length > limit_bytes:
        raise WireError(f"a frame of {length} bytes")
    return length


def unframe(head: bytes, body: bytes) -> Any_:
    if zlib.crc32(body) != _HEAD.unpack(head)[1]:
        raise WireError("the checksum of a frame does not fit")
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise WireError(f"no message: {error}") from error


def proof(secret: bytes, side: bytes, nonce: bytes, client_id: str) -> bytes:
    """`side` says who proves, so that nobody is answered with his own question."""
    return hmac.new(secret, side + nonce + client_id.encode(), hashlib.sha256).digest()


def paged(incarnation: str, verdict: Verdict | None, page: Page) -> Paged:
    return Paged(incarnation, verdict.value if verdict else "", page.position, page.snapshot, encode(page.entries))


def entries_of(message: Paged | Append) -> tuple[Entry, ...]:
    return tuple(decode(message.entries))


def refusal(error: StoreError) -> Refusal:
    facts = tuple(fact if isinstance(fact, str | int | None) else str(fact) for fact in error.args)
    return Refusal(type(error).__name__, facts)


def error_of(message: Refusal) -> StoreError:
    from spark_jms.store import errors

    kind = getattr(errors, message.name, None)
    if not (isinstance(kind, type) and issubclass(kind, StoreError)):
        return StoreError(message.name, *message.facts)
    return kind(*message.facts)
