"""Small whole files in an open folder. Every call goes through the folder's descriptor: it belongs to that folder for good,
whatever its path leads to meanwhile. OSErrors."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

VERSION_NAME = re.compile("[1-9][0-9]{0,17}")
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextlib.contextmanager
def opened_folder(path: str | Path, root: int | None = None) -> Iterator[int]:
    """Relative to the folder `root`, if one is given."""
    folder = os.open(path, FOLDER_FLAGS, dir_fd=root)
    try:
        yield folder
    finally:
        os.close(folder)


def is_at(folder: int, path: Path) -> bool:
    """Whether the path still leads to this folder."""
    try:
        found, here = os.stat(path), os.fstat(folder)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (here.st_dev, here.st_ino)


def has(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def numbers(folder: int) -> list[int]:
    """The files whose names are the numbers of versions, from 1, as `str` writes them."""
    return [int(name) for name in os.listdir(folder) if VERSION_NAME.fullmatch(name)]


def read(folder: int, name: str) -> bytes:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    with open(fd, "rb") as file:
        return file.read()


def remove(folder: int, name: str) -> None:
    """No error without the file."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def replace(folder: int, name: str, data: bytes, mode: int) -> None:
    """The old content or the new one, whatever happens."""
    with _written(folder, name, data, mode) as temporary:
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    os.fsync(folder)


def link_new(folder: int, name: str, data: bytes, mode: int) -> bool:
    """A file that was not there, whole; False when it is there already."""
    with _written(folder, name, data, mode) as temporary:
        try:
            os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileExistsError:
            return False
    os.fsync(folder)
    return True


@contextlib.contextmanager
def _written(folder: int, name: str, data: bytes, mode: int) -> Iterator[str]:
    """A synced file beside it, for the moment."""
    temporary = f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=folder)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
        yield temporary
    finally:
        os.close(fd)
        remove(folder, temporary)
