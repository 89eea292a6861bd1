"""Delta checkpoints, and the deletion of files that are no longer needed.

The log: its age and its number of versions are bounded. It begins at a checkpoint: commit files and checkpoints of earlier
versions are deleted, oldest first. That checkpoint is the newest one that is behind one of two bounds:

    older than the log's retention (delta.logRetentionDuration, a day); or
    more than 5,000 versions old, and written more than a minute ago

So a reader of an older version, such as a Delta stream that lags behind or a query with time travel, finds every version of the
last day while they are few, and always the last 5,000 and those of the last minute. Oldest first, because a writer that slept
takes the existence of the version before its own as the proof that its own was not deleted.

Data files that left the log stay on disk until the grace is over. Which they are is in the log's commit files. Clean-up collects
their names in lists, one for each of its rounds, and deletes the files of a list, then the list, when the grace of its newest file
is over. So a round costs what it collects and deletes, whatever stays: a million files that wait are some lists.

    _removed/<version>-<time of the newest removal>.txt    one path in each line

A list has the removals up to its version that no earlier list has. Commit files are only deleted up to the newest list, so a
process that continues for another one begins behind it.

Features: C13 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spark_jms.core.transactions.transfer import is_undecided
from spark_jms.errors import UnreadableTableError
from spark_jms.log.messages.data_files import staged_grace_ms
from spark_jms.log.tables.checkpoints import (
    LAST_CHECKPOINT,
    LOG,
    Checkpoint,
    LogListing,
    checkpoint_path,
    commit_path,
    hinted_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.files import FILE_NAME
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.health import HousekeepingReport
from spark_jms.settings.types import parse_duration_ms

CHECKPOINT_EVERY_VERSIONS = 50
KEPT_VERSIONS = 5_000
KEPT_MS = 60_000
_DEFAULT_LOG_RETENTION = "interval 30 days"  # Delta's
_FOLDER = "_removed"
_LIST = re.compile(rf"{_FOLDER}/(\d{{20}})-(\d+)\.txt\Z")


def checkpoint(
    log: DeltaLog, report: HousekeepingReport | None = None, *, every: int = CHECKPOINT_EVERY_VERSIONS
) -> HousekeepingReport:
    """Write a Delta checkpoint when the last one is `every` versions old, so that a new reader starts fast."""
    report = report or HousekeepingReport()
    if log.versions_since_checkpoint() >= every:
        snapshot = log.snapshot
        write_checkpoint(log.storage, snapshot)
        log.storage.sync(
            [checkpoint_path(snapshot.version), LAST_CHECKPOINT]
        )  # clean-up deletes the log before it some day
        report.checkpoints += 1
    return report


class CleanUp:
    """Deletion of files of one table that are no longer needed, by one thread:

        RemovedFiles   data files that left the log, after the grace
        LogExpiry      the beginning of the log
        here           files that no log names: staged by senders that died, and temporary ones

    The first two cost what they delete. The third lists the whole table, so it is done at first and then once an hour."""

    SWEEP_EVERY_MS = 3_600_000

    def __init__(self, log: DeltaLog) -> None:
        self._log = log
        self._removed, self._expiry = RemovedFiles(log), LogExpiry(log)
        self._swept_ms: int | None = None

    def note_checkpoint(self) -> None:
        """Call it often: a checkpoint that is not noted is only deleted after the next sweep."""
        self._expiry.note_newest(now_ms())

    def run(self, report: HousekeepingReport | None = None, now: int | None = None) -> HousekeepingReport:
        report = report or HousekeepingReport()
        now = now_ms() if now is None else now
        snapshot = self._log.refresh()
        self._removed.collect(snapshot)
        deleted = self._removed.delete(snapshot, now - snapshot.destination.file_grace_ms)
        if self._swept_ms is None or now - self._swept_ms >= self.SWEEP_EVERY_MS:
            self._swept_ms = now
            self._expiry.look()
            deleted += self._sweep(snapshot, now - staged_grace_ms(snapshot.destination))
        deleted += self._expiry.run(snapshot, now, self._removed.collected)
        report.deleted_files += deleted
        return report

    def _sweep(self, snapshot: Snapshot, before_ms: int) -> int:
        """A file that is committed while we list the table was staged later than `before_ms`: see `too_old`."""
        storage, old = self._log.storage, set[str]()
        for file in storage.list(""):
            name = file.path.rsplit("/", 1)[-1]
            temporary = name.startswith(".") and (file.path.startswith(LOG) or FILE_NAME.search(name.strip(".")))
            staged = FILE_NAME.match(file.path) and file.path not in snapshot.files
            undecided = is_undecided(file.path, snapshot.transactions)  # of an open transfer
            if (temporary or staged) and not undecided and file.modified_ms <= before_ms:
                old.add(file.path)
        abandoned = self._removed.without_waiting(old)
        for path in abandoned:
            storage.delete(path)
        return len(abandoned)


def clean_up(log: DeltaLog, report: HousekeepingReport | None = None, now: int | None = None) -> HousekeepingReport:
    """One whole clean-up."""
    return CleanUp(log).run(report, now)


# -- the beginning of the log ------------------------------------------------------------------------------------------


def first_checkpoint(
    checkpoints: Sequence[Checkpoint], newest: int, retention_ms: int, now_ms: int
) -> Checkpoint | None:
    """Pure. The checkpoint at which the log may begin; None: nothing is to be deleted."""
    behind = [
        checkpoint
        for checkpoint in checkpoints
        if now_ms - checkpoint.modified_ms > retention_ms
        or (newest - checkpoint.version > KEPT_VERSIONS and now_ms - checkpoint.modified_ms > KEPT_MS)
    ]
    return max(behind, key=lambda checkpoint: checkpoint.version, default=None)


class LogExpiry:
    """Deletes the beginning of the log of one table; used by one thread. It lists the log when `look` is called. Later it knows the
    checkpoints that it was told of (`note_newest`, in every round of housekeeping); others are found by the next `look`."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log
        self._oldest = 0
        self._checkpoints: list[Checkpoint] = []

    def look(self) -> None:
        listing = LogListing.of(self._log.storage)
        self._oldest = min(listing.commits, default=0)
        self._checkpoints = list(listing.checkpoints)

    def run(self, snapshot: Snapshot, now_ms: int, collected: int) -> int:
        """Delete what may go, but no commit file above `collected`. Returns how many files. Raises UnreadableTableError, and
        deletes nothing, when the checkpoint at which the log would begin cannot be read."""
        self.note_newest(now_ms)
        first = first_checkpoint(self._checkpoints, snapshot.version, _retention_ms(snapshot), now_ms)
        if first is None or min(first.version, collected + 1) <= self._oldest:
            return 0
        read_checkpoint(self._log.storage, Snapshot(snapshot.where), first)
        end = min(first.version, collected + 1)
        deleted = 0
        passed = [checkpoint for checkpoint in self._checkpoints if checkpoint.version < end]
        commits = [(version, commit_path(version)) for version in range(self._oldest, end)]
        for _, path in sorted([*commits, *((c.version, path) for c in passed for path in c.paths)]):
            self._log.storage.delete(path)
            deleted += 1
        self._oldest = max(self._oldest, end)
        self._checkpoints = [checkpoint for checkpoint in self._checkpoints if checkpoint.version >= end]
        return deleted

    def note_newest(self, now_ms: int) -> None:
        """The newest checkpoint. Its age counts from now: a little too late, which is safe."""
        hinted = hinted_checkpoint(self._log.storage)
        known = {checkpoint.version for checkpoint in self._checkpoints}
        if hinted is not None and hinted.version not in known and self._log.storage.exists(hinted.paths[0]):
            self._checkpoints.append(Checkpoint(hinted.version, hinted.paths, now_ms))


