"""The store in a directory: FileStore, which users open, the backend behind it, and its administration.

All openings of one directory by one process share one backend, and so one group commit; several processes share one journal.
The leader of a group commit takes the journal lock, runs all plans that are queued by then on the newest ledger, writes their
entries as one frame and syncs once. Each plan sees the entries of the plans before it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection
from typing import TypeVar

from spark_jms.store.contract import StoreOpening, StoreStatistics
from spark_jms.store.disk import Disk
from spark_jms.store.errors import StoreAbsentError, StoreBusyError, StoreError, StoreNotFoundError
from spark_jms.store.file.journal import (
    COMPACT_MIN_BYTES,
    COMPACT_RATIO,
    RESERVE_BYTES,
    CompactionPolicy,
    Journal,
    write_error,
)
from spark_jms.store.file.locks import JournalLock, SessionLocks
from spark_jms.store.file.salvage import salvage_directory
from spark_jms.store.ledger.administration import OpenedAdministration, Salvaged
from spark_jms.store.ledger.backend import Backend, ChangeAnswer, ChangeRequest, Transaction
from spark_jms.store.ledger.group_commit import Drain, GroupCommit, GroupRequest, finish
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import Ended
from spark_jms.store.ledger.rules import run_change
from spark_jms.store.ledger.store import LedgerStore
from spark_jms.store.processes import SharedBackends, UserCount, abandon_in_child

T = TypeVar("T")
_shared: SharedBackends[FileBackend] = SharedBackends()


class FileStore(LedgerStore):
    """A store in one directory of a local file system. Each has its own backend; `shared` uses the one of this process."""

    def __init__(
        self,
        path: str,
        *,
        session_timeout_ms: int = 10_000,
        create: bool = True,
        fsync: bool = True,
        compact_min_bytes: int = COMPACT_MIN_BYTES,
        compact_ratio: float = COMPACT_RATIO,
        reserve_limit: int = RESERVE_BYTES,
        disk: Disk | None = None,
        clock_ms: Callable[[], float] | None = None,
        backend: FileBackend | None = None,
    ) -> None:
        super().__init__(
            backend
            or FileBackend(
                path,
                session_timeout_ms=session_timeout_ms,
                create=create,
                fsync=fsync,
                compact_min_bytes=compact_min_bytes,
                compact_ratio=compact_ratio,
                reserve_limit=reserve_limit,
                disk=disk,
                clock_ms=clock_ms,
            )
        )

    @classmethod
    def shared(
        cls, path: str, *, session_timeout_ms: int = 10_000, create: bool = True, opening: StoreOpening | None = None
    ) -> FileStore:
        def make() -> FileBackend:
            return FileBackend(path, session_timeout_ms=session_timeout_ms, create=create)

        key = (os.path.realpath(path), session_timeout_ms)
        return cls(path, backend=_shared.take(key, make, opening or StoreOpening()))


class FileBackend(Backend):
    """One per directory and process, shared by all stores that are opened on it. Thread-safe."""

    def __init__(
        self,
        path: str,
        *,
        session_timeout_ms: int = 10_000,
        create: bool = True,
        fsync: bool = True,
        compact_min_bytes: int = COMPACT_MIN_BYTES,
        compact_ratio: float = COMPACT_RATIO,
        reserve_limit: int = RESERVE_BYTES,
        disk: Disk | None = None,
        clock_ms: Callable[[], float] | None = None,
    ) -> None:
        self._users = UserCount()
        self._clock_ms = clock_ms or (lambda: time.monotonic() * 1000.0)
        self._disk = disk or Disk()
        self._group = GroupCommit(self._lead)
        self._round = threading.Lock()
        self._mirror = threading.Lock()
        self._create = create
        self._compact_wanted = False
        directory = os.path.abspath(path)
        if not create and not os.path.isdir(directory):
            raise StoreNotFoundError(path)
        try:
            self._disk.make_folders(directory)
            self._lock = JournalLock(directory, self._disk, session_timeout_ms)
            self._directory, self._place = directory, _place_of(directory)
        except OSError as error:
            raise write_error(error, path) from error
        self._session_locks = SessionLocks(directory, self._disk, session_timeout_ms)
        compaction = CompactionPolicy(compact_min_bytes, compact_ratio)
        self._journal = Journal(directory, self._lock, self._disk, compaction, fsync=fsync, reserve_limit=reserve_limit)
        abandon_in_child(self)
        try:
            if not self._lock.read_only:  # else it can only look
                self.write(lambda transaction: self._session_locks.remove_orphans(transaction.ledger.sessions))
        except BaseException:
            self.release()
            raise

    # ---- the port

    def read(self, question: Callable[[Ledger], T]) -> T:
        try:
            return self._read(question)
        except StoreBusyError:
            # The hint is unreadable or missing: its writer died while it wrote the hint, or the lock file was removed. An
            # empty write reads the whole journal and writes a new hint.
            self.write(lambda _: None)
            return self._read(question)

    def _read(self, question: Callable[[Ledger], T]) -> T:
        self._users.require_open()
        with self._mirror:
            self._users.require_open()
            self._require_place()
            try:
                self._journal.refresh()
            except OSError as error:
                raise write_error(error, self._journal.path) from error
            return question(self._journal.ledger)

    def write(self, plan: Callable[[Transaction], T]) -> T:
        self._users.require_open()
        return self._group.write(plan)

    def change(self, request: ChangeRequest) -> ChangeAnswer:
        return self.write(lambda transaction: run_change(request, transaction, self.alive))

    def _lead(self, drain: Drain) -> None:
        with self._round:
            clean = False
            try:
                try:
                    self._users.require_open()
                    self._require_place()
                    dirty = self._lock.acquire()
                except (OSError, StoreError) as error:
                    finish(drain(), _named(error))
                    return
                with self._mirror:
                    clean = self._write_round(drain(), dirty)
            finally:
                self._lock.release(clean)

    def _write_round(self, requests: list[GroupRequest], dirty: bool) -> bool:
        """One write as the leader. True when the journal is known to end with a good frame."""
        caught_up = False
        try:
            self._journal.catch_up(dirty, self._create)
            caught_up = True
            transaction = Transaction(self._journal.begin())
            for request in requests:
                request.run(transaction)
            self._journal.append(transaction.entries)
        except BaseException as error:
            finish(requests, _named(error))  # also of an interrupt: the other callers must not wait for ever
            if isinstance(error, StoreError):
                return caught_up and self._journal.sound
            if isinstance(error, OSError):
                return False
            raise
        finish(requests, None)
        return self._housekeeping(transaction)

    def _housekeeping(self, transaction: Transaction) -> bool:
        for entry in transaction.entries:
            if isinstance(entry, Ended):
                self._session_locks.remove_ended(entry.session_ids)
        wanted, self._compact_wanted = self._compact_wanted, False
        self._journal.compact_when_due(wanted)
        return self._journal.sound

    def attach(self, session_id: str, label: str) -> None:
        self._users.require_open()
        self._require_place()
        try:
            self._session_locks.attach(session_id, label)
        except OSError as error:
            raise write_error(error, self._session_locks.directory) from error

    def detach(self, session_id: str) -> None:
        if self._users.is_own_process():
            self._session_locks.detach(session_id)

    def alive(self, session_ids: Collection[str]) -> frozenset[str]:
        self._users.require_open()
        try:
            found = self._session_locks.alive(session_ids)
        except OSError as error:
            raise write_error(error, self._session_locks.directory) from error
        self._require_place()  # afterwards: in a directory that has gone, every session looks dead
        return found

    def _require_place(self) -> None:
        """The directory is where it was opened. In one that was moved away, this process could continue through its open files,
        while all others find no store, or make a new one."""
        if _place_of(self._directory) != self._place:
            raise StoreAbsentError(f"{self._directory} is not the directory any more that this process opened")

    def clock_ms(self) -> float:
        return self._clock_ms()

    def sleep_ms(self, duration_ms: float) -> None:
        self._disk.sleep_ms(duration_ms)

    def statistics(self) -> StoreStatistics:
        return self._journal.statistics()

    def compact(self) -> str:
        """Starts a new generation of the journal; the other processes follow. Raises StoreError when it cannot be written: the old
        one stays as it is."""
        before, failed = self._size(), self._journal.failed_compaction_count
        self._compact_wanted = True
        self.write(lambda _: None)
        if (failure := self._journal.compaction_failure) and self._journal.failed_compaction_count > failed:
            raise failure
        return f"compacted: {before:,} bytes before, {self._size():,} after"

    def _size(self) -> int:
        return self.read(lambda _: self._journal.length)

    def retain(self) -> bool:
        """Not where its directory was deleted or moved away: a new user gets the store that is there now, or learns that there is
        none."""
        return _place_of(self._directory) == self._place and self._users.retain()

    def release(self) -> None:
        if not self._users.release():
            return
        with self._round, self._mirror:
            self._session_locks.close()
            self._journal.close()
            self._lock.close()

    def abandon(self) -> None:
        """In a forked child. It takes no lock, since a thread of the parent may have held it at the fork."""
        for drop in (self._session_locks.abandon, self._journal.close, self._lock.abandon):
            with contextlib.suppress(OSError):
                drop()


class FileAdministration(OpenedAdministration):
    """The administration of a file store. `path` raises StoreUriError when the URI has no absolute path."""

    def __init__(self, uri: str, path: Callable[[], str]) -> None:
        super().__init__(uri, lambda: FileStore.shared(path(), create=False))
        self._path = path

    def salvage(self) -> Salvaged:
        return salvage_directory(self._path())


def _place_of(directory: str) -> tuple[int, int] | None:
    """Device and inode; None when it is missing."""
    try:
        found = os.stat(directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise write_error(error, directory) from error
    return found.st_dev, found.st_ino


def _named(error: BaseException) -> BaseException:
    return write_error(error, "the store's files") if isinstance(error, OSError) else error
