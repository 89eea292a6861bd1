"""Self-signed certificates for tests of TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificate(folder: Path, name: str = "") -> tuple[Path, Path]:
    """The certificate and its key."""
    key, cert = folder / f"{name}key.pem", folder / f"{name}cert.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "1",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-keyout",
            key,
            "-out",
            cert,
        ],
        check=True,
        capture_output=True,
    )
    key.chmod(0o600)
    return cert, key