def _retention_ms(snapshot: Snapshot) -> int:
    written = str(
        (snapshot.metadata.get("configuration") or {}).get("delta.logRetentionDuration", _DEFAULT_LOG_RETENTION)
    )
    try:
        return parse_duration_ms(written.removeprefix("interval "))
    except ValueError as error:
        raise UnreadableTableError(f"{snapshot.where}: delta.logRetentionDuration: {error}") from error


# -- data files that left the log --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RemovedList:
    version: int
    newest_ms: int

    @property
    def path(self) -> str:
        return f"{_FOLDER}/{self.version:020d}-{self.newest_ms}.txt"


class RemovedFiles:
    """Deletes the data files that left the log of one table, by its lists. Used by one thread."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log
        self._lists: list[RemovedList] | None = None  # None: not looked yet
        self._table_id = ""
        self.collected = -1  # the version up to which removals are listed

    def collect(self, snapshot: Snapshot) -> None:
        """Write a list of the removals since the last one."""
        if self._lists is None or self._table_id != snapshot.table_id:
            self._begin(snapshot)
        assert self._lists is not None
        first_time = self.collected < 0
        removed = dict(snapshot.removed_ms) if first_time else {}  # an earlier version kept them in Delta checkpoints
        commits = LogListing.of(self._log.storage).commits if first_time else ()
        for version in range(max(self.collected + 1, *commits[:1], 0), snapshot.version + 1):
            removed.update(_removals(self._log.storage.get(commit_path(version))))
        if removed:
            made = RemovedList(snapshot.version, max(removed.values()))
            self._log.storage.put(made.path, "\n".join(removed).encode())
            self._lists.append(made)
        self.collected = snapshot.version

    def delete(self, snapshot: Snapshot, before_ms: int) -> int:
        """Delete the files that left the log at or before that time; returns how many."""
        deleted = 0
        due = [one for one in self._lists or () if one.newest_ms <= before_ms]
        if due:
            self._log.sync()  # the commits that removed them, before the files go
        for one in due:
            for path in self._paths(one):
                if path not in snapshot.files:  # Delta's RESTORE brings files back
                    self._log.storage.delete(path)
                    deleted += 1
            self._log.storage.delete(one.path)
            assert self._lists is not None
            self._lists.remove(one)
        return deleted

    def without_waiting(self, candidates: set[str]) -> set[str]:
        """Those that are in no list."""
        for one in self._lists or ():
            candidates = candidates.difference(self._paths(one))
        return candidates

    def _begin(self, snapshot: Snapshot) -> None:
        found = (_LIST.search(info.path) for info in self._log.storage.list(_FOLDER))
        self._lists = sorted(
            (RemovedList(int(name[1]), int(name[2])) for name in found if name), key=lambda one: one.version
        )
        self._table_id = snapshot.table_id
        newest = self._lists[-1].version if self._lists else -1
        self.collected = newest if newest <= snapshot.version else -1  # else the lists of a table that was here before

    def _paths(self, one: RemovedList) -> list[str]:
        return (self._log.storage.get(one.path) or b"").decode().splitlines()


def _removals(commit: bytes | None) -> Iterator[tuple[str, int]]:
    for line in (commit or b"").splitlines():
        if line.startswith(b'{"remove"'):
            remove = json.loads(line)["remove"]
            yield str(remove["path"]), int(remove.get("deletionTimestamp") or 0)
