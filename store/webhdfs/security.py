"""Authentication at the door: bearer tokens from a file, and the addresses it may bind to."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from pathlib import Path

from spark_jms.store.errors import SecurityConfigError
from spark_jms.store.net.tls import check_private, is_loopback

LEAST_TOKEN_CHARACTERS = 16
MAX_TOKENS = 1000


@dataclass(frozen=True)
class Tokens:
    """Users and the digests of their tokens; the tokens themselves are not kept."""

    digests: tuple[tuple[str, bytes], ...]

    @classmethod
    def from_file(cls, path: Path) -> Tokens:
        """One `user token` per line; # begins a comment. SecurityConfigError names file and line."""
        check_private(path)
        digests: list[tuple[str, bytes]] = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            if len(words) != 2 or len(words[1]) < LEAST_TOKEN_CHARACTERS:
                reason = f"a line is `user token`, the token has at least {LEAST_TOKEN_CHARACTERS} characters"
                raise SecurityConfigError(f"{path}:{number}: {reason}")
            digests.append((words[0], _digest(words[1])))
        if not 0 < len(digests) <= MAX_TOKENS:
            raise SecurityConfigError(f"{path}: {len(digests)} tokens, allowed are 1 to {MAX_TOKENS}")
        return cls(tuple(digests))

    def user(self, token: str) -> str | None:
        """Compares every token in constant time, so that the time tells nothing about them."""
        digest, found = _digest(token), None
        for user, known in self.digests:
            if hmac.compare_digest(digest, known):
                found = user
        return found


def bearer(header: str | None) -> str | None:
    """The token of an Authorization header."""
    scheme, _, token = (header or "").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def check_binding(host: str, tls: bool, tokens: bool) -> None:
    """SecurityConfigError when other machines could reach the door without TLS and tokens."""
    if not is_loopback(host) and not (tls and tokens):
        missing = " and ".join(name for name, there in (("TLS", tls), ("a token file", tokens)) if not there)
        raise SecurityConfigError(f"{host or 'every address'} is not loopback and there is no {missing}")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
