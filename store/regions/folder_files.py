"""Small whole files in an open folder. Every call goes through the folder's descriptor: it belongs to that folder for good,
whatever its path leads to meanwhile. OSErrors."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator

from spark_jms.store.disk import Disk

VERSION_NAME = re.compile("[1-9][0-9]{0,17}")


def numbers(disk: Disk, folder: int) -> list[int]:
    """The files whose names are the numbers of versions, from 1, as `str` writes them."""
    return [int(name) for name in disk.names(folder) if VERSION_NAME.fullmatch(name)]


def remove(disk: Disk, folder: int, name: str) -> None:
    """No error without the file."""
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(name, folder=folder)


def replace(disk: Disk, folder: int, name: str, data: bytes, mode: int) -> None:
    """The old content or the new one, whatever happens."""
    with _written(disk, folder, name, data, mode) as temporary:
        disk.rename(temporary, name, folder=folder)
    disk.sync_folder(folder)


def link_new(disk: Disk, folder: int, name: str, data: bytes, mode: int) -> bool:
    """A file that was not there, whole; False when it is there already."""
    with _written(disk, folder, name, data, mode) as temporary:
        try:
            disk.link(temporary, name, folder=folder)
        except FileExistsError:
            return False
    disk.sync_folder(folder)
    return True


@contextlib.contextmanager
def _written(disk: Disk, folder: int, name: str, data: bytes, mode: int) -> Iterator[str]:
    """A synced file beside it, for the moment."""
    temporary = f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
    fd = disk.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, folder=folder)
    try:
        disk.pwrite_all(fd, data, 0)
        disk.sync(fd)
        yield temporary
    finally:
        disk.close(fd)
        remove(disk, folder, temporary)
