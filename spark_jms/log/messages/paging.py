"""The message buffer of a process: rows that wait, in memory or in its paging files.

A Context has one for the messages of its transacted sessions and its consumers; a task of Spark has one while it sorts the
messages of its partition. core/messages/paging.py has the rule of what pages.

The paging files have no name: the directory shows none of them, and the system deletes them when the process closes them or dies,
also by `kill -9`. So nothing of an earlier process has to be looked for. On a file system that knows no nameless files (O_TMPFILE)
a file is created and removed in one step; a process that is killed between the two leaves one without bytes.

Features: T7 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

import pyarrow as pa

from spark_jms.core.messages.compression import CODECS, Codec
from spark_jms.core.messages.paging import BufferAccount, BufferStatistics, PagePlace, PageSpace, default_limit_bytes
from spark_jms.errors import OptionError, PagingError
from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.settings.environment import Environment
from spark_jms.settings.table import Setting, read_texts, settings_of
from spark_jms.store.processes import abandon_in_child

log = logging.getLogger("spark_jms")
LEAST_PIECE_BYTES, PIECE_BYTES = 2**14, 2**20
_PIECE_BATCHES = 1_000
_OVERHEAD_BYTES = 8 * 2**10  # of the Arrow objects of a batch of one row
_VOLATILE = "/tmp"
_CGROUP = "/proc/self/cgroup"
_MOUNT = PurePosixPath("/sys/fs/cgroup")

# -- the buffer --------------------------------------------------------------------------------------------------------


class MessageBuffer:
    """Rows that wait, at most so many bytes of them in memory. Thread-safe."""

    def __init__(self, limit_bytes: int, directory: str | None = None, codec: Codec | None = None) -> None:
        self._account = BufferAccount(limit_bytes)
        self.files = PagingFiles(directory, codec)
        self._lock = threading.Lock()
        self._fails = False  # the newest attempt to page failed
        abandon_in_child(self)

    @property
    def limit_bytes(self) -> int:
        return self._account.limit_bytes

    @property
    def free_bytes(self) -> int:
        return self._account.free_bytes

    def keep(self, size: int) -> None:
        """So many more bytes are in memory, whatever the limit: of prefetched messages, which are read again from the log
        instead of being paged."""
        with self._lock:
            self._account.keep(size)

    def drop(self, size: int) -> None:
        with self._lock:
            self._account.drop(size)

    def statistics(self) -> BufferStatistics:
        with self._lock:
            return self._account.statistics()

    def close(self) -> None:
        """What is paged is lost."""
        self.files.close()

    def abandon(self) -> None:
        """In a forked child: the pages are the parent's."""
        self._lock = threading.Lock()
        self.files.abandon()

    # -- for PagedRows --------------------------------------------------------------------------------------------
    def hold(self, rows: pa.RecordBatch, kept_bytes: int) -> _Piece:
        """Rows that are needed later, of which `kept_bytes` were kept so far: on return the piece counts instead of them. Rows
        stay in memory when the paging directory does not take them."""
        piece = _Piece(rows.num_rows, rows.nbytes, rows)
        with self._lock:
            self._account.drop(kept_bytes)
            if self._account.has_room(piece.bytes):
                self._account.keep(piece.bytes)
                return piece
            self._account.keep(kept_bytes)
        try:
            piece.page = self.files.write(_packed(rows))
            piece.rows = None
        except PagingError as error:
            self.drop(kept_bytes)
            self._failed(error, piece.bytes)
            return piece
        with self._lock:
            self._account.drop(kept_bytes)
            first, self._fails = self._account.page(piece.bytes, piece.messages), False
        if first:
            log.info(
                "the message buffer has its %s bytes: messages page to %s",
                f"{self.limit_bytes:,}",
                self.files.directory,
            )
        return piece

    def rows_of(self, piece: _Piece) -> pa.RecordBatch:
        """Raises PagingError."""
        if piece.rows is not None:
            return piece.rows
        assert piece.page is not None
        return _unpacked(self.files.read(piece.page))

    def let_go(self, piece: _Piece) -> None:
        if piece.page is None:
            self.drop(piece.bytes)
            return
        with suppress(KeyError):  # the buffer was closed before
            self.files.free(piece.page)
        with self._lock:
            last = self._account.unpage(piece.bytes, piece.messages)
        if last:
            log.info("the message buffer has room again: no message is paged")

    def _failed(self, error: PagingError, size: int) -> None:
        with self._lock:
            self._account.keep(size)
            self._account.failures += 1
            first, self._fails = not self._fails, True
        if first:
            log.warning("%s. Messages stay in memory beyond the message buffer size until it takes pages again", error)


