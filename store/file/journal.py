"""The journal of a store directory: one file that all processes append to, under one lock, and fold into one ledger.

Whoever may write (it has the lock) calls `catch_up`, then `append`; whoever reads calls `refresh`. Readers trust the
hint (see lock.py) and so never see what was not acknowledged. What is not good is judged by judge.py: a record set is
refused, or the whole store, or what was torn is cut off (under the lock only).

Compaction writes the ledger as the first frames of the next generation: made aside, synced, then *linked* to its
name, which fails if somebody was first; the highest generation that has its name is the journal. One that is damaged
stays: it is linked to the name `damaged-<generation>.log` before, and the next generation says which record sets are
refused and where their damage is. So damage is never healed by being forgotten, and never copied as if it was good.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace

from spark_jms.store.errors import (
    SessionLostError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreNotFoundError,
    StoreWriteError,
)
from spark_jms.store.file.disk import Disk
from spark_jms.store.file.frame import (
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    Header,
    decode_header,
    encode_frame,
    encode_header,
)
from spark_jms.store.file.judge import Judged, judge
from spark_jms.store.file.lock import Hint, JournalLock
from spark_jms.store.ledger.codec import DecodeError, decode_sections, encode_sections
from spark_jms.store.ledger.ledger import Damaged, Entry, Ledger, LedgerError, Restored

log = logging.getLogger("store.file")

_NAME = re.compile(r"^journal-(\d{10})\.log$")
_SNAPSHOT_FRAME_BYTES = 8 * 1024 * 1024
_OBJECT_OVERHEAD_BYTES, _RECORD_OVERHEAD_BYTES = 8, 96
_REFRESH_TRIES = 100


def write_error(error: OSError, what: str) -> StoreWriteError:
    kind = StoreFullError if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else StoreWriteError
    return kind(f"{what}: {error.strerror or error}")


class Journal:
    """Not thread-safe: the backend calls it under its own lock."""

    def __init__(
        self,
        directory: str,
        lock: JournalLock,
        disk: Disk,
        *,
        fsync: bool,
        compact_min_bytes: int,
        compact_ratio: float,
    ) -> None:
        self.directory = directory
        self._lock = lock
        self._disk = disk
        self._fsync = fsync
        self._compact_min_bytes = compact_min_bytes
        self._compact_ratio = compact_ratio
        self._compact_not_below_bytes = 0
        self.ledger = Ledger()
        self._fd = -1
        self._header = Header(0, b"")
        self._length = 0
        self._raw_hint = b""
        self._recovered = False
        self._in_flux = False  # the ledger is not what the file says up to `_length`, or not certainly
        self._told: set[str] = set()  # damaged record sets that the log knows of
        self.sound = True  # no half-written frame of ours is left behind
        self.physical_write_count = self.physical_write_bytes = 0
        self.compaction_count = self.failed_compaction_count = self.torn_tail_count = 0

    @property
    def generation(self) -> int:
        return self._header.generation

    @property
    def path(self) -> str:
        return self._path(self.generation)

    def _path(self, generation: int, kind: str = "journal") -> str:
        return os.path.join(self.directory, f"{kind}-{generation:010d}.log")

    # ---- reading

    def refresh(self) -> None:
        """Fold what others acknowledged since; one pread when there is nothing new."""
        if self._in_flux:  # somebody was interrupted
            self.invalidate()
        for _ in range(_REFRESH_TRIES):
            raw, hint = self._lock.look()
            if raw == self._raw_hint and self._fd >= 0:
                return
            if hint is None:  # caught in the middle of its change
                continue
            try:
                if self._fd < 0 or hint.generation != self.generation:
                    self._load(hint.generation)
                self._fold(hint.length)
            except FileNotFoundError:
                self.invalidate()  # compacted away between the two looks
                continue
            self._raw_hint = raw
            return
        raise StoreBusyError(f"{self._lock.path} names no journal that can be read")

    def _load(self, generation: int) -> None:
        """Begin anew with the file of this generation; the ledger is empty until it is folded."""
        self.invalidate()
        path = self._path(generation)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            header = decode_header(self._disk.pread_all(fd, HEADER_BYTES, 0), path)
            if header.generation != generation:
                raise StoreCorruptError(path, 16, f"the header names generation {header.generation}")
        except BaseException:
            os.close(fd)
            raise
        self._fd, self._header, self._length = fd, header, HEADER_BYTES

    def _fold(self, until: int) -> None:
        """Everything up to `until` was acknowledged, so all of it must be good."""
        if until <= self._length:
            return
        data = self._disk.pread_all(self._fd, until - self._length, self._length)
        self._apply(judge(data, self._length, self._header.seed, until, self.path))

    def _apply(self, judged: Judged) -> None:
        path, self._in_flux = self.path, True
        for frame in judged.frames:
            try:
                for entry in decode_sections(frame.sections, os.path.basename(path)):
                    self.ledger.apply(self._placed(entry) if isinstance(entry, Damaged) else entry)
            except (DecodeError, LedgerError) as error:
                self.invalidate()
                raise StoreCorruptError(path, frame.offset, str(error)) from error
        self._length, self._in_flux = judged.end, False

    def _placed(self, damaged: Damaged) -> Damaged:
        """In the file there is only the name of the file with the damage: the directory may have been moved."""
        placed = replace(damaged, file=os.path.join(self.directory, damaged.file))
        if damaged.name not in self._told:
            self._told.add(damaged.name)
            log.warning("%s", placed.error())
        return placed

    def invalidate(self) -> None:
        """Forget the ledger: it may hold what was never written. The next look reads the file from its start."""
        fd, self._fd, self._length, self._raw_hint = self._fd, -1, 0, b""
        self.ledger = Ledger()
        self._in_flux = False
        if fd >= 0:
            os.close(fd)

    # ---- writing, under the journal lock

    def catch_up(self, dirty: bool, create: bool) -> None:
        """The newest ledger, and a file that ends with a good frame."""
        if self._in_flux:
            self.invalidate()
        if not dirty and self._recovered:
            self.refresh()
            if os.fstat(self._fd).st_size == self._length and not self._lock.must_switch():
                return
        for _ in range(_REFRESH_TRIES):
            self._recover(create)
            if not self._lock.must_switch():
                break
            with contextlib.suppress(FileExistsError):  # the one that was broken off finished its compaction: after it
                self._switch()
                self._lock.switched()
                break
        self._recovered = self.sound = True

    def _generations(self) -> list[int]:
        return sorted(int(found[1]) for found in map(_NAME.match, os.listdir(self.directory)) if found)

    def _recover(self, create: bool) -> None:
        generations = self._generations()
        _, hint = self._lock.look()
        if not generations:
            self.invalidate()
            if hint is not None:
                raise StoreCorruptError(self._path(hint.generation), 0, "the journal is gone")
            if not create:
                raise StoreNotFoundError(self.directory)
            self._make(1, [])
            generations = [1]
        generation = generations[-1]
        if hint is not None and hint.generation > generation:
            raise StoreCorruptError(self._path(hint.generation), 0, "the journal is gone")
        if self._fd < 0 or self.generation != generation:
            self._load(generation)
        acknowledged = hint.length if hint and hint.synced and hint.generation == generation else 0
        self._read_to_end(acknowledged)
        self._publish()
        self._tidy(generation)

    def _read_to_end(self, acknowledged: int) -> None:
        size = os.fstat(self._fd).st_size
        if size < self._length:
            raise StoreCorruptError(self.path, size, f"the file is cut off, {self._length} bytes were read before")
        data = self._disk.pread_all(self._fd, size - self._length, self._length)
        judged = judge(data, self._length, self._header.seed, acknowledged, self.path)
        self._apply(judged)
        try:
            if judged.torn:
                self._disk.truncate(self._fd, judged.end)
                self.torn_tail_count += 1
            if self._fsync:  # its writer may have died before it could
                self._disk.sync(self._fd)
        except OSError as error:
            self.invalidate()
            raise write_error(error, self.path) from error

    def _publish(self) -> None:
        self._lock.publish(Hint(self.generation, self._length, self._fsync))
        self._raw_hint = b""

    def _tidy(self, generation: int) -> None:
        with contextlib.suppress(OSError):
            for name in os.listdir(self.directory):
                found = _NAME.match(name)
                if (found and int(found[1]) < generation) or (name.startswith("journal-") and name.endswith(".tmp")):
                    self._disk.unlink(os.path.join(self.directory, name))

    def begin(self) -> Ledger:
        """To be changed; without `append` afterwards it is forgotten."""
        self._in_flux = True
        return self.ledger

    def append(self, entries: Sequence[Entry]) -> None:
        """One frame, one write, one sync. The ledger has these entries applied already; on failure it is forgotten."""
        if not entries:
            self._in_flux = False
            return
        frame = encode_frame(encode_sections(entries), self._length, self._header.seed)
        try:
            self._disk.pwrite_all(self._fd, frame, self._length)
            if self._fsync:
                self._disk.sync(self._fd)
        except OSError as error:
            raise self._undo(error) from error
        if self._lock.superseded():
            self.invalidate()
            raise SessionLostError(
                "this process was stopped while it wrote, and another went on; it is unknown if this last commit counts"
            )
        self.physical_write_count += 1
        self.physical_write_bytes += len(frame)
        self._length, self._in_flux = self._length + len(frame), False
        try:
            self._publish()
        except OSError:  # it is durable all the same: the lock stays marked, and the next writer tells the readers
            self.sound = self._recovered = False

    def _undo(self, error: OSError) -> StoreError:
        """Cut off what was half written. Should that fail too, the lock stays marked for the next writer."""
        path, length = self.path, self._length
        try:
            self._disk.truncate(self._fd, length)
            if self._fsync:
                with contextlib.suppress(OSError):
                    self._disk.sync(self._fd)
        except OSError:
            self.sound = False
        self.invalidate()
        return write_error(error, path)

    # ---- compaction

    def wants_compaction(self) -> bool:
        if self._length <= max(self._compact_min_bytes, self._compact_not_below_bytes):
            return False
        ledger = self.ledger
        live = ledger.object_bytes + _OBJECT_OVERHEAD_BYTES * ledger.object_count
        return self._length > self._compact_ratio * (live + _RECORD_OVERHEAD_BYTES * len(ledger.records))

    def compact(self) -> None:
        """All that was acknowledged stays in the old generation until the new one has its name: failing is harmless."""
        length = self._length
        try:
            self._switch()
        except (OSError, StoreError):
            self.failed_compaction_count += 1
            # Where it failed decides which generation counts; the look at the directory, by whoever writes next, tells.
            self.invalidate()
            self.sound = self._recovered = False
        self._compact_not_below_bytes = 2 * (self._length or length)

    def _switch(self) -> None:
        before = self.path
        generation = self.generation + 1
        self._keep_damaged()
        self._make(generation, self._snapshot())
        fd = -1
        try:
            fd = os.open(self._path(generation), os.O_RDWR | os.O_CLOEXEC)
            header = decode_header(self._disk.pread_all(fd, HEADER_BYTES, 0), self._path(generation))
            length = os.fstat(fd).st_size
        except BaseException:
            if fd >= 0:
                os.close(fd)
            self._disk.unlink(self._path(generation))  # else it would count as the newer one
            raise
        old, self._fd, self._header, self._length = self._fd, fd, header, length
        os.close(old)
        self._publish()
        self.compaction_count += 1
        with contextlib.suppress(OSError):
            self._disk.unlink(before)

    def _keep_damaged(self) -> None:
        """By another name, before the next generation can make this file a thing of the past."""
        ledger, kept = self.ledger, self._path(self.generation, "damaged")
        here = [damaged for damaged in ledger.damaged.values() if damaged.file == self.path]
        if not here:
            return
        with contextlib.suppress(FileExistsError):  # a compaction that failed came so far
            self._disk.link(self.path, kept)
        for damaged in here:
            ledger.damaged[damaged.name] = replace(damaged, file=kept)

    def _snapshot(self) -> Iterable[Entry]:
        for entry in self.ledger.snapshot():
            yield replace(entry, file=os.path.basename(entry.file)) if isinstance(entry, Damaged) else entry

    def _make(self, generation: int, entries: Iterable[Entry]) -> None:
        """A new generation with these entries, whole or not at all. FileExistsError when somebody was first."""
        target = self._path(generation)
        aside = f"{target}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
        header = Header(generation, secrets.token_bytes(16))
        fd = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            try:
                self._disk.pwrite_all(fd, encode_header(header), 0)
                offset = HEADER_BYTES
                for chunk in _chunks(entries):
                    frame = encode_frame(encode_sections(chunk), offset, header.seed)
                    self._disk.pwrite_all(fd, frame, offset)
                    offset += len(frame)
                self._disk.sync(fd)
            finally:
                os.close(fd)
            self._disk.link(aside, target)
        finally:
            with contextlib.suppress(OSError):
                self._disk.unlink(aside)
        try:
            self._disk.sync_directory(self.directory)
        except OSError:
            self._disk.unlink(target)
            raise

    def close(self) -> None:
        self.invalidate()


def _chunks(entries: Iterable[Entry]) -> Iterable[list[Entry]]:
    chunk: list[Entry] = []
    size = 0
    for entry in entries:
        chunk.append(entry)
        size += FRAME_HEADER_BYTES
        if isinstance(entry, Restored):
            size += sum(len(key) + len(value) for key, value in entry.objects)
        if size >= _SNAPSHOT_FRAME_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
