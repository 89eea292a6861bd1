"""Memory that the system never pages out to a disk, and how much of it this process may have.

Features: R12, R17 (docs/FEATURES.md)
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from spark_jms.store.errors import MemoryLockError

_STATUS = Path("/proc/self/status")
_CAP_IPC_LOCK = 14  # the capability that lifts the limit


def can_lock(size_bytes: int) -> bool:
    """Whether this process, or one that it starts, may lock so much memory."""
    hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    return hard == resource.RLIM_INFINITY or size_bytes <= hard or _is_exempt()


def allow_lock(size_bytes: int) -> None:
    """Raises this process's limit as far as it may. MemoryLockError when that is too little."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if not can_lock(size_bytes):
        raise MemoryLockError(f"the daemon's limit of {size_bytes >> 20} MB is above RLIMIT_MEMLOCK, {hard >> 10} KB")
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))


def lock_pages(memory: memoryview, piece_bytes: int) -> Iterator[None]:
    """Locks the memory piece by piece, one for each step of the iterator. It stays locked until it is unmapped. OSError."""
    first = ctypes.c_char.from_buffer(memory)
    start = ctypes.addressof(first)
    del first  # it would keep the memory from being released
    libc = ctypes.CDLL(None, use_errno=True)
    for offset in range(0, len(memory), piece_bytes):
        length = min(piece_bytes, len(memory) - offset)
        if libc.mlock(ctypes.c_void_p(start + offset), ctypes.c_size_t(length)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{length} bytes cannot be locked: {os.strerror(number)}")
        yield


def _is_exempt() -> bool:
    try:
        lines = dict(line.split(":", 1) for line in _STATUS.read_text("ascii").splitlines() if ":" in line)
    except OSError:
        return False
    return bool(int(lines.get("CapEff", "0"), 16) >> _CAP_IPC_LOCK & 1)
