"""The system calls of the file store's journal and of the Global Directory that a test may want to see, or to make fail.

Tests inject a disk that is full, slow, in memory, loses power, or stops after any call. The Global Directory looks at its
entries through it as well; the file store reads past it. The files of sessions (file/locks.py) and of daemons' locks
go past it: they mean nothing once their processes are dead.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterator

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
WITHOUT_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)  # to write: a process that may read can still look


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
        with self.opened_folder(path) as folder:
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

    def remove_tree(self, path: str) -> None:
        """As much of it as can be removed."""
        shutil.rmtree(path, ignore_errors=True)

    # ---- what is there

    def open_folder(self, path: str, *, folder: int | None = None) -> int:
        return os.open(path, FOLDER_FLAGS, dir_fd=folder)

    @contextlib.contextmanager
    def opened_folder(self, path: str, *, folder: int | None = None) -> Iterator[int]:
        opened = self.open_folder(path, folder=folder)
        try:
            yield opened
        finally:
            self.close(opened)

    def close(self, fd: int) -> None:
        os.close(fd)

    def names(self, folder: int) -> list[str]:
        return os.listdir(folder)

    def folders(self, folder: int) -> list[str]:
        """Those of the names that lead to folders."""
        with os.scandir(folder) as found:
            return [entry.name for entry in found if _is_folder(entry)]

    def read(self, path: str, *, folder: int | None = None) -> bytes:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder), "rb") as file:
            return file.read()

    def stat(self, path: str, *, folder: int | None = None) -> os.stat_result:
        """Of a link itself, not of what it leads to."""
        return os.stat(path, dir_fd=folder, follow_symlinks=False)

    def has(self, path: str, *, folder: int | None = None) -> bool:
        try:
            os.stat(path, dir_fd=folder)
        except FileNotFoundError:
            return False
        return True

    def is_at(self, folder: int, path: str) -> bool:
        """Whether the path still leads to this open folder."""
        try:
            found, here = os.stat(path), os.fstat(folder)
        except FileNotFoundError:
            return False
        return (found.st_dev, found.st_ino) == (here.st_dev, here.st_ino)

    # ---- clocks

    def boottime_ns(self) -> int:
        """Also advances while the machine sleeps, and is the same for all processes."""
        return time.clock_gettime_ns(_BOOTTIME)

    def wall_s(self) -> float:
        """Comparable with the time stamps of files."""
        return time.time()

    def sleep_ms(self, duration_ms: float) -> None:
        time.sleep(duration_ms / 1000.0)


def _is_folder(found: os.DirEntry[str]) -> bool:
    try:
        return found.is_dir()
    except OSError:  # as of a link to itself
        return False
