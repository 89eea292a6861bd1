"""The files of a store directory, one per generation of the journal.

`journal-<generation>.log` with the highest generation is the journal; older ones are leftovers. A new generation is written
aside, synced, then *linked* to its name: the link fails if another process created that generation first.
`damaged-<generation>.log` is a journal that had damage when it was compacted. It stays until the store was salvaged, so
compaction neither heals damage by forgetting it nor copies it as if it were good.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterable
from typing import NamedTuple

from spark_jms.store.disk import WITHOUT_RIGHT, Disk
from spark_jms.store.errors import StoreCorruptError
from spark_jms.store.file.frame import HEADER_BYTES, Header, decode_header, encode_frame, encode_header
from spark_jms.store.ledger.chunks import chunks
from spark_jms.store.ledger.codec import encode_sections
from spark_jms.store.ledger.entries import Entry

_NAME = re.compile(r"^journal-(\d{10})\.log$")
_GENERATION_AT = 16


class OpenJournal(NamedTuple):
    fd: int
    header: Header
    read_only: bool = False


class Generations:
    def __init__(self, directory: str, disk: Disk) -> None:
        self.directory = directory
        self._disk = disk

    def path(self, generation: int) -> str:
        return os.path.join(self.directory, f"journal-{generation:010d}.log")

    def listed(self) -> list[int]:
        """In ascending order. FileNotFoundError when the directory does not exist."""
        return sorted(int(found[1]) for found in map(_NAME.match, os.listdir(self.directory)) if found)

    def open(self, generation: int) -> OpenJournal:
        """The caller closes the descriptor. FileNotFoundError, StoreCorruptError, StoreVersionError."""
        path, read_only = self.path(generation), False
        try:
            fd = self._disk.open(path, os.O_RDWR)
        except OSError as error:
            if error.errno not in WITHOUT_RIGHT:
                raise
            fd, read_only = self._disk.open(path, os.O_RDONLY), True  # of a process that may only look
        try:
            header = decode_header(self._disk.pread_all(fd, HEADER_BYTES, 0), path)
            if header.generation != generation:
                raise StoreCorruptError(path, _GENERATION_AT, f"the header names generation {header.generation}")
        except BaseException:
            os.close(fd)
            raise
        return OpenJournal(fd, header, read_only)

    def create(self, generation: int, entries: Iterable[Entry]) -> tuple[OpenJournal, int]:
        """A new generation with these entries, and its length. FileExistsError when another process was first. After another
        OSError it may exist, complete, and whoever recovers continues in it, after `sync_names`."""
        target = self.path(generation)
        aside = f"{target}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
        header = Header(generation, secrets.token_bytes(16))
        fd = self._disk.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            try:
                length = self._write(fd, header, entries)
                self._disk.link(aside, target)
            finally:
                with contextlib.suppress(OSError):
                    self._disk.unlink(aside)
            self.sync_names()
        except BaseException:
            os.close(fd)
            raise
        return OpenJournal(fd, header), length

    def _write(self, fd: int, header: Header, entries: Iterable[Entry]) -> int:
        self._disk.pwrite_all(fd, encode_header(header), 0)
        offset = HEADER_BYTES
        for chunk in chunks(entries):
            frame = encode_frame(encode_sections(chunk), offset, header.seed)
            self._disk.pwrite_all(fd, frame, offset)
            offset += len(frame)
        self._disk.sync(fd)
        return offset

    def sync_names(self) -> None:
        self._disk.sync_folder_at(self.directory)

    def remove(self, generation: int) -> None:
        self._disk.unlink(self.path(generation))

    def remove_leftovers(self, newest: int) -> None:
        """Older generations, and files of writers that died before they could link them."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.directory):
                found = _NAME.match(name)
                if (found and int(found[1]) < newest) or (name.startswith("journal-") and name.endswith(".tmp")):
                    self._disk.unlink(os.path.join(self.directory, name))

    def keep_damaged(self, generation: int) -> str:
        """Gives this generation a second name that outlives its compaction, and returns it."""
        kept = os.path.join(self.directory, f"damaged-{generation:010d}.log")
        with contextlib.suppress(FileExistsError):  # an earlier compaction failed after this step
            self._disk.link(self.path(generation), kept)
        return kept
