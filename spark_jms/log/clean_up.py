"""Delta checkpoints, and the deletion of files that are no longer needed.

Features: C13 (docs/FEATURES.md)
"""

from __future__ import annotations

from spark_jms.core.transfer import is_undecided
from spark_jms.log.checkpoint_writer import LAST_CHECKPOINT, checkpoint_path, write_checkpoint
from spark_jms.log.checkpoints import LOG
from spark_jms.log.data_file import FILE_NAME
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.log_expiry import LogExpiry
from spark_jms.log.removed_files import RemovedFiles
from spark_jms.log.report import HousekeepingReport
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.staged_file import staged_grace_ms
from spark_jms.log.storage import now_ms

CHECKPOINT_EVERY_VERSIONS = 50


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

        removed_files.py   data files that left the log, after the grace
        log_expiry.py      the beginning of the log
        here               files that no log names: staged by senders that died, and temporary ones

    The first two cost what they delete. The third lists the whole table, so it is done at first and then once an hour.
    """

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
