"""A client's connection to an engine in another process. It asks one question at a time."""

from __future__ import annotations

import secrets
import socket
import threading
from dataclasses import dataclass

from spark_jms.store.engine import wire
from spark_jms.store.errors import ProtocolError, StoreError
from spark_jms.store.net.channel import hang_up
from spark_jms.store.net.handshake import NONCE_BYTES, Handshake
from spark_jms.store.net.tls import client_context


class LinkLostError(Exception):
    """The engine can no longer be used this way, or is no longer the engine. It may have done what was asked."""


@dataclass(frozen=True)
class Address:
    """Where an engine serves, and the secret that it expects. The client refuses an engine of another `incarnation`, and
    on an encrypted connection any certificate but `certificate` (PEM)."""

    host: str
    port: int
    secret: bytes
    incarnation: str
    certificate: str = ""


class TcpLink:
    """`answer_timeout_s` bounds the wait for an answer, because a client cannot wait for an engine that hangs. None is for
    appends, which may take long; the client's other link notices that the engine hangs, and the client closes both.

    `close` from another thread hangs up first and then waits until the asking thread has returned. A descriptor that is
    closed under a read may belong to another file by the time it is read (TLS keeps its number)."""

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
            self._channel = wire.channel(self._socket)
            self._introduce(address, client_id)
            self._socket.settimeout(answer_timeout_s)
        except (OSError, StoreError) as error:
            self._socket.close()
            raise LinkLostError(f"{address.host}:{address.port}: {error}") from error

    def _introduce(self, address: Address, client_id: str) -> None:
        where, nonce = f"{address.host}:{address.port}", secrets.token_bytes(NONCE_BYTES)
        identity = address.incarnation.encode()
        self._channel.prove(Handshake.connector(wire.ENGINE, address.secret, identity, nonce, where))
        self._channel.send(wire.Hello(client_id))
        if not isinstance(self._channel.receive(), wire.Done):
            raise ProtocolError("the engine did not answer the introduction")

    def ask(self, question: wire.Question) -> wire.Any_:
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
