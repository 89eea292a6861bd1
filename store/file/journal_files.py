"""The files of a store directory, one per generation of the journal, and the ledger that a process replays from one.

`journal-<generation>.log` with the highest generation is the journal; older ones are leftovers. A new generation is written
aside, synced, then *linked* to its name: the link fails if another process created that generation first.
`damaged-<generation>.log` is a journal that had damage when it was compacted. It stays until the store was salvaged, so
compaction neither heals damage by forgetting it nor copies it as if it were good.

Every process replays the journal for itself and reads on from its position when others have appended. `judge` (frame.py)
decides what damaged bytes mean. An interrupt (Ctrl-C) in the middle of a replay leaves it `in_flux`; then the file is
replayed from its start.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from spark_jms.store.disk import WITHOUT_RIGHT, Disk
from spark_jms.store.errors import StoreCorruptError
from spark_jms.store.file.frame import HEADER_BYTES, Header, Judged, decode_header, encode_frame, encode_header, judge
from spark_jms.store.ledger.codec import DecodeError, decode_sections, encode_sections
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import Damaged, Entry, LedgerError, chunks

log = logging.getLogger("store.file")
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
        OSError it may exist, complete, and the process that recovers continues in it, after `sync_names`."""
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


class Replay:
    """The ledger as one generation of the journal gives it: `ledger` is the file's content up to `length`, unless `in_flux`."""

    def __init__(self, generations: Generations, disk: Disk) -> None:
        self.ledger = Ledger()
        self.fd = -1
        self.header = Header(0, b"")
        self.read_only = False
        self.length = 0
        self.in_flux = False
        self._generations = generations
        self._disk = disk
        self._logged: set[str] = set()  # damaged record sets

    @property
    def is_open(self) -> bool:
        return self.fd >= 0

    @property
    def generation(self) -> int:
        return self.header.generation

    @property
    def path(self) -> str:
        return self._generations.path(self.generation)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def open(self, generation: int) -> None:
        """With an empty ledger; `read_acknowledged` or `read_rest` fill it."""
        self.forget()
        self.fd, self.header, self.read_only = self._generations.open(generation)
        self.length = HEADER_BYTES

    def read_acknowledged(self, until: int) -> None:
        """StoreCorruptError when anything up to `until` is damaged beyond single record sets: all of it was acknowledged."""
        if until > self.length:
            self._apply(self._judged(until, until))

    def read_rest(self, acknowledged: int) -> Judged:
        """To the end of the file. The caller cuts off a torn last write."""
        size = self.size()
        if size < self.length:
            raise StoreCorruptError(self.path, size, f"the file ends here, and {self.length} bytes were read before")
        judged = self._judged(size, acknowledged)
        self._apply(judged)
        return judged

    def _judged(self, until: int, acknowledged: int) -> Judged:
        data = self._disk.pread_all(self.fd, until - self.length, self.length)
        return judge(data, self.length, self.header.seed, acknowledged, self.path)

    def _apply(self, judged: Judged) -> None:
        path, self.in_flux = self.path, True
        for frame in judged.frames:
            try:
                for entry in decode_sections(frame.sections, os.path.basename(path)):
                    self.ledger.apply(self._placed(entry) if isinstance(entry, Damaged) else entry)
            except (DecodeError, LedgerError) as error:
                self.forget()
                raise StoreCorruptError(path, frame.offset, str(error)) from error
        self.length, self.in_flux = judged.end, False

    def _placed(self, damaged: Damaged) -> Damaged:
        """With the path of the damaged file: the journal names only the file, since the directory may be moved."""
        placed = replace(damaged, file=os.path.join(self._generations.directory, damaged.file))
        if damaged.name not in self._logged:
            self._logged.add(damaged.name)
            log.warning("%s", placed.error())
        return placed

    def snapshot(self) -> Iterable[Entry]:
        """The entries of the next generation. Damage stays where it is, under a name that outlives this generation."""
        if any(damaged.file == self.path for damaged in self.ledger.damaged.values()):
            kept = self._generations.keep_damaged(self.generation)
            for name, damaged in list(self.ledger.damaged.items()):
                if damaged.file == self.path:
                    self.ledger.damaged[name] = replace(damaged, file=kept)
        for entry in self.ledger.snapshot():
            yield replace(entry, file=os.path.basename(entry.file)) if isinstance(entry, Damaged) else entry

    def continue_in(self, opened: OpenJournal, length: int) -> None:
        """This generation was written from `snapshot`, with this length, so the ledger stays as it is."""
        old, self.length = self.fd, length
        self.fd, self.header, self.read_only = opened
        os.close(old)

    def forget(self) -> None:
        """Closes the file and drops the ledger, which may hold entries that were never written."""
        fd, self.fd, self.length = self.fd, -1, 0
        self.ledger = Ledger()
        self.in_flux = False
        if fd >= 0:
            os.close(fd)
