"""What engine and clients say to each other, as bytes. Pure.

A message is msgpack (msgspec) in the body of a frame (net/frames.py); ledger entries in it are bytes as
store/ledger/codec.py writes them. Client and engine first prove to each other that they know the secret which the engine
published in the place that both can read (net/handshake.py); the identity is the engine's incarnation. Then the client
introduces itself with Hello and asks, and the engine answers, one question at a time.
"""

from __future__ import annotations

import socket

import msgspec

from spark_jms.store.engine.entry_log import Page, Verdict
from spark_jms.store.errors import StoreError
from spark_jms.store.ledger.codec import decode, encode
from spark_jms.store.ledger.entries import Entry
from spark_jms.store.net.channel import Channel
from spark_jms.store.net.handshake import Service

ENGINE = Service(b"JMSQEN", 3, "engine", "incarnation")
FRAME_LIMIT_BYTES = 1 << 30


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """The first message of a client. The engine answers with Done."""

    client_id: str


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
Any_ = Hello | Fetch | Append | Beat | Alive | Paged | Done | Refusal

_decoder: msgspec.msgpack.Decoder[Any_] = msgspec.msgpack.Decoder(Any_)
_encoder = msgspec.msgpack.Encoder()


def channel(connection: socket.socket) -> Channel[Any_]:
    return Channel(connection, _encoder.encode, _decoder.decode, FRAME_LIMIT_BYTES)


def paged(incarnation: str, verdict: Verdict | None, page: Page) -> Paged:
    return Paged(incarnation, verdict.value if verdict else "", page.position, page.snapshot, encode(page.entries))


def entries_of(message: Paged | Append) -> tuple[Entry, ...]:
    return tuple(decode(message.entries))


def refusal(error: StoreError) -> Refusal:
    facts = tuple(fact if isinstance(fact, str | int | None) else str(fact) for fact in error.args)
    return Refusal(type(error).__name__, facts)
