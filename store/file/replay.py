"""The ledger as one generation of the journal tells it, up to a position.

Every process replays the journal for itself and reads on from its position when others have appended. judge.py decides
what damaged bytes mean. An interrupt (Ctrl-C) in the middle of a replay leaves it `in_flux`; then the file is replayed
from its start.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import replace

from spark_jms.store.disk import Disk
from spark_jms.store.errors import StoreCorruptError
from spark_jms.store.file.frame import HEADER_BYTES, Header
from spark_jms.store.file.generations import Generations, OpenJournal
from spark_jms.store.file.judge import Judged, judge
from spark_jms.store.ledger.codec import DecodeError, decode_sections
from spark_jms.store.ledger.entries import Damaged, Entry
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import LedgerError

log = logging.getLogger("store.file")


class Replay:
    """`ledger` is the file's content up to `length`, unless `in_flux`."""

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
