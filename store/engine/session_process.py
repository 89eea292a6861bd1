"""Which process a session belongs to: it stands in the session's id, so that everybody who reads the id can ask.

    <16 hex digits>.<host>.<pid>.<start>      host: 8 hex digits of the machine's boot id; start: the process's start time

On the same host a dead process is told at once, and a process id that was given to another is not mistaken for it. Of
another host's processes nothing is known here: they live as long as they are heard of.
"""

from __future__ import annotations

import os
import secrets
import zlib
from functools import lru_cache


@lru_cache(maxsize=1)
def this_host() -> str:
    """Of this boot of this machine (and, where processes are hidden from each other, of this view of them)."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        return "-"
    return f"{zlib.crc32(f'{boot} {space}'.encode()):08x}"


def start_of(pid: int) -> str | None:
    """When the process began, in the kernel's ticks; None when it is gone (or dead and not yet waited for)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def new_session_id() -> str:
    pid = os.getpid()
    return f"{secrets.token_hex(8)}.{this_host()}.{pid}.{start_of(pid) or '-'}"


def process_gone(session_id: str) -> bool:
    """True only when it is certain."""
    parts = session_id.split(".")
    if len(parts) != 4 or parts[1] != this_host() or parts[1] == "-" or parts[3] == "-" or not parts[2].isdigit():
        return False
    return start_of(int(parts[2])) != parts[3]
