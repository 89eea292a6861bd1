"""What an engine and its clients say to each other, and both ends of the connection that carries it.

A message is msgpack (msgspec) in the body of a frame (net/frames.py); ledger entries in it are bytes as ledger/codec.py
writes them. Both sides first prove that they know the secret which the engine published in the place that both can read;
the identity of this handshake is the engine's incarnation. Then the client introduces itself with Hello and asks, and the
engine answers, one question at a time.

The client's end is a TcpLink. The engine's end is ClientConnections: one thread accepts, and each connection has a thread of
its own. A connection counts as a client only after its proof; the number of connections without one is bounded.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from spark_jms.store.engine.entry_log import Page, Verdict
from spark_jms.store.errors import ProtocolError, StoreError, error_of
from spark_jms.store.ledger.backend import ChangeAnswer, ChangeRequest, Tally
from spark_jms.store.ledger.codec import DecodeError, decode, encode
from spark_jms.store.ledger.group_commit import PlanCall
from spark_jms.store.ledger.record import Entry, Written
from spark_jms.store.net.frames import NONCE_BYTES, Handshake, Service
from spark_jms.store.net.sockets import Channel, client_context, hang_up

log = logging.getLogger("store.served")

ENGINE = Service(b"JMSQEN", 3, "engine", "incarnation")
FRAME_LIMIT_BYTES = 1 << 30
HELLO_TIMEOUT_S = 10.0
BACKLOG = 128
ACCEPT_PAUSE_S, ACCEPT_END_S = 0.05, 2.0
MAX_GREETING = 256  # connections without a proof; a legitimate client takes milliseconds


# -- the messages ------------------------------------------------------------------------------------------------------


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


class Wanted(msgspec.Struct, frozen=True, array_like=True):
    """One change that a rule decides; `held` is a Written entry, empty without handles."""

    token: str
    session_id: str
    names: tuple[str, ...]
    rule: str
    argument: bytes
    held: bytes


class MakeChanges(msgspec.Struct, frozen=True, array_like=True, tag="change"):
    """Changes of one client that rules decide, in the order in which their threads asked. `again`: an engine may have them already;
    `base` is the position of the client when it sent them first."""

    incarnation: str
    position: int
    base: int
    again: bool
    wanted: tuple[Wanted, ...]


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


class Made(msgspec.Struct, frozen=True, array_like=True):
    """What became of one wanted change: an answer, or an error by its name as in Refusal. `tally`: objects created, updated,
    deleted."""

    answer: bytes = b""
    tally: tuple[int, int, int] = (0, 0, 0)
    error: str = ""
    facts: tuple[str | int | None, ...] = ()


class Changed(msgspec.Struct, frozen=True, array_like=True, tag="changed"):
    """The answer to MakeChanges: one Made for each that was wanted, and the page."""

    made: tuple[Made, ...]
    page: Paged


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """`changes`, of the answer to Hello: this engine answers MakeChanges. An older one does not, and would hang up."""

    changes: bool = False


class Refusal(msgspec.Struct, frozen=True, array_like=True, tag="refusal"):
    """An error of store/errors.py by its name; name "" when the engine is the engine no more."""

    name: str
    facts: tuple[str | int | None, ...]


GREETING = Done(changes=True)
"""An engine's answer to Hello."""
Question = Fetch | Append | MakeChanges | Beat | Alive
Answer = Paged | Changed | Alive | Done | Refusal
Any_ = Hello | Fetch | Append | MakeChanges | Beat | Alive | Paged | Changed | Done | Refusal
_decoder: msgspec.msgpack.Decoder[Any_] = msgspec.msgpack.Decoder(Any_)
_encoder = msgspec.msgpack.Encoder()


def paged(incarnation: str, verdict: Verdict | None, page: Page) -> Paged:
    return Paged(incarnation, verdict.value if verdict else "", page.position, page.snapshot, encode(page.entries))


def entries_of(message: Paged | Append) -> tuple[Entry, ...]:
    return tuple(decode(message.entries))


def wanted_of(token: str, request: ChangeRequest) -> Wanted:
    held = encode([Written(request.held)]) if request.held else b""
    return Wanted(token, request.session_id, request.names, request.rule, request.argument, held)