class PagedRows:
    """A sequence of rows that waits in a buffer. Not thread-safe. Small batches are joined, since each has a cost of its own."""

    def __init__(self, buffer: MessageBuffer, piece_bytes: int = PIECE_BYTES) -> None:
        self._buffer = buffer
        self._piece_bytes = min(max(piece_bytes, LEAST_PIECE_BYTES), PIECE_BYTES)
        self._pieces: list[_Piece] = []
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self.count = 0

    def append(self, rows: pa.RecordBatch) -> None:
        """When it raises, none of these rows is in the sequence, and all earlier ones are."""
        size = rows.nbytes + _OVERHEAD_BYTES
        self._pending.append(rows)
        self._pending_bytes += size
        self._buffer.keep(size)
        if self._pending_bytes >= self._piece_bytes or len(self._pending) >= _PIECE_BATCHES:
            try:
                self._join()
            except BaseException:
                self._pending.pop()
                self._pending_bytes -= size
                self._buffer.drop(size)
                raise
        self.count += rows.num_rows

    def _join(self) -> None:
        rows = self._pending[0] if len(self._pending) == 1 else pa.concat_batches(self._pending)
        self._pieces.append(self._buffer.hold(rows, self._pending_bytes))
        self._pending, self._pending_bytes = [], 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """In their order; one paged piece at a time is in memory. Raises PagingError."""
        if self._pending:
            self._join()
        for piece in self._pieces:
            yield self._buffer.rows_of(piece)

    def clear(self) -> None:
        pieces, self._pieces = self._pieces, []
        self._buffer.drop(self._pending_bytes)
        self._pending, self._pending_bytes = [], 0
        for piece in pieces:
            self._buffer.let_go(piece)
        self.count = 0


def buffer_of(factory: ConnectionFactory) -> MessageBuffer:
    """The buffer of a connection. What its factory leaves open is as the environment says. Raises OptionError."""
    here = environment()
    limit = factory.message_buffer_bytes or here.message_buffer_bytes or default_limit_bytes(memory_bytes())
    kind = (
        factory.message_compression_options if factory.paging_message_compression_enabled else here.paging_compression
    )
    return MessageBuffer(limit, factory.paging_directory or here.paging_directory, CODECS[kind] if kind else None)


def process_buffer() -> MessageBuffer:
    """The buffer of a process without a connection, as the environment says. Raises OptionError."""
    return buffer_of(ConnectionFactory())


def environment() -> Environment:
    """The variables of paging. Raises OptionError."""
    names = [row.name for row in settings_of(Environment).values() if "paging" in row.field or "buffer" in row.field]
    given = {name: text for name in names if (text := os.environ.get(name))}
    return Environment(**read_texts(Environment, given, _refuse))


@dataclass
class _Piece:
    """`rows` or `page`."""

    messages: int
    bytes: int
    rows: pa.RecordBatch | None = None
    page: StoredPage | None = None


def _refuse(row: Setting, text: str, allowed: str) -> Exception:
    return OptionError(f"the environment variable {row.name} is {text!r}, but must be {allowed}")


def _packed(rows: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return sink.getvalue()


def _unpacked(data: pa.Buffer) -> pa.RecordBatch:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


# -- paging files ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredPage:
    """A page in a paging file. `plain_bytes`: of the data, where the page is compressed."""

    place: PagePlace
    checksum: int
    plain_bytes: int | None = None


def default_directory() -> str:
    """TMPDIR and its like if set, else /var/tmp, which is on a disk."""
    chosen = tempfile.gettempdir()
    disk = "/var/tmp"
    return disk if chosen == _VOLATILE and os.access(disk, os.W_OK) else chosen


class PagingFiles:
    """The paging files of one process: bytes that left its memory for a while. Thread-safe. `directory` None: the default; it is
    created when the first page is written. `codec`: of the pages."""

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


# -- memory ------------------------------------------------------------------------------------------------------------


def memory_bytes(read: Callable[[str], str] | None = None, physical_bytes: int | None = None) -> int:
    """How much memory this process may use: the least of the limits of its control groups, of version 1 or 2, and the machine's
    memory. `read` returns the text of a file, or raises OSError."""
    reading = read or _text
    known = [_physical_bytes() if physical_bytes is None else physical_bytes]
    for path in _limit_files(reading):
        with suppress(OSError, ValueError):  # "max", or no such file
            known.append(int(reading(path)))
    return min(known)


def _limit_files(read: Callable[[str], str]) -> list[str]:
    """Of the group of this process and those around it, also where the mount shows this group as the root."""
    try:
        lines = read(_CGROUP).splitlines()
    except OSError:
        return []
    found = [str(_MOUNT / "memory.max"), str(_MOUNT / "memory" / "memory.limit_in_bytes")]
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers in ("", "memory"):
            mount, name = (_MOUNT, "memory.max") if not controllers else (_MOUNT / "memory", "memory.limit_in_bytes")
            group = PurePosixPath(path.lstrip("/"))
            found += [str(mount / above / name) for above in (group, *group.parents)]
    return found


def _text(path: str) -> str:
    return Path(path).read_text(encoding="utf-8").strip()


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
