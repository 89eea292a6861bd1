"""Which sessions are alive: one file per session, locked by its process for the session's whole life, with a heartbeat in it.

A session is alive while its file is locked and its heartbeat is fresh. The operating system drops the lock when the
process dies (crash, kill -9), so other sessions can take what it held at once. The heartbeat goes stale when the
process is stopped and cannot report that. The file carries the time-out that its owner promised, and every process judges
the session by that time-out.

Features: R8 (docs/FEATURES.md)
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
import threading
from collections.abc import Collection
from dataclasses import dataclass

from spark_jms.store.disk import Disk

_BEAT = struct.Struct("<QQ")
_MAKING = ".making-"


@dataclass(frozen=True)
class _Own:
    fd: int
    path: str


class SessionLocks:
    """Locks the files of this process's sessions, keeps their heartbeats fresh, and tells which sessions of any process are
    alive. Thread-safe."""

    def __init__(self, directory: str, disk: Disk, session_timeout_ms: int) -> None:
        self.directory = os.path.join(directory, "sessions")
        self._disk = disk
        self._timeout_ns = session_timeout_ms * 1_000_000
        self._interval_s = min(1.0, session_timeout_ms / 5000.0)
        self._own: dict[str, _Own] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def attach(self, session_id: str, label: str) -> None:
        os.makedirs(self.directory, exist_ok=True)
        making = os.path.join(self.directory, _MAKING + session_id)
        path = os.path.join(self.directory, session_id)
        fd = os.open(making, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            about = json.dumps({"label": label, "pid": os.getpid()}).encode()
            self._disk.pwrite_all(fd, self._heartbeat() + about, 0)
            os.rename(making, path)  # other processes see the file only once it is locked
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(making)
            raise
        with self._lock:
            self._own[session_id] = _Own(fd, path)
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep_fresh, name="store-heartbeat", daemon=True)
                self._thread.start()

    def detach(self, session_id: str) -> None:
        with self._lock:
            own = self._own.pop(session_id, None)
        if own is not None:
            with contextlib.suppress(OSError):
                os.unlink(own.path)
            os.close(own.fd)

    def _heartbeat(self) -> bytes:
        return _BEAT.pack(self._disk.boottime_ns(), self._timeout_ns)

    def _keep_fresh(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.beat()

    def beat(self) -> None:
        with self._lock:
            for own in self._own.values():
                # Overwriting in place needs no room. If it fails, the session goes stale and is fenced, which is safe.
                with contextlib.suppress(OSError):
                    os.pwrite(own.fd, self._heartbeat(), 0)

    def alive(self, session_ids: Collection[str]) -> frozenset[str]:
        return frozenset(session_id for session_id in session_ids if self._is_alive(session_id))

    def _is_alive(self, session_id: str) -> bool:
        try:
            fd = os.open(os.path.join(self.directory, session_id), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            if self._can_lock(fd):
                return False
            data = os.pread(fd, _BEAT.size, 0)
        finally:
            os.close(fd)
        if len(data) < _BEAT.size:
            return False
        beat_ns, timeout_ns = _BEAT.unpack(data)
        return bool(self._disk.boottime_ns() - beat_ns < timeout_ns)

    @staticmethod
    def _can_lock(fd: int) -> bool:
        try:
            fcntl.flock(
                fd, fcntl.LOCK_SH | fcntl.LOCK_NB
            )  # shared: two processes that look at once do not see each other
        except BlockingIOError:
            return False
        return True

    def remove_ended(self, session_ids: Collection[str]) -> None:
        """Removes the files of sessions that ended."""
        for session_id in session_ids:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.directory, session_id))

    def remove_orphans(self, known: Collection[str]) -> None:
        """Removes the files of processes that died between creating the file and connecting. Call under the journal lock."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.directory):
                if name not in known and not self._is_alive(name):
                    self._remove_unlocked(os.path.join(self.directory, name))

    def _remove_unlocked(self, path: str) -> None:
        """Removes the file if it is not locked and older than the time-out: a process may be about to lock a young one."""
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                age_s = self._disk.wall_s() - os.fstat(fd).st_mtime
                if self._can_lock(fd) and age_s * 1e9 > self._timeout_ns:
                    os.unlink(path)
            finally:
                os.close(fd)

    def close(self) -> None:
        self._stop.set()
        with self._lock:  # another thread may be about to start it
            thread = self._thread
        if thread is not None:
            thread.join()
        for session_id in list(self._own):
            self.detach(session_id)

    def abandon(self) -> None:
        """In a forked child: closes the inherited descriptors, so that the locks end with the parent."""
        for own in self._own.values():
            with contextlib.suppress(OSError):
                os.close(own.fd)
        self._own = {}
