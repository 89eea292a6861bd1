"""Following and appending to a Delta log, and waking receivers at its commits.

Reading: `refresh` applies the commit files that were added since the last call. Writing: `append` creates the next commit file
unless it exists. That put-if-absent is the compare-and-swap on which everything else stands. It costs the same at version 10 and
at version 5,000, unlike a commit of delta-rs (see docs/ARCHITECTURE.md).

Waking: the operating system reports new files of a local directory (inotify). It does not report what another host writes to a
network file system, and object stores report nothing. So a LogWatch only shortens the wait: receivers poll as well, and poll often
until a watch has proved that it sees the commits of their log.

Features: C3, C5, C11 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import logging
import os
import select
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.limits.quota import Grant, Request
from spark_jms.errors import (
    CommitOutcomeUnknownError,
    DestinationDroppedError,
    ForeignWriteError,
    InvalidDestinationError,
    UnreadableTableError,
    WriteOutcomeUnknownError,
)
from spark_jms.log.tables.checkpoints import (
    LOG,
    NEWEST_OWN_COMMIT,
    LogListing,
    commit_path,
    hinted_checkpoint,
    newest_checkpoint_version,
    read_checkpoint,
)
from spark_jms.log.tables.files import FileUnits, RecentRows
from spark_jms.log.tables.snapshot import DROPPED, ENGINE, LogReplay, OtherTableError, Snapshot, digest_of, names_table
from spark_jms.log.tables.storage import LocalStorage, Storage, naming_destination, now_ms

if TYPE_CHECKING:
    from inotify_simple import INotify

log = logging.getLogger("spark_jms")
Action = Mapping[str, Mapping[str, Any]]
Wake = Callable[[], None]
_GAP_CHECK_INTERVAL_MS = 30_000
_LOAD_ATTEMPTS = 3
_CREATED, _MOVED_TO = 0x100, 0x80  # of inotify(7): LocalStorage links commit files; another program may rename its own
_encode = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would make one for each action


class QuotaAdmission(Protocol):
    """What a table's log needs of the domain's quotas."""

    def reserve(
        self, request: Request, quota: str, epoch: int, wait_s: float, *, stays: bool, member: int | None = None
    ) -> Grant | None: ...
    def members_apart(self, quota: str, declared: Destination) -> Sequence[int | None]: ...
    def withdraw(self, grant: Grant) -> None: ...


class DeltaLog:
    """The log of the table in one directory. Thread-safe. `snapshot` is the newest one that `refresh` has made.

    The table can be deleted and created again under a running process. Three things reveal it: a commit that names another
    table, a newest version that is not the commit we know, which `refresh` looks at every 30 s, and the same look before
    and after each `append`. Then the log is loaded again, and `snapshot.table_id` is another one.
    """

    def __init__(
        self,
        storage: Storage,
        name: str,
        admit: Callable[[Collection[str]], None] = lambda servers: None,
        quotas: QuotaAdmission | None = None,
        check_root: Callable[[], None] = lambda: None,
    ) -> None:
        """`admit` raises while the store of one of these servers accepts no new messages. `quotas` None: no destination here has one.
        `check_root` raises DomainError while the root cannot be reached: then an absent table proves nothing."""
        self.storage = storage
        self.name = name
        self.admit, self.quotas, self._check_root = admit, quotas, check_root
        self.lock = threading.RLock()
        self.recent, self.units = RecentRows(), FileUnits(storage)
        self._snapshot: Snapshot | None = None
        self._outdated = False  # the snapshot: `refresh` must load from the start
        self._gap_checked_ms = 0
        self._synced = -1  # the version up to which the log survives a loss of power

    # -- reading --------------------------------------------------------------------------------------------------
    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot or self.refresh()

    def has_news(self) -> bool:
        """Looks up one file name: cheap enough for 100 calls a second."""
        snapshot = self._snapshot
        if snapshot is None or self._outdated or self.storage.exists(commit_path(snapshot.version + 1)):
            return True
        return now_ms() - self._gap_checked_ms > _GAP_CHECK_INTERVAL_MS

    def refresh(self, *, dropped: bool = False) -> Snapshot:
        """The newest snapshot. Raises InvalidDestinationError when there is no table, DomainError when there is no root now,
        DestinationDroppedError when its destination was `dropped` (unless the caller asks for that), ForeignWriteError while it
        holds messages of another program."""
        with self.lock:
            if self._snapshot is None or self._outdated:
                self._snapshot = self._reload()
                self._gap_checked_ms = now_ms()
            try:
                snapshot = self._advance(self._snapshot)
            except OtherTableError:
                snapshot = self._reload()
            snapshot.check_ours()  # else keep the snapshot before the foreign commit: an administrator may undo it
            self._snapshot = snapshot
            if snapshot.dropped or now_ms() - self._gap_checked_ms > _GAP_CHECK_INTERVAL_MS:
                self._gap_checked_ms = now_ms()
                if not self._is_newest_known(snapshot):
                    snapshot = self._reload()
                self._snapshot = snapshot = snapshot.without_old_removed(now_ms())
            if snapshot.dropped and not dropped:
                raise self._dropped()
            return snapshot

    def _dropped(self) -> DestinationDroppedError:
        return DestinationDroppedError(
            f"destination {self.name} at {self.storage.uri} was dropped: nothing can be sent or received any more. The drop has "
            f"not finished yet: if no `jmsq drop` runs, start `jmsq drop {self.name}` again"
        )

    def _advance(self, snapshot: Snapshot) -> Snapshot:
        """With all commits that have been added. Makes one snapshot, however many there are."""
        version = snapshot.version + 1
        data = self.storage.get(commit_path(version))
        if data is None:
            return snapshot
        replay = LogReplay(snapshot)
        while data is not None:
            replay.apply(version, data)
            version += 1
            data = self.storage.get(commit_path(version))
        return replay.snapshot()

    def verify(self) -> Snapshot:
        """As `refresh`, which now also notices that the table was replaced."""
        with self.lock:
            self._gap_checked_ms = 0
            return self.refresh()

    def _is_newest_known(self, snapshot: Snapshot) -> bool:
        """The log has the version of this snapshot, and no later one that we cannot reach: clean-up may have deleted log
        files that this process, while it slept, had not read. Then the next one never appears, and a Delta checkpoint
        ahead of us tells."""
        newest = newest_checkpoint_version(self.storage)
        ahead = newest is not None and newest > snapshot.version
        missed = ahead and not self.storage.exists(commit_path(snapshot.version + 1))
        return not missed and self._has(snapshot)

    def _has(self, snapshot: Snapshot) -> bool:
        """The version of this snapshot is in the log, by its file or a Delta checkpoint, and the same commit. Another one
        belongs to a table that was created in the place of ours."""
        data = self.storage.get(commit_path(snapshot.version))
        if data is not None:
            return digest_of(data) == snapshot.digest
        checkpoints = (c for c in LogListing.of(self.storage).checkpoints if c.version == snapshot.version)
        empty = Snapshot(snapshot.where)
        return any(read_checkpoint(self.storage, empty, c).table_id == snapshot.table_id for c in checkpoints)

    def _reload(self) -> Snapshot:
        self._forget()  # stays so if there is no table any more
        self._snapshot = snapshot = self.load()
        self._outdated, self._synced = False, -1
        return snapshot

    def versions_since_checkpoint(self) -> int:
        return self.refresh().version - (newest_checkpoint_version(self.storage) or 0)

    def load(self) -> Snapshot:
        try:
            return self._load_newest()
        except OtherTableError as error:
            raise UnreadableTableError(
                f"{error}, which was in this place before, by a process that slept meanwhile. That process removes the "
                "file when it wakes up; if it was killed, delete the file"
            ) from None

    def _load_newest(self) -> Snapshot:
        start = Snapshot(f"destination {self.name} at {self.storage.uri}")
        snapshot = self._load_hinted(start)
        attempts = _LOAD_ATTEMPTS  # clean-up may delete log files between the listing and the replay
        while snapshot is None:
            attempts -= 1
            try:
                snapshot = self._load_listed(start)
            except UnreadableTableError:
                if not attempts:
                    raise
        snapshot.check_ours()
        if not snapshot.metadata:
            raise UnreadableTableError(f"{snapshot.where}: the log has no metadata: its first commit is missing")
        return snapshot

    def _load_hinted(self, start: Snapshot) -> Snapshot | None:
        """None unless a commit follows the hinted checkpoint, which shows that clean-up has not passed it."""
        hinted = hinted_checkpoint(self.storage)
        if hinted is None or not self.storage.exists(commit_path(hinted.version + 1)):
            return None
        try:
            loaded = read_checkpoint(self.storage, start, hinted)
        except (UnreadableTableError, ForeignWriteError):
            return None
        return None if loaded.foreign else self._advance(loaded)

    def _load_listed(self, start: Snapshot) -> Snapshot:
        """From the newest checkpoint from which the newest version can be reached. One that cannot be read, or that
        contains a commit of another program, is passed over: the commit files behind an older one show what happened."""
        listing = LogListing.of(self.storage)
        if listing.newest < 0:
            self._check_root()
            raise InvalidDestinationError(
                f"there is no destination {self.name!r} at {self.storage.uri}: create it with `jmsq apply --root ROOT MODULE.yaml`"
            )
        errors: list[UnreadableTableError | ForeignWriteError] = []
        for checkpoint in reversed(listing.checkpoints):
            try:
                loaded = read_checkpoint(self.storage, start, checkpoint)
                loaded.check_ours()
            except (UnreadableTableError, ForeignWriteError) as error:
                errors.append(error)
            else:
                loaded = self._advance(loaded)
                if loaded.version >= listing.newest:
                    return loaded
        loaded = self._advance(start)
        if loaded.version >= listing.newest or self._is_stray(loaded, listing.newest):
            return loaded
        if self._drops(listing.newest):  # and its files are being deleted, this one last
            raise self._dropped()
        missing = commit_path(loaded.version + 1)
        raise (
            errors[0]
            if errors
            else UnreadableTableError(
                f"{start.where}: {missing} is missing, and no checkpoint is behind it: restore it"
            )
        )

    def _drops(self, version: int) -> bool:
        """The commit of this version drops the table."""
        data = self.storage.get(commit_path(version)) or b""
        actions = (json.loads(line) for line in data.splitlines() if b"metaData" in line)
        return any(DROPPED in (a.get("metaData", {}).get("configuration") or {}) for a in actions)

    def _is_stray(self, snapshot: Snapshot, version: int) -> bool:
        """A writer that slept has written this version for the table before ours, and has not taken it back yet."""
        data = self.storage.get(commit_path(version))
        return data is not None and bool(snapshot.table_id) and names_table(data) not in ("", snapshot.table_id)

    # -- writing --------------------------------------------------------------------------------------------------
    def append(
        self, snapshot: Snapshot, operation: str, actions: Iterable[Action], parameters: Mapping[str, str]
    ) -> bool:
        """Try to write version `snapshot.version + 1`. False: another writer was first, and nothing was written.

        Clean-up may have deleted log files past us while we slept, so that the name is free although the version was
        written. Clean-up writes a Delta checkpoint before it deletes log files, so a checkpoint of this or a later
        version tells. The table may also have been replaced. In case we sleep between these looks and the write, the
        previous version must still be the commit that we know after the write, or we take ours back.

        Raises CommitOutcomeUnknownError when the storage fails while it writes the version and cannot tell whether it
        did; after any other error nothing was written. The first commit of this release to a table of an earlier one also names
        the statistics that other programs may use (`shown_statistics`).
        """
        version = snapshot.version + 1
        if not self._has(snapshot):
            self._forget()
            return False
        if self._is_passed(version):
            return False
        now = now_ms()
        info = {
            "commitInfo": {
                "timestamp": now,
                "operation": operation,
                "operationParameters": dict(parameters),
                "engineInfo": f"{ENGINE}/1",
                "readVersion": snapshot.version,
                "isBlindAppend": False,
                "commitId": uuid.uuid4().hex,
                "tableId": snapshot.table_id,
            }
        }
        own: Action = {"txn": {"appId": NEWEST_OWN_COMMIT, "version": version, "lastUpdated": now}}
        actions = [*_with_property(snapshot, actions), own]
        lines = "\n".join(_encode(action) for action in (info, *actions))
        data = (lines + "\n").encode()
        durable = snapshot.destination.durability == "power"
        with naming_destination(self.name):
            if durable:  # before the log names them; fsync also covers what tasks in other processes wrote
                self.storage.sync([str(action["add"]["path"]) for action in actions if "add" in action])
            try:
                if not self.storage.create(commit_path(version), data, durable=durable):
                    return False
            except WriteOutcomeUnknownError as error:
                raise self._unknown(version, error) from error
        try:
            overtaken = self._was_overtaken(snapshot)
        except (OSError, UnreadableTableError) as error:
            raise self._unknown(version, error) from error
        if overtaken:
            self._forget()
            return False
        with self.lock:
            if self._snapshot is snapshot:
                replay = LogReplay(snapshot)
                replay.apply_own(version, actions, data)
                self._snapshot = replay.snapshot()
        if any("metaData" in action for action in actions):
            self.sync()  # whatever its durability: a declaration is for good
        return True

    def sync(self) -> None:
        """Force the log, as far as this process has read it, to the disk; Delta checkpoints are forced when they are written."""
        with self.lock:
            end = self.snapshot.version
            first = max(self._synced, newest_checkpoint_version(self.storage) or -1) + 1
            paths = [commit_path(version) for version in range(first, end + 1)]
            try:
                self.storage.sync(paths)
            except FileNotFoundError:  # a checkpoint has taken the place of some meanwhile
                for path in paths:
                    with suppress(FileNotFoundError):
                        self.storage.sync([path])
            self._synced = end

    def _is_passed(self, version: int) -> bool:
        """Another writer has written this version, or clean-up has deleted it: then the next refresh loads again."""
        newest = newest_checkpoint_version(self.storage)
        if newest is None or newest < version:
            return False
        if not self.storage.exists(commit_path(version)):
            if LogListing.of(self.storage).newest < version:
                return False  # the hint is wrong
            self._forget()
        return True

    def _forget(self) -> None:
        """The next `refresh` loads the log from its start. Until then the snapshot is the last one that was known."""
        with self.lock:
            self._outdated = True

    def _was_overtaken(self, snapshot: Snapshot) -> bool:
        """Clean-up has deleted the version before the one that we wrote, or the table was replaced: take ours back."""
        if self._has(snapshot):
            return False
        self.storage.delete(commit_path(snapshot.version + 1))
        return True

    def _unknown(self, version: int, error: Exception) -> CommitOutcomeUnknownError:
        return CommitOutcomeUnknownError(
            f"{self.name}: the storage failed while version {version} of the log was written ({error}), so the commit may "
            "be in the log or appear there later. To send messages once, repeat them by their number in a producer id: "
            "send(…, sequence=n); or with send_many(…, transaction=(application id, version))"
        )


def _with_property(snapshot: Snapshot, actions: Iterable[Action]) -> list[Action]:
    lacking, given = snapshot.table.lacking_property, list(actions)
    if not lacking:
        return given
    metadata = next((action["metaData"] for action in given if "metaData" in action), snapshot.metadata)
    changed = {**metadata, "configuration": {**(metadata.get("configuration") or {}), **lacking}}
    return [{"metaData": changed}, *(action for action in given if "metaData" not in action)]


class LogWatch:
    """Wakes receivers when a log of this host gets a commit. Thread-safe. Its thread starts with the first `add`. Without inotify
    it does nothing: receivers poll."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wakes: dict[str, list[Wake]] = {}  # folder of a log -> whom to wake
        self.folders: dict[int, str] = {}  # inotify's number of a watch -> folder
        self._inotify: INotify | None = None
        self._thread: threading.Thread | None = None
        self._stop_read, self._stop_write = -1, -1

    def add(self, table: DeltaLog, wake: Wake) -> bool:
        """Call `wake` soon after each commit to this log, from the watch's thread. It must not block. False: it cannot be watched."""
        if not isinstance(table.storage, LocalStorage):
            return False
        folder = str(table.storage.root / LOG)
        with self._lock:
            try:
                self._start()
                if self._inotify is None:
                    return False
                self.folders[self._inotify.add_watch(folder, _CREATED | _MOVED_TO)] = folder
            except OSError as error:  # too many watches or open files
                log.info("%s cannot be watched (%s): its receivers poll", folder, error)
                return False
            self._wakes.setdefault(folder, []).append(wake)
            return True

    def remove(self, wake: Wake) -> None:
        with self._lock:
            for folder, wakes in list(self._wakes.items()):
                self._wakes[folder] = [one for one in wakes if one != wake]
                if not self._wakes[folder]:
                    self._forget(folder)

    def close(self) -> None:
        with self._lock:
            thread = self._thread
            if thread is not None:
                os.write(self._stop_write, b"x")
        if thread is not None:
            thread.join()

    def _start(self) -> None:
        if self._thread is not None:
            return
        try:
            from inotify_simple import INotify
        except ImportError:  # not on this operating system
            return
        self._inotify = INotify(nonblocking=True)
        self._stop_read, self._stop_write = os.pipe()
        self._thread = threading.Thread(target=self._run, args=(self._inotify,), name="jmsq-log-watch", daemon=True)
        self._thread.start()

    def _forget(self, folder: str) -> None:
        del self._wakes[folder]
        for watch, watched in list(self.folders.items()):
            if watched == folder:
                del self.folders[watch]
                if self._inotify is not None:
                    with suppress(OSError):  # the folder was deleted, and the watch with it
                        self._inotify.rm_watch(watch)

    def _run(self, inotify: INotify) -> None:
        ready = select.poll()
        ready.register(inotify, select.POLLIN)
        ready.register(self._stop_read, select.POLLIN)
        try:
            while self._stop_read not in {descriptor for descriptor, _ in ready.poll()}:
                news = {event.wd for event in inotify.read(timeout=0) if event.name.endswith(".json")}
                with self._lock:
                    wakes = [wake for wd in news for wake in self._wakes.get(self.folders.get(wd, ""), ())]
                for wake in wakes:
                    wake()
        finally:
            with self._lock:
                self._inotify, self._thread = None, None
                self._wakes, self.folders = {}, {}
                inotify.close()
                os.close(self._stop_read)
                os.close(self._stop_write)