def request_of(wanted: Wanted) -> ChangeRequest:
    """DecodeError when its operations cannot be read."""
    entries = decode(wanted.held)
    if not all(isinstance(entry, Written) for entry in entries):
        raise DecodeError("the operations of a change are no Written entry")
    held = tuple(change for entry in entries if isinstance(entry, Written) for change in entry.changes)
    return ChangeRequest(wanted.session_id, wanted.names, wanted.rule, wanted.argument, held)


def made_of(call: PlanCall) -> Made:
    if call.error is None:
        made: ChangeAnswer = call.result
        tally = made.tally
        return Made(made.answer, (tally.create_count, tally.update_count, tally.delete_count))
    error = (
        call.error if isinstance(call.error, StoreError) else StoreError(f"{type(call.error).__name__}: {call.error}")
    )
    return Made(error=type(error).__name__, facts=_facts(error))


def answer_of(made: Made) -> ChangeAnswer:
    """Raises the error that it carries."""
    if made.error:
        raise error_of(made.error, made.facts)
    return ChangeAnswer(made.answer, Tally(*made.tally))


def refusal(error: StoreError) -> Refusal:
    return Refusal(type(error).__name__, _facts(error))


def _facts(error: StoreError) -> tuple[str | int | None, ...]:
    return tuple(fact if isinstance(fact, str | int | None) else str(fact) for fact in error.args)


# -- both ends of a connection -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EngineIdentity:
    """What an engine proves to its clients."""

    incarnation: str
    secret: bytes


@dataclass(frozen=True)
class Address:
    """Where an engine serves, and the secret that it expects. The client refuses an engine of another `incarnation`, and
    on an encrypted connection any certificate but `certificate` (PEM)."""

    host: str
    port: int
    secret: bytes
    incarnation: str
    certificate: str = ""


class LinkLostError(Exception):
    """The engine can no longer be used this way, or is no longer the engine. It may have done what was asked."""


