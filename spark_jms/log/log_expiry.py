"""Which files of a log are deleted: its age and its number of versions are bounded.

The log begins at a checkpoint: commit files and checkpoints of earlier versions are deleted, oldest first. That checkpoint is
the newest one that is behind one of two bounds:

    older than the log's retention (delta.logRetentionDuration, a day); or
    more than 5,000 versions old, and written more than a minute ago

So a reader of an older version, such as a Delta stream that lags behind or a query with time travel, finds every version of
the last day while they are few, and always the last 5,000 and those of the last minute. Oldest first, because a writer that
slept takes the existence of the version before its own as the proof that its own was not deleted.

Features: C13 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_jms.errors import UnreadableTableError
from spark_jms.log.checkpoints import Checkpoint, LogListing, commit_path, hinted_checkpoint, read_checkpoint
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.snapshot import Snapshot
from spark_jms.settings.duration import parse_duration_ms

KEPT_VERSIONS = 5_000
KEPT_MS = 60_000
_DEFAULT_LOG_RETENTION = "interval 30 days"  # Delta's


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
    """Of one table; used by one thread. It lists the log when `look` is called. Later it knows the checkpoints that it was told
    of (`note_newest`, in every round of housekeeping); others are found by the next `look`."""

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
