"""Shared memory of a daemon's regions: one segment per copy, named after the daemon's key, locked in memory if wanted.

When a daemon is killed, Python's resource tracker, a process beside it, removes its segments. If that was killed too, the
next start of the daemon does. A segment gets all its pages before it is used: otherwise, when the machine runs out of
pages, a write would kill the daemon, and the daemon of the second copy as well.

The system takes seconds to provide gigabytes, or to take them back. One worker thread does both, in the order in which
they were asked for, so the daemon's loop continues to serve its other regions. The system never pages locked memory out to a
disk, and limits how much of it a process may have.

Features: R12, R17 (docs/FEATURES.md)
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

from spark_jms.store.errors import MemoryLimitError, MemoryLockError
from spark_jms.store.regions.core.actions import MemoryPort

_SEGMENTS = Path("/dev/shm")
GROUP_ONLY = 0o660
PIECE_BYTES = 64 * 2**20  # between two pieces the worker notices that the daemon stops
_STATUS = Path("/proc/self/status")
_CAP_IPC_LOCK = 14  # the capability that lifts the limit


class SharedMemoryPort(MemoryPort):
    """Segments `PREFIX-KEY-LIFE-NUMBER` (KEY in hexadecimal). Removes at the start the segments that an earlier life of the
    daemon left; the daemon holds its lock, so no other process uses them. Names differ from life to life, because the
    tracker of the life before may still be removing. `prefix` separates daemons and clusters on one machine.

    `provided` is called, in the worker's thread, when `allocate` has an answer. With `lock` segments are locked in memory."""

    def __init__(
        self, shmkey: int, prefix: str = "rs", provided: Callable[[], None] = lambda: None, *, lock: bool = False
    ) -> None:
        self._stem = f"{prefix}-{shmkey:x}-"
        self._life = os.urandom(3).hex()
        self._next = 0
        self._provided = provided
        self._lock = lock
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="regions-memory")
        self._stopping = threading.Event()
        self._awaited: dict[str, Future[SharedMemory]] = {}  # by region id
        self._held: dict[str, SharedMemory] = {}
        self._views: dict[str, memoryview] = {}
        self.remove_leftovers()

    def remove_leftovers(self) -> int:
        found = list(_SEGMENTS.glob(f"{self._stem}*")) if _SEGMENTS.is_dir() else []
        for path in found:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        return len(found)

    def allocate(self, region_id: str, size: int) -> memoryview | None:
        making = self._awaited.get(region_id)
        if making is None:
            self._next += 1
            making = self._worker.submit(self._make, f"{self._stem}{self._life}-{self._next}", size)
            self._awaited[region_id] = making
            making.add_done_callback(lambda _: self._provided())
            return None
        if not making.done():
            return None
        del self._awaited[region_id]
        segment = self._held[region_id] = making.result()
        assert segment.buf is not None
        view = self._views[region_id] = segment.buf[:size]
        return view

    def free(self, region_id: str) -> None:
        making = self._awaited.pop(region_id, None)
        if making is not None:
            self._worker.submit(_release_made, making)  # after it is made
            return
        self._views.pop(region_id).release()
        self._worker.submit(_release, self._held.pop(region_id))

    def free_all(self) -> None:
        """At the end. Returns when no segment is left."""
        self._stopping.set()
        for region_id in [*self._awaited, *self._held]:
            self.free(region_id)
        self._worker.shutdown()

    # ---- in the worker

    def _make(self, name: str, size: int) -> SharedMemory:
        _check_room(size)  # in pieces, the system would refuse only after it has given away all that it has
        try:
            segment = SharedMemory(name=name, create=True, size=size)
        except OSError as error:
            raise MemoryError(str(error)) from error
        try:
            self._take_pages(name, size)
            if self._lock:
                self._lock_pages(segment)
        except OSError as error:
            _release(segment)
            raise MemoryError(f"{_SEGMENTS} has no room for {size} bytes: {error.strerror}") from error
        return segment

    def _lock_pages(self, segment: SharedMemory) -> None:
        assert segment.buf is not None
        for _ in lock_pages(segment.buf, PIECE_BYTES):
            if self._stopping.is_set():
                return

    def _take_pages(self, name: str, size: int) -> None:
        if not _SEGMENTS.is_dir():
            return
        fd = os.open(_SEGMENTS / name, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.fchmod(fd, GROUP_ONLY)
            for offset in range(0, size, PIECE_BYTES):
                if self._stopping.is_set():
                    return
                os.posix_fallocate(fd, offset, min(PIECE_BYTES, size - offset))
        finally:
            os.close(fd)


def check_limit(limit_bytes: int, lock: bool = False) -> None:
    """MemoryLimitError or, with `lock`, MemoryLockError when this machine can never provide so much. Checked before
    the daemon starts."""
    if _SEGMENTS.is_dir():
        found = os.statvfs(_SEGMENTS)
        size = found.f_blocks * found.f_frsize
        if limit_bytes > size:
            raise MemoryLimitError(f"the limit of {limit_bytes >> 20} MB is above {_SEGMENTS}'s {size >> 20} MB")
    for name in ("RLIMIT_AS", "RLIMIT_FSIZE"):
        allowed = resource.getrlimit(getattr(resource, name))[0]
        if allowed != resource.RLIM_INFINITY and limit_bytes > allowed:
            raise MemoryLimitError(f"the limit of {limit_bytes >> 20} MB is above {name}, {allowed >> 20} MB")
    if lock:
        allow_lock(limit_bytes)


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


def _check_room(size: int) -> None:
    if not _SEGMENTS.is_dir():
        return
    found = os.statvfs(_SEGMENTS)
    free = found.f_bavail * found.f_frsize
    if size > free:
        raise MemoryError(f"{_SEGMENTS} has no room for {size} bytes: {free} are free")


def _release_made(making: Future[SharedMemory]) -> None:
    if making.exception() is None:
        _release(making.result())


def _release(segment: SharedMemory) -> None:
    segment.close()
    with contextlib.suppress(FileNotFoundError):
        segment.unlink()


def _is_exempt() -> bool:
    try:
        lines = dict(line.split(":", 1) for line in _STATUS.read_text("ascii").splitlines() if ":" in line)
    except OSError:
        return False
    return bool(int(lines.get("CapEff", "0"), 16) >> _CAP_IPC_LOCK & 1)
