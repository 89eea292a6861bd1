"""Shared memory of a daemon's regions (R12, R17): one segment a copy, named after the daemon's key.

A daemon that is killed frees nothing itself: Python's resource tracker, a process beside it, does. Where that was killed
too, the next start of the daemon does.
"""

from __future__ import annotations

import contextlib
import os
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

from store.replicated.core.daemon import MemoryPort

_SEGMENTS = Path("/dev/shm")
GROUP_ONLY = 0o660


class SharedMemoryPort(MemoryPort):
    """Segments `rs-KEY-NUMBER` (KEY in hexadecimal). What an earlier life of the daemon left is removed at the start:
    its owner holds the lock, so nobody else uses them. `prefix` keeps clusters on one machine apart."""

    def __init__(self, shmkey: int, prefix: str = "rs") -> None:
        self._stem = f"{prefix}-{shmkey:x}-"
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
        name = f"{self._stem}{self._next}"
        try:
            segment = SharedMemory(name=name, create=True, size=size)
        except OSError as error:
            raise MemoryError(str(error)) from error
        try:
            os.chmod(_SEGMENTS / name, GROUP_ONLY)
            if os.statvfs(_SEGMENTS).f_bavail * os.statvfs(_SEGMENTS).f_frsize < size:
                raise MemoryError(f"{_SEGMENTS} has no room for {size} bytes")
        except MemoryError:
            segment.close()
            segment.unlink()
            raise
        self._held[region_id] = segment
        assert segment.buf is not None
        view = self._views[region_id] = segment.buf[:size]
        return view

    def free(self, region_id: str) -> None:
        segment, view = self._held.pop(region_id), self._views.pop(region_id)
        view.release()
        segment.close()
        segment.unlink()

    def free_all(self) -> None:
        for region_id in list(self._held):
            self.free(region_id)
