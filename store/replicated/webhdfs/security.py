"""Who may knock: bearer tokens from a file, TLS, and what may be bound to."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from store.errors import StoreError

LEAST_TOKEN_CHARACTERS = 16
MAX_TOKENS = 1000


class DoorConfigError(StoreError, ValueError):
    """On loopback the door needs nothing; on any other address it needs TLS (certificate and key) and a token file,
    both readable by their owner only. See docs/WEBHDFS.md."""


@dataclass(frozen=True)
class Tokens:
    """Users and the digests of their tokens; the tokens themselves are not kept."""

    digests: tuple[tuple[str, bytes], ...]

    @classmethod
    def from_file(cls, path: Path) -> Tokens:
        """One `user token` a line, # begins a comment."""
        check_private(path)
        digests: list[tuple[str, bytes]] = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            if len(words) != 2 or len(words[1]) < LEAST_TOKEN_CHARACTERS:
                reason = f"a line is `user token`, the token has at least {LEAST_TOKEN_CHARACTERS} characters"
                raise DoorConfigError(f"{path}:{number}: {reason}")
            digests.append((words[0], _digest(words[1])))
        if not 0 < len(digests) <= MAX_TOKENS:
            raise DoorConfigError(f"{path}: {len(digests)} tokens, allowed are 1 to {MAX_TOKENS}")
        return cls(tuple(digests))

    def user(self, token: str) -> str | None:
        """Every token is compared, in constant time, so that the time tells nothing."""
        digest, found = _digest(token), None
        for user, known in self.digests:
            if hmac.compare_digest(digest, known):
                found = user
        return found


def bearer(header: str | None) -> str | None:
    """The token of an Authorization header."""
    scheme, _, token = (header or "").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def tls_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS 1.2 or newer with this certificate chain."""
    check_private(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise DoorConfigError(f"{certificate}, {key}: {error}") from error
    return context


def check_private(path: Path) -> None:
    """A regular file of this user, mode 0600 or less."""
    try:
        found = path.stat()
    except OSError as error:
        raise DoorConfigError(f"{path}: {error.strerror}") from error
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or mode & 0o177:
        raise DoorConfigError(f"{path} has mode {mode:04o}; it must be a file of this user with mode 0600")


def check_binding(host: str, tls: bool, tokens: bool) -> None:
    """DoorConfigError when the door would be open to others without TLS and tokens."""
    if not is_loopback(host) and not (tls and tokens):
        missing = " and ".join(name for name, there in (("TLS", tls), ("a token file", tokens)) if not there)
        raise DoorConfigError(f"{host or 'every address'} is not loopback and there is no {missing}")


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
