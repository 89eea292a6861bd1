"""The engine's connections to its clients: accept them, authenticate them, answer their questions, hang up.

One thread accepts, and each connection has a thread of its own. A connection counts as a client only after it has proved
that it knows the engine's secret; the number of connections that have not is bounded.
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

from spark_jms.store.engine import wire
from spark_jms.store.errors import ProtocolError, StoreError
from spark_jms.store.net.channel import Channel, hang_up
from spark_jms.store.net.handshake import NONCE_BYTES, Handshake

log = logging.getLogger("store.served")

HELLO_TIMEOUT_S = 10.0
BACKLOG = 128
ACCEPT_PAUSE_S, ACCEPT_END_S = 0.05, 2.0
MAX_GREETING = 256  # connections that have proved nothing yet; a legitimate client takes milliseconds


@dataclass(frozen=True)
class EngineIdentity:
    """What an engine proves to its clients."""

    incarnation: str
    secret: bytes


def start_thread(target: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=target, name=name, daemon=True)
    thread.start()
    return thread


class ClientConnections:
    """`connected` and `disconnected` are called once for each authenticated connection, with the client's id."""

    def __init__(
        self,
        identity: EngineIdentity,
        host: str,
        port: int,
        tls: ssl.SSLContext | None,
        *,
        answer: Callable[[str, wire.Question], wire.Answer],
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
            channel = wire.channel(connection)
            client_id = self._authenticate(connection, channel)
            with self._lock:
                self._greeting.pop(connection, None)
            while client_id:
                question = channel.receive()
                if not isinstance(question, wire.Fetch | wire.Append | wire.Beat | wire.Alive):
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

    def _authenticate(self, connection: socket.socket, channel: Channel[wire.Any_]) -> str:
        """The id of the client, once both sides have proved that they know the secret."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.settimeout(HELLO_TIMEOUT_S)
        if isinstance(connection, ssl.SSLSocket):
            connection.do_handshake()
        nonce, incarnation = secrets.token_bytes(NONCE_BYTES), self._identity.incarnation
        channel.prove(Handshake.listener(wire.ENGINE, self._identity.secret, incarnation.encode(), nonce))
        hello = channel.receive()
        if not isinstance(hello, wire.Hello):
            raise ProtocolError("the client did not introduce itself")
        connection.settimeout(None)
        self._connected(hello.client_id)
        try:
            channel.send(wire.Done())
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
