"""The journal of a store directory: one file that all processes append to under one lock, and replay into their ledgers.

A writer holds the lock and calls `catch_up`, then `append`; a reader calls `refresh`. Readers trust the hint (locks.py), so
they never see what was not acknowledged. Compaction writes the ledger as the first frames of the next generation
(journal_files.py); the old one counts until the new one has its name, so a compaction that fails does no harm.

Behind the last frame are zeros, the reserve for the frames to come. A frame that makes the file longer changes the file's
metadata, and then a sync writes the metadata too: it takes half as long again as the sync of a frame that is written over
zeros (measured on ext4; docs/DATA-STORES.md). So the write that makes the file longer adds zeros behind its frame: as many
bytes as the journal has, between LEAST_BYTES and the given limit. Zeros that only space was allocated for (fallocate) would
not do, because their first use changes metadata as well. No frame begins with a zero, so zeros from the end of a frame to the
end of the file are reserve, and anything else there is a torn write or damage (frame.py). A disk with too little room for the
reserve takes the frame alone.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence

from spark_jms.store.contract import StoreStatistics
from spark_jms.store.disk import WITHOUT_RIGHT, Disk
from spark_jms.store.errors import (
    OutcomeUnknownError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreNotFoundError,
    StoreRightsError,
    StoreWriteError,
)
from spark_jms.store.file.frame import HEADER_BYTES, encode_frame
from spark_jms.store.file.journal_files import Generations, Replay
from spark_jms.store.file.locks import Hint, JournalLock, decode_hint
from spark_jms.store.ledger.codec import encode_sections
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import Entry

COMPACT_MIN_BYTES = 1024 * 1024
COMPACT_RATIO = 4.0
RESERVE_BYTES = 256 * 1024
LEAST_BYTES = 4096
_OBJECT_OVERHEAD_BYTES, _RECORD_OVERHEAD_BYTES = 8, 96
_REFRESH_TRIES = 100
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Journal:
    """Not thread-safe: the backend calls it under its own lock. `sound`: no half-written frame of this process may be at the
    end of the file. At most `reserve_limit` bytes of zeros are behind the last frame."""

    def __init__(
        self,
        directory: str,
        lock: JournalLock,
        disk: Disk,
        compaction: CompactionPolicy,
        *,
        fsync: bool,
        reserve_limit: int,
    ) -> None:
        self.directory = directory
        self._lock = lock
        self._disk = disk
        self._compaction = compaction
        self._fsync = fsync
        self._reserve_limit = reserve_limit
        self._generations = Generations(directory, disk)
        self._replay = Replay(self._generations, disk)
        self._raw_hint = b""  # up to which the replay has come
        self._recovered = False
        self.sound = True
        self._physical_write_count = self._physical_write_bytes = 0
        self._compaction_count = self.failed_compaction_count = self._torn_tail_count = 0
        self.compaction_failure: StoreError | None = None  # of the last one that failed

    @property
    def ledger(self) -> Ledger:
        return self._replay.ledger

    @property
    def path(self) -> str:
        return self._replay.path

    @property
    def length(self) -> int:
        """Without the reserve."""
        return self._replay.length

    def statistics(self) -> StoreStatistics:
        return StoreStatistics(
            physical_write_count=self._physical_write_count,
            physical_write_bytes=self._physical_write_bytes,
            compaction_count=self._compaction_count,
            failed_compaction_count=self.failed_compaction_count,
            torn_tail_count=self._torn_tail_count,
            lock_break_count=self._lock.break_count,
        )

    # ---- reading

    def refresh(self) -> None:
        """Reads what other processes acknowledged since; one pread when there is nothing new."""
        replay = self._replay
        if replay.in_flux:
            replay.forget()
        for _ in range(_REFRESH_TRIES):
            raw = self._lock.look()
            if raw == self._raw_hint and replay.is_open:
                return
            self._raw_hint = b""
            hint = decode_hint(raw)
            if hint is None:  # a writer is changing it
                continue
            try:
                if not replay.is_open or hint.generation != replay.generation:
                    replay.open(hint.generation)
                replay.read_acknowledged(hint.length)
            except FileNotFoundError:  # compacted between the two looks
                replay.forget()
                continue
            self._raw_hint = raw
            return
        raise StoreBusyError(f"{self._lock.path} names no journal that can be read")

    # ---- writing, under the journal lock

    def catch_up(self, dirty: bool, create: bool) -> None:
        """Afterwards the ledger is the newest, and the journal ends with a good frame. `dirty`: the writer before died or was
        stopped while it held the lock."""
        replay = self._replay
        if replay.in_flux or replay.read_only:  # the right to write it may have been granted since
            replay.forget()
        if not dirty and self._recovered:
            if self._lock.raw_hint != self._raw_hint or not replay.is_open:
                self.refresh()
            if replay.size() >= replay.length and not self._lock.must_switch:
                return
        for _ in range(_REFRESH_TRIES):
            self._recover(create)
            if not self._lock.must_switch:
                break
            # The stopped writer may finish its own compaction first; then this process recovers again, after it.
            with contextlib.suppress(FileExistsError):
                self._switch()
                self._lock.switched()
                break
        self._recovered = self.sound = True

    def _recover(self, create: bool) -> None:
        listed = self._generations.listed()
        hint = decode_hint(self._lock.look())
        if hint is not None and (not listed or hint.generation > listed[-1]):
            self._replay.forget()
            raise StoreCorruptError(self._generations.path(hint.generation), 0, "the journal is missing")
        if not listed:
            self._replay.forget()
            if not create:
                raise StoreNotFoundError(self.directory)
            self._disk.sync_name(self.directory)
            created, _ = self._generations.create(1, [])
            os.close(created.fd)
            listed = [1]
        generation = listed[-1]
        if not self._replay.is_open or self._replay.generation != generation:
            self._replay.open(generation)
        self._require_right()
        self._read_to_end(hint.length if hint and hint.synced and hint.generation == generation else 0)
        self._publish()
        self._generations.remove_leftovers(generation)

    def _read_to_end(self, acknowledged: int) -> None:
        replay = self._replay
        judged = replay.read_rest(acknowledged)
        try:
            if judged.torn:
                self._disk.truncate(replay.fd, judged.end)
                self._torn_tail_count += 1
            if self._fsync:  # the writer may have died before it synced this, or the name of the file
                self._write_again(max(acknowledged, HEADER_BYTES), judged.end)
                self._disk.sync(replay.fd)
                self._generations.sync_names()
        except OSError as error:
            path = replay.path
            replay.forget()
            raise write_error(error, path) from error

    def _write_again(self, start: int, end: int) -> None:
        """After a sync that failed, the system takes what it could not write for written: the next sync succeeds without it."""
        fd = self._replay.fd
        self._disk.pwrite_all(fd, self._disk.pread_all(fd, end - start, start), start)

    def _publish(self) -> None:
        self._raw_hint = b""
        self._lock.publish(Hint(self._replay.generation, self._replay.length, self._fsync))
        self._raw_hint = self._lock.raw_hint

    def _require_right(self) -> None:
        if self._replay.read_only:
            raise StoreRightsError(f"this process may read {self.path}, but not write it")

    def begin(self) -> Ledger:
        """The ledger, to be changed. It is dropped unless `append` follows."""
        self._require_right()
        self._replay.in_flux = True
        return self._replay.ledger

    def append(self, entries: Sequence[Entry]) -> None:
        """One frame, one write, one sync. The ledger already has these entries; if the write fails, it is dropped."""
        replay = self._replay
        if not entries:
            replay.in_flux = False
            return
        frame = encode_frame(encode_sections(entries), replay.length, replay.header.seed)
        try:
            self._write(frame)
            if self._fsync:
                self._disk.sync(replay.fd)
        except OSError as error:
            raise self._undo(error) from error
        if self._lock.superseded():
            replay.forget()
            raise OutcomeUnknownError("this process was stopped while it wrote, and another took over")
        self._physical_write_count += 1
        self._physical_write_bytes += len(frame)
        replay.length, replay.in_flux = replay.length + len(frame), False
        try:
            self._publish()
        except OSError:  # the frame is durable all the same: the lock stays marked, and the next writer publishes it
            self.sound = self._recovered = False

    def _write(self, frame: bytes) -> None:
        replay = self._replay
        end = replay.length + len(frame)
        reserve = reserve_bytes(end, self._reserve_limit) if end > replay.size() else 0
        try:
            self._disk.pwrite_all(replay.fd, frame + bytes(reserve), replay.length)
        except OSError as error:
            if not (reserve and error.errno in _FULL):
                raise
            self._disk.pwrite_all(replay.fd, frame, replay.length)

    def _undo(self, error: OSError) -> StoreError:
        """Cuts off what was written of the frame. If that fails too, the lock stays marked, and the next writer keeps the frame if
        it is whole."""
        replay = self._replay
        refusal: StoreError = write_error(error, replay.path)
        try:
            self._disk.truncate(replay.fd, replay.length)
            if self._fsync:
                self._disk.sync(replay.fd)
        except OSError as again:
            self.sound = False
            refusal = OutcomeUnknownError(
                f"{refusal.detail()}; and it could not be cut off again: {again.strerror or again}"
            )
        replay.forget()
        return refusal

    # ---- compaction

    def compact_when_due(self, wanted: bool) -> None:
        if wanted or self._compaction.is_due(self._replay.length, self._replay.ledger):
            self._compact()

    def _compact(self) -> None:
        length = self._replay.length
        try:
            self._switch()
        except (OSError, StoreError) as error:
            self.failed_compaction_count += 1
            self.compaction_failure = write_error(error, self.directory) if isinstance(error, OSError) else error
            # Where it failed decides which generation counts; the next writer looks into the directory.
            self._replay.forget()
            self.sound = self._recovered = False
        self._compaction.attempted(self._replay.length or length)

    def _switch(self) -> None:
        """Continues in a new generation. FileExistsError when another process created it first."""
        replay, generations = self._replay, self._generations
        before, generation = replay.generation, replay.generation + 1
        opened, length = generations.create(generation, replay.snapshot())
        replay.continue_in(opened, length)
        self._publish()
        self._compaction_count += 1
        with contextlib.suppress(OSError):
            generations.remove(before)

    def close(self) -> None:
        self._replay.forget()


class CompactionPolicy:
    """When a journal is compacted: once it is longer than `min_bytes` and longer than `ratio` times what its ledger needs; and,
    after an attempt, not before its length has doubled, so that a compaction that fails or gains little is not tried at every
    write."""

    def __init__(self, min_bytes: int, ratio: float) -> None:
        self._ratio = ratio
        self._not_below_bytes = min_bytes
        self._min_bytes = min_bytes

    def is_due(self, length: int, ledger: Ledger) -> bool:
        if length <= self._not_below_bytes:
            return False
        live = ledger.object_bytes + _OBJECT_OVERHEAD_BYTES * ledger.object_count
        return length > self._ratio * (live + _RECORD_OVERHEAD_BYTES * len(ledger.records))

    def attempted(self, length: int) -> None:
        self._not_below_bytes = max(self._min_bytes, 2 * length)


def reserve_bytes(length: int, limit: int) -> int:
    """How many zeros to write behind a journal of this length, when the file has to grow."""
    return min(max(length, LEAST_BYTES), limit)


def write_error(error: OSError, what: str) -> StoreWriteError:
    kind = (
        StoreRightsError
        if error.errno in WITHOUT_RIGHT
        else StoreFullError
        if error.errno in _FULL
        else StoreWriteError
    )
    reason = error.strerror or str(error)
    if error.errno in (errno.EMFILE, errno.ENFILE):
        reason += ": raise the limit of this process (ulimit -n), or close the contexts that it does not use any more"
    return kind(f"{what}: {reason}")
