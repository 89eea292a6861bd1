"""How the label of a session names its process, for the error that meets another process there.

Features: C9 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
import socket
from datetime import datetime, timezone


def this_process(now_ms: int) -> str:
    since = datetime.fromtimestamp(now_ms / 1000, tz=timezone.utc)
    return f"process {os.getpid()} of {_started_here()}, since {since:%Y-%m-%d %H:%M:%S} UTC"


def is_sibling(label: str) -> bool:
    """Whether the process that started this one has started the one of `label` too: a driver starts each of its sources."""
    return f" of {_started_here()}, since " in label


def _started_here() -> str:
    return f"{socket.gethostname()}, started by process {os.getppid()}"
