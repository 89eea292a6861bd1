"""Whether there is certainly no store at a place, as far as this process can see.

Opening a store may take long: one that cannot be reached is tried again and again. This looks at the place alone: at a path, or
whether an address refuses connections. A place that does not answer may be slow, so it is not absent.

Features: D4 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import NamedTuple


class Endpoint(NamedTuple):
    """Of a process that serves the store."""

    host: str
    port: int


Place = str | Endpoint
"""A path, or an endpoint."""


def absence(places: Sequence[Place], timeout_s: float) -> str:
    """What is missing at the places of a store; "" when one of them is there or cannot be told. Never raises for a place."""
    found = []
    for place in places:
        missing = _missing_endpoint(place, timeout_s) if isinstance(place, Endpoint) else _missing_path(place)
        if not missing:
            return ""
        found.append(missing)
    return "; ".join(found)


def _missing_path(path: str) -> str:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} does not exist"
    except OSError:
        pass
    return ""


def _missing_endpoint(endpoint: Endpoint, timeout_s: float) -> str:
    try:
        socket.create_connection((endpoint.host, endpoint.port), timeout_s).close()
    except ConnectionRefusedError:
        return f"{endpoint.host}:{endpoint.port} refuses connections"
    except OSError:
        pass
    return ""
