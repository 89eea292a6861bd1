"""The system calls that decide what a loss of power leaves: of the file store's journal, and of the Global Directory.

Tests inject a disk that is full, slow, loses power, or stops after any call. What reads goes past it, and so do the files of
sessions (file/session_locks.py) and of daemons' locks, which mean nothing once their processes are dead.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


WITHOUT_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)  # to write: a process that may read can still look


@contextlib.contextmanager
def opened_folder(path: str | Path, root: int | None = None) -> Iterator[int]:
    """Relative to the folder `root`, if one is given."""
    folder = os.open(path, FOLDER_FLAGS, dir_fd=root)
    try:
        yield folder
    finally:
        os.close(folder)


class Disk:
    """One method per call, no state. Names are relative to the open folder `folder`, if one is given."""

    # ---- what is in a file

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

    # ---- what is in a folder

    def open(self, path: str, flags: int, mode: int = 0o666, *, folder: int | None = None) -> int:
        return os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=folder)

    def link(self, source: str, target: str, *, folder: int | None = None) -> None:
        """FileExistsError when the target exists, so that of two processes only one succeeds."""
        os.link(source, target, src_dir_fd=folder, dst_dir_fd=folder)

    def rename(self, source: str, target: str, *, folder: int | None = None) -> None:
        os.rename(source, target, src_dir_fd=folder, dst_dir_fd=folder)

    def unlink(self, path: str, *, folder: int | None = None) -> None:
        os.unlink(path, dir_fd=folder)

    def make_folder(self, path: str, mode: int = 0o777, *, folder: int | None = None) -> None:
        os.mkdir(path, mode, dir_fd=folder)

    def sync_folder(self, folder: int) -> None:
        """The names in it: the files and folders that it has, and those that it has no more."""
        os.fsync(folder)

    def sync_folder_at(self, path: str) -> None:
        with opened_folder(path) as folder:
            self.sync_folder(folder)

    def make_folders(self, path: str) -> None:
        """The folder at this absolute path, and those above it. Nothing is made in a folder before the folder's own name is
        synced, so one that exists can only be lost while it is empty; also one whose maker was killed before it could sync."""
        if os.path.isdir(path):
            return
        above = os.path.dirname(path)
        self.make_folders(above)
        self.sync_name(above)
        with contextlib.suppress(FileExistsError):
            self.make_folder(path)

    def sync_name(self, path: str) -> None:
        """That the folder exists. A folder above it that this process may not read is none that it has made."""
        with contextlib.suppress(PermissionError):
            self.sync_folder_at(os.path.dirname(path))

    # ---- clocks

    def boottime_ns(self) -> int:
        """Also advances while the machine sleeps, and is the same for all processes."""
        return time.clock_gettime_ns(_BOOTTIME)

    def wall_s(self) -> float:
        """Comparable with the time stamps of files."""
        return time.time()

    def sleep_ms(self, duration_ms: float) -> None:
        time.sleep(duration_ms / 1000.0)
