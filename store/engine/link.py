"""A client's way to the engine over a socket. One question at a time."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
from dataclasses import dataclass

from spark_jms.store.engine import wire


class LinkLostError(Exception):
    """The engine cannot be reached this way any more, or is the engine no more. What was asked may have been done."""


def send(connection: socket.socket, message: wire.Any_) -> None:
    connection.sendall(wire.frame(message))


def receive(connection: socket.socket, limit_bytes: int = wire.FRAME_LIMIT_BYTES) -> wire.Any_:
    head = _receive(connection, wire.HEAD_BYTES)
    return wire.unframe(head, _receive(connection, wire.body_length(head, limit_bytes)))


def _receive(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(min(length - len(data), 1 << 20))
        if not part:
            raise ConnectionError("the other side hung up")
        data += part
    return bytes(data)


def hang_up(connection: socket.socket) -> None:
    """From any thread: whoever waits for this connection finds its end. Of TLS only what is below it is touched."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


@dataclass(frozen=True)
class Address:
    """Where an engine serves, and the secret that opens it. `incarnation` is whom one means to meet there; `certificate`
    (PEM) is by what it shows itself where the connection is encrypted."""

    host: str
    port: int
    secret: bytes
    incarnation: str
    certificate: str = ""


class TcpLink:
    """`answer_timeout_s` bounds a question: an engine that hangs is as good as none. None: it may take long (an append);
    the other link of the client tells when the engine hangs, and closes this one.

    Who closes it from another thread ends its conversation first, and waits until whoever asks has come out: a
    descriptor that is closed under a read may belong to another file by the time it is read (TLS keeps its number)."""

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
                from spark_jms.store.net.tls import client_context

                self._socket = client_context(address.certificate).wrap_socket(self._socket)
            self._greet(address, client_id)
            self._socket.settimeout(answer_timeout_s)
        except (OSError, wire.WireError) as error:
            self._socket.close()
            raise LinkLostError(f"{address.host}:{address.port}: {error}") from error

    def _greet(self, address: Address, client_id: str) -> None:
        challenge = receive(self._socket, wire.GREETING_LIMIT_BYTES)
        if not isinstance(challenge, wire.Challenge) or challenge.version != wire.WIRE_VERSION:
            raise wire.WireError("this is no engine, or one of another version")
        if challenge.incarnation != address.incarnation:
            raise wire.WireError(f"this is engine {challenge.incarnation}, not {address.incarnation}")
        nonce = secrets.token_bytes(16)
        answer = wire.proof(address.secret, b"client", challenge.nonce, client_id)
        send(self._socket, wire.Hello(wire.WIRE_VERSION, client_id, nonce, answer))
        welcome = receive(self._socket, wire.GREETING_LIMIT_BYTES)
        if not isinstance(welcome, wire.Welcome):
            raise wire.WireError("the engine did not welcome us")
        if not secrets.compare_digest(welcome.proof, wire.proof(address.secret, b"engine", nonce, client_id)):
            raise wire.WireError("whoever serves there does not know the secret")

    def ask(self, question: wire.Question) -> wire.Any_:
        """LinkLostError when there is no answer."""
        with self._lock:
            try:
                send(self._socket, question)
                return receive(self._socket)
            except (OSError, wire.WireError) as error:
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
