"""The process of a session, which its id names, so that every reader of the id can find out whether it still runs.

    <16 hex digits>.<host>.<pid>.<start>      host: 8 hex digits of the machine's boot id; start: the process's start time

On the same host a dead process is recognised at once, and a process id that was used again is not mistaken for it. The
processes of another host count as alive while their heartbeats arrive.
"""

from __future__ import annotations

import os
import secrets
import zlib
from functools import lru_cache


@lru_cache(maxsize=1)
def this_host() -> str:
    """The id of this boot of this machine and of its process namespace; "-" where there is none to read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        return "-"
    return f"{zlib.crc32(f'{boot} {space}'.encode()):08x}"


def start_of(pid: int) -> str | None:
    """The start time of the process, in the kernel's ticks; None when it has ended, or is a zombie."""
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
