"""The system calls of the file store. Tests inject a disk that is full, slow, or stops after any call."""

from __future__ import annotations

import errno
import os
import time

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


WITHOUT_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)  # to write: a process that may read can still look


class Disk:
    """One method per call, no state."""

    def pwrite_all(self, fd: int, data: bytes, offset: int) -> None:
        """Continues after a short write, until all is written or the operating system raises."""
        view = memoryview(data)
        while view:
            done = self.pwrite(fd, view, offset)
            view, offset = view[done:], offset + done

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def pread_all(self, fd: int, length: int, offset: int) -> bytes:
        """`length` bytes, fewer only at the end of the file."""
        parts: list[bytes] = []
        while length > 0:
            part = os.pread(fd, min(length, 1 << 26), offset)
            if not part:
                break
            parts.append(part)
            length, offset = length - len(part), offset + len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def link(self, source: str, target: str) -> None:
        """FileExistsError when the target exists, so that of two processes only one succeeds."""
        os.link(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def boottime_ns(self) -> int:
        """Also advances while the machine sleeps, and is the same for all processes."""
        return time.clock_gettime_ns(_BOOTTIME)

    def wall_s(self) -> float:
        """Comparable with the time stamps of files."""
        return time.time()

    def sleep_ms(self, duration_ms: float) -> None:
        time.sleep(duration_ms / 1000.0)