class ClientConnections:
    """`connected` and `disconnected` are called once for each authenticated connection, with the client's id."""

    def __init__(
        self,
        identity: EngineIdentity,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        *,
        answer: Callable[[str, Question], Answer],
        connected: Callable[[str], None],
        disconnected: Callable[[str], None],
    ) -> None:
        self._identity = identity
        self._tls = tls
        self._answer = answer
        self._connected = connected
        self._disconnected = disconnected
        self._lock = threading.Lock()
        self._closed = False
        self._connections: set[socket.socket] = set()
        self._greeting: dict[socket.socket, None] = {}  # oldest first
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self._listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._acceptor: threading.Thread | None = None

    def start(self) -> None:
        self._acceptor = start_thread(self._accept, "store-engine-accept")

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed; or too many files are open, or the client has left: those pass
                time.sleep(ACCEPT_PAUSE_S)
                continue
            if self._tls is not None:
                try:
                    connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
                except OSError:  # the client hung up already
                    connection.close()
                    continue
            self._admit(connection)
            start_thread(lambda connection=connection: self._converse(connection), "store-engine-connection")  # type: ignore[misc]

    def _admit(self, connection: socket.socket) -> None:
        # Connections are hung up under the lock too: the thread of a connection closes it only after it has left the set.
        with self._lock:
            self._connections.add(connection)
            self._greeting[connection] = None
            if len(self._greeting) > MAX_GREETING:
                oldest = next(iter(self._greeting))
                del self._greeting[oldest]  # at once: its thread may be slow to end
                hang_up(oldest)

    def _converse(self, connection: socket.socket) -> None:
        client_id = ""
        try:
            channel = engine_channel(connection)
            client_id = self._authenticate(connection, channel)
            with self._lock:
                self._greeting.pop(connection, None)
            while client_id:
                question = channel.receive()
                if not isinstance(question, Question):
                    raise ProtocolError(f"not a question: {type(question).__name__}")
                channel.send(self._answer(client_id, question))
        except (OSError, StoreError) as error:
            if isinstance(error, StoreError):
                log.warning("engine %s: a connection is dropped: %s", self._identity.incarnation, error)
        finally:
            with self._lock:
                self._connections.discard(connection)
                self._greeting.pop(connection, None)
            connection.close()
            if client_id:
                self._disconnected(client_id)

    def _authenticate(self, connection: socket.socket, channel: Channel[Any_]) -> str:
        """The id of the client, once both sides have proved that they know the secret."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.settimeout(HELLO_TIMEOUT_S)
        if isinstance(connection, ssl.SSLSocket):
            connection.do_handshake()
        nonce, incarnation = secrets.token_bytes(NONCE_BYTES), self._identity.incarnation
        channel.prove(Handshake.listener(ENGINE, self._identity.secret, incarnation.encode(), nonce))
        hello = channel.receive()
        if not isinstance(hello, Hello):
            raise ProtocolError("the client did not introduce itself")
        connection.settimeout(None)
        self._connected(hello.client_id)
        try:
            channel.send(GREETING)
        except OSError:
            self._disconnected(hello.client_id)
            raise
        return hello.client_id

    def close(self) -> None:
        """Stop accepting and hang up on every client. May be called twice."""
        self._closed = True
        hang_up(self._listener)  # closing alone does not end a wait in accept()
        if self._acceptor is not None:
            self._acceptor.join(ACCEPT_END_S)
        self._listener.close()
        with self._lock:
            for connection in self._connections:
                hang_up(connection)

    def abandon(self) -> None:
        """In a forked child, without the lock: drop the copies of the descriptors and send nothing."""
        for connection in (*self._connections, self._listener):
            with contextlib.suppress(OSError):
                connection.close()


class TcpLink:
    """A client's connection to an engine in another process. `changes`: the engine answers MakeChanges.

    `answer_timeout_s` bounds the wait for an answer, because a client cannot wait for an engine that hangs. None is for
    appends, which may take long; the client's other link notices that the engine hangs, and the client closes both.

    `close` from another thread hangs up first and then waits until the asking thread has returned. A descriptor that is
    closed under a read may belong to another file by the time it is read (TLS keeps its number).
    """

    def __init__(
        self, address: Address, client_id: str, answer_timeout_s: float | None, greet_timeout_s: float
    ) -> None:
        self._lock = threading.RLock()  # of the conversation
        self._life = threading.Lock()  # of the descriptor
        try:
            self._socket = socket.create_connection((address.host, address.port), greet_timeout_s)
        except OSError as error:
            raise LinkLostError(f"{address.host}:{address.port}: {error}") from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if address.certificate:
                self._socket = client_context(address.certificate).wrap_socket(self._socket)
            self._channel = engine_channel(self._socket)
            self._introduce(address, client_id)
            self._socket.settimeout(answer_timeout_s)
        except (OSError, StoreError) as error:
            self._socket.close()
            raise LinkLostError(f"{address.host}:{address.port}: {error}") from error

    def _introduce(self, address: Address, client_id: str) -> None:
        where, nonce = f"{address.host}:{address.port}", secrets.token_bytes(NONCE_BYTES)
        identity = address.incarnation.encode()
        self._channel.prove(Handshake.connector(ENGINE, address.secret, identity, nonce, where))
        self._channel.send(Hello(client_id))
        answer = self._channel.receive()
        if not isinstance(answer, Done):
            raise ProtocolError("the engine did not answer the introduction")
        self.changes = answer.changes

    def ask(self, question: Question) -> Any_:
        """LinkLostError when there is no answer."""
        with self._lock:
            try:
                self._channel.send(question)
                return self._channel.receive()
            except (OSError, ProtocolError) as error:
                self.close()  # an answer that comes late must not be taken for the next one's
                raise LinkLostError(str(error)) from error
            except BaseException:  # interrupted: the same
                self.close()
                raise

    def close(self) -> None:
        with self._life:
            hang_up(self._socket)
        with self._lock, self._life:
            self._socket.close()

    def abandon(self) -> None:
        """In a forked child: drop the descriptor, say nothing."""
        self._socket.close()


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


def engine_channel(connection: socket.socket) -> Channel[Any_]:
    return Channel(connection, _encoder.encode, _decoder.decode, FRAME_LIMIT_BYTES)
