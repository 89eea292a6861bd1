"""Blocking connections between two processes: frames on a socket, the address at which a process serves, TLS around both.

TLS protects what goes beyond this machine: the server has a certificate and its key, and the client trusts that certificate
alone.

Features: R17, S3 (docs/FEATURES.md)
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import ssl
import stat
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from spark_jms.store.errors import SecurityConfigError
from spark_jms.store.net.addresses import address_here
from spark_jms.store.net.frames import FrameReader, Handshake, frame

T = TypeVar("T")
RECEIVE_BYTES = 64 * 1024
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


class Channel(Generic[T]):
    """A blocking socket, plain or TLS, with the handshake and frames on it; for one thread at a time.

    Every method raises OSError when the connection ends, and ProtocolError when the peer breaks the protocol.
    """

    def __init__(
        self,
        connection: socket.socket,
        encode: Callable[[T], bytes],
        decode: Callable[[memoryview], T],
        max_frame_bytes: int,
    ) -> None:
        self._socket = connection
        self._encode = encode
        self._max_frame_bytes = max_frame_bytes
        self._reader = FrameReader(decode, max_frame_bytes)
        self._received: deque[T] = deque()
        self._sent = 0

    def prove(self, handshake: Handshake) -> None:
        """Raises the handshake's failure, after the peer was told."""
        self._socket.sendall(handshake.begin())
        while not handshake.proved:
            self._socket.sendall(handshake.receive(self._some()))
            if handshake.failure is not None:
                raise handshake.failure
        self._received += self._reader.feed(handshake.rest)

    def send(self, message: T) -> None:
        self._socket.sendall(frame(self._sent, self._encode(message), self._max_frame_bytes))
        self._sent += 1

    def receive(self) -> T:
        while not self._received:
            self._received += self._reader.feed(self._some())
        return self._received.popleft()

    def _some(self) -> bytes:
        data = self._socket.recv(RECEIVE_BYTES)
        if not data:
            raise ConnectionError("the peer closed the connection")
        return data


def hang_up(connection: socket.socket) -> None:
    """From any thread: a thread that waits for this connection finds its end. On TLS, only the layer below is touched."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


@dataclass(frozen=True)
class ServingAddress:
    """Where an engine serves the other processes. `host` is an address, or what means another one on each machine (addresses.py).
    `certificate` is the one that clients trust, in PEM; "" without TLS."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    certificate: str = ""

    @classmethod
    def of(cls, host: str, port: int, certificate: str, key: str) -> ServingAddress:
        """SecurityConfigError for an address beyond this machine without a certificate, or for an unusable one."""
        if certificate:
            chain = Path(certificate)
            return cls(host, port, server_context(chain, Path(key or certificate)), first_certificate(chain))
        if not is_loopback(host):
            raise SecurityConfigError(f"engine_host={host} is not loopback, and there is no engine_certificate")
        return cls(host, port)

    def here(self) -> ServingAddress:
        """With the number that `host` means on this machine. SettingInvalidError when an engine cannot listen here."""
        return replace(self, host=address_here("engine_host", self.host))


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 or newer with this certificate chain."""
    check_private(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise SecurityConfigError(f"{certificate}, {key}: {error}") from error
    return context


def first_certificate(chain: Path) -> str:
    """The server's own certificate, the first one of the file, in PEM; never a key from the same file."""
    text = chain.read_text("ascii", "replace")
    return text[text.index(_BEGIN) : text.index(_END) + len(_END)] + "\n"


def client_context(trusted: str) -> ssl.SSLContext:
    """Trusts a server that presents one of these certificates (PEM), or one that they have signed. Host names are not
    compared: the certificate itself identifies the server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the trusted one need not be a root
    context.load_verify_locations(cadata=trusted)
    return context


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_private(path: Path) -> None:
    """A regular file of this user, mode 0600 or less."""
    try:
        found = path.stat()
    except OSError as error:
        raise SecurityConfigError(f"{path}: {error.strerror}") from error
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or mode & 0o177:
        raise SecurityConfigError(f"{path} has mode {mode:04o}; it must be a file of this user with mode 0600")
