"""Shared memory of a daemon's regions (R12, R17): one segment per copy, named after the daemon's key.

When a daemon is killed, Python's resource tracker, a process beside it, removes its segments. If that was killed too, the
next start of the daemon does. A segment gets all its pages before it is used: otherwise, when the machine runs out of
pages, a write would kill the daemon, and the daemon of the second copy as well.
"""

from __future__ import annotations

import contextlib
import os
import resource
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

from spark_jms.store.errors import MemoryLimitError
from spark_jms.store.regions.core.daemon import MemoryPort

_SEGMENTS = Path("/dev/shm")
GROUP_ONLY = 0o660


def check_limit(limit_bytes: int) -> None:
    """MemoryLimitError when this machine can never provide so much (R12), checked before the daemon starts."""
    if _SEGMENTS.is_dir():
        found = os.statvfs(_SEGMENTS)
        size = found.f_blocks * found.f_frsize
        if limit_bytes > size:
            raise MemoryLimitError(f"the limit of {limit_bytes >> 20} MB is above {_SEGMENTS}'s {size >> 20} MB")
    for name in ("RLIMIT_AS", "RLIMIT_FSIZE"):
        allowed = resource.getrlimit(getattr(resource, name))[0]
        if allowed != resource.RLIM_INFINITY and limit_bytes > allowed:
            raise MemoryLimitError(f"the limit of {limit_bytes >> 20} MB is above {name}, {allowed >> 20} MB")


class SharedMemoryPort(MemoryPort):
    """Segments `PREFIX-KEY-LIFE-NUMBER` (KEY in hexadecimal). Removes at the start the segments that an earlier life of the
    daemon left; the daemon holds its lock, so no other process uses them. Names differ from life to life, because the
    tracker of the life before may still be removing. `prefix` separates daemons and clusters on one machine."""

    def __init__(self, shmkey: int, prefix: str = "rs") -> None:
        self._stem = f"{prefix}-{shmkey:x}-"
        self._life = os.urandom(3).hex()
        self._next = 0
        self._held: dict[str, SharedMemory] = {}
        self._views: dict[str, memoryview] = {}
        self.remove_leftovers()

    def remove_leftovers(self) -> int:
        found = list(_SEGMENTS.glob(f"{self._stem}*")) if _SEGMENTS.is_dir() else []
        for path in found:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        return len(found)

    def allocate(self, region_id: str, size: int) -> memoryview:
        self._next += 1
        name = f"{self._stem}{self._life}-{self._next}"
        try:
            segment = SharedMemory(name=name, create=True, size=size)
        except OSError as error:
            raise MemoryError(str(error)) from error
        try:
            _take_pages(name, size)
        except OSError as error:
            segment.close()
            segment.unlink()
            raise MemoryError(f"{_SEGMENTS} has no room for {size} bytes: {error.strerror}") from error
        self._held[region_id] = segment
        assert segment.buf is not None
        view = self._views[region_id] = segment.buf[:size]
        return view

    def free(self, region_id: str) -> None:
        segment, view = self._held.pop(region_id), self._views.pop(region_id)
        view.release()
        segment.close()
        with contextlib.suppress(FileNotFoundError):
            segment.unlink()

    def free_all(self) -> None:
        for region_id in list(self._held):
            self.free(region_id)


def _take_pages(name: str, size: int) -> None:
    if not _SEGMENTS.is_dir():
        return
    fd = os.open(_SEGMENTS / name, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.fchmod(fd, GROUP_ONLY)
        os.posix_fallocate(fd, 0, size)
    finally:
        os.close(fd)
