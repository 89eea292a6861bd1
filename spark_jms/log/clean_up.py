"""Delta checkpoints, and the deletion of files that are no longer needed (C13)."""

from __future__ import annotations

from spark_jms.core.transfer import is_undecided
from spark_jms.log.checkpoint_writer import LAST_CHECKPOINT, checkpoint_path, expire_log, write_checkpoint
from spark_jms.log.checkpoints import LOG
from spark_jms.log.data_file import FILE_NAME
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.report import HousekeepingReport
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
        if snapshot.destination.durability == "power":  # clean-up deletes the log before it some day
            log.storage.sync([checkpoint_path(snapshot.version), LAST_CHECKPOINT])
        report.checkpoints += 1
    return report


def clean_up(log: DeltaLog, report: HousekeepingReport | None = None, now: int | None = None) -> HousekeepingReport:
    """Delete expired log files, removed data files after the grace, and files of senders that died before their commit."""
    report = report or HousekeepingReport()
    now = now_ms() if now is None else now
    expire_log(log.storage, log.refresh(), now)
    with log.lock:
        snapshot = log.refresh()
        active, removed = set(snapshot.files), dict(snapshot.removed_ms)
        before = now - snapshot.destination.file_grace_ms
        staged_before = now - staged_grace_ms(snapshot.destination)
        log.forget_removed(before)
    for file in log.storage.list(""):
        name = file.path.rsplit("/", 1)[-1]
        orphan = name.startswith(".") and (file.path.startswith(LOG) or FILE_NAME.search(name.strip(".")))
        unused = orphan or (FILE_NAME.match(file.path) and file.path not in active)
        was_in_log = file.path in removed
        if is_undecided(file.path, snapshot.transactions):
            continue
        if unused and (removed[file.path] <= before if was_in_log else file.modified_ms <= staged_before):
            log.storage.delete(file.path)
            report.deleted_files += 1
    return report
