"""The paging files of one process: bytes that left its memory for a while.

The files have no name: the directory shows none of them, and the system deletes them when the process closes them or dies, also
by `kill -9`. So nothing of an earlier process has to be looked for. On a file system that knows no nameless files (O_TMPFILE) a
file is created and removed in one step; a process that is killed between the two leaves one without bytes.

Features: T7 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
import tempfile
import threading
import zlib
from dataclasses import dataclass
from typing import IO

import pyarrow as pa

from spark_jms.core.message_buffer import PagePlace, PageSpace
from spark_jms.core.store_compression import Codec
from spark_jms.errors import PagingError

_VOLATILE = "/tmp"


@dataclass(frozen=True)
class StoredPage:
    """`plain_bytes`: of the data, where the page is compressed."""

    place: PagePlace
    checksum: int
    plain_bytes: int | None = None


def default_directory() -> str:
    """TMPDIR and its like if set, else /var/tmp, which is on a disk."""
    chosen = tempfile.gettempdir()
    disk = "/var/tmp"
    return disk if chosen == _VOLATILE and os.access(disk, os.W_OK) else chosen


class PagingFiles:
    """Thread-safe. `directory` None: the default; it is created when the first page is written. `codec`: of the pages."""

    def __init__(self, directory: str | None = None, codec: Codec | None = None) -> None:
        self.directory = directory or default_directory()
        self._codec = codec
        self._lock = threading.Lock()
        self._space = PageSpace()
        self._files: dict[int, IO[bytes]] = {}

    def write(self, data: pa.Buffer) -> StoredPage:
        """Raises PagingError when the directory is full or cannot be written; then nothing is kept."""
        packed = data if self._codec is None else _codec(self._codec).compress(data)
        is_packed = packed.size < data.size
        stored = packed if is_packed else data
        with self._lock:
            place = self._space.take(stored.size)
            try:
                file = self._files.get(place.segment) or self._created(place.segment)
            except BaseException as error:
                self._space.free(place)
                if isinstance(error, OSError):
                    raise self._refused(error) from error
                raise
        try:
            _write(file.fileno(), stored, place.offset)
        except BaseException as error:
            self._free(place)
            if isinstance(error, OSError):
                raise self._refused(error) from error
            raise
        return StoredPage(place, zlib.crc32(stored), data.size if is_packed else None)

    def read(self, page: StoredPage) -> pa.Buffer:
        """Raises PagingError when the page cannot be read or is damaged, and when the files are closed."""
        try:
            stored = _read(self._files[page.place.segment].fileno(), page.place)
        except KeyError:
            raise PagingError(
                f"a page in {self.directory} cannot be read: its connection was closed, and its files with it"
            ) from None
        except (OSError, ValueError) as error:  # ValueError: closed meanwhile
            raise PagingError(f"a page in {self.directory} cannot be read: {error}") from error
        if zlib.crc32(stored) != page.checksum:
            raise PagingError(f"a page in {self.directory} is damaged: its checksum is not that of what was written")
        if page.plain_bytes is None:
            return pa.py_buffer(stored)
        assert self._codec is not None
        return _codec(self._codec).decompress(stored, page.plain_bytes)

    def free(self, page: StoredPage) -> None:
        self._free(page.place)

    def close(self) -> None:
        """What is paged is lost."""
        with self._lock:
            files, self._files = self._files, {}
        for file in files.values():
            file.close()

    def abandon(self) -> None:
        """In a forked child, whose copies would keep the files on the disk."""
        self._lock = threading.Lock()
        self.close()

    @property
    def segments(self) -> int:
        """Files that are open now."""
        return len(self._files)

    def _created(self, segment: int) -> IO[bytes]:
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        made = tempfile.TemporaryFile(dir=self.directory, prefix="jmsq-paging-", buffering=0)  # noqa: SIM115
        self._files[segment] = made
        return made

    def _free(self, place: PagePlace) -> None:
        with self._lock:
            empty = self._space.free(place)
            file = self._files.pop(place.segment, None) if empty else None
        if file is not None:
            file.close()

    def _refused(self, error: OSError) -> PagingError:
        return PagingError(f"the paging directory {self.directory} takes no page: {error}")


def _codec(codec: Codec) -> pa.Codec:
    return pa.Codec(codec.name, compression_level=codec.level)


def _write(descriptor: int, data: pa.Buffer, offset: int) -> None:
    left = memoryview(data)
    while left:
        done = os.pwrite(descriptor, left, offset)
        left, offset = left[done:], offset + done


def _read(descriptor: int, place: PagePlace) -> bytes:
    parts, offset, left = [], place.offset, place.bytes
    while left:
        part = os.pread(descriptor, left, offset)
        if not part:
            raise OSError(f"it ends {left} bytes too early")
        parts.append(part)
        offset, left = offset + len(part), left - len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
