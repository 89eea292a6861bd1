"""TLS beyond this machine: the server has a certificate and its key, and the client trusts that certificate alone."""

from __future__ import annotations

import ipaddress
import os
import ssl
import stat
from pathlib import Path

from spark_jms.store.errors import SecurityConfigError

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


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


def check_private(path: Path) -> None:
    """A regular file of this user, mode 0600 or less."""
    try:
        found = path.stat()
    except OSError as error:
        raise SecurityConfigError(f"{path}: {error.strerror}") from error
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or mode & 0o177:
        raise SecurityConfigError(f"{path} has mode {mode:04o}; it must be a file of this user with mode 0600")


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
