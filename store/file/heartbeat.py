"""Who is alive: one file for each session, locked for life by the operating system, with a heartbeat in it.

Alive = the lock is held and the heartbeat is fresh. The lock falls at death (kill -9, crash), so that what a dead
session held can be taken at once (R8); the heartbeat goes stale when a process is stopped and cannot say so. The file
carries its owner's time-out: a session is judged by what it promised, whoever looks.
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

from spark_jms.store.file.disk import Disk

_BEAT = struct.Struct("<QQ")
_MAKING = ".making-"


@dataclass(frozen=True)
class _Own:
    fd: int
    path: str


class Heartbeat:
    """The sessions of this process, and the eyes for those of all others."""

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
            self._disk.pwrite_all(fd, self._now() + about, 0)
            os.rename(making, path)  # it is seen only when it is locked
        except BaseException:
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(making)
            raise
        with self._lock:
            self._own[session_id] = _Own(fd, path)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="store-heartbeat", daemon=True)
                self._thread.start()

    def detach(self, session_id: str) -> None:
        with self._lock:
            own = self._own.pop(session_id, None)
        if own is not None:
            with contextlib.suppress(OSError):
                os.unlink(own.path)
            os.close(own.fd)

    def _now(self) -> bytes:
        return _BEAT.pack(self._disk.boottime_ns(), self._timeout_ns)

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.beat()

    def beat(self) -> None:
        with self._lock:
            for own in self._own.values():
                # An overwrite in place needs no room; should it fail, the session goes stale and is fenced: safe.
                with contextlib.suppress(OSError):
                    os.pwrite(own.fd, self._now(), 0)

    def alive(self, session_ids: Collection[str]) -> frozenset[str]:
        return frozenset(session_id for session_id in session_ids if self._is_alive(session_id))

    def _is_alive(self, session_id: str) -> bool:
        try:
            fd = os.open(os.path.join(self.directory, session_id), os.O_RDWR | os.O_CLOEXEC)
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
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who look at once do not see each other
        except BlockingIOError:
            return False
        return True

    def bury(self, session_ids: Collection[str]) -> None:
        """Remove the files of sessions that ended."""
        for session_id in session_ids:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.directory, session_id))

    def sweep(self, known: Collection[str]) -> None:
        """Remove what processes left that died between making a file and connecting; call under the journal lock."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.directory):
                if name not in known and not self._is_alive(name):
                    self._remove_unlocked(os.path.join(self.directory, name))

    def _remove_unlocked(self, path: str) -> None:
        """Only if nobody holds it: a file being made may be locked a moment later, and must not go."""
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
        thread = self._thread
        if thread is not None:
            thread.join()
        for session_id in list(self._own):
            self.detach(session_id)

    def abandon(self) -> None:
        """In a forked child: drop the copies of the descriptors, so that the locks end with the parent."""
        for own in self._own.values():
            with contextlib.suppress(OSError):
                os.close(own.fd)
        self._own = {}
