"""Where an engine serves the other processes: an address, and TLS around the connections beyond this machine.

Features: R17, S3 (docs/FEATURES.md)
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from spark_jms.store.errors import SecurityConfigError
from spark_jms.store.net.tls import first_certificate, is_loopback, server_context


@dataclass(frozen=True)
class ServingAddress:
    """`certificate` is the one that clients trust, in PEM; "" without TLS."""

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
