"""Purge: files leave the log when every subscription has finished all their messages (C13).

A purged file stays on disk for the destination's grace, for batches that still read it; clean-up deletes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_jms.core.ranges import Ranges
from spark_jms.log.acknowledgements import ACKNOWLEDGED
from spark_jms.log.commit import Decision, commit, commit_prepared
from spark_jms.log.data_file import DataFile
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.report import HousekeepingReport
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import now_ms

_MAX_PURGED_FILES = 2000
TOPIC_WITHOUT_SUBSCRIPTIONS_RETENTION_MS = 86_400_000

IsDone = Callable[[str, int, Ranges], bool]  # (subscription, member, sequences): has the subscription finished them?


@dataclass(frozen=True)
class PurgeDecision(Decision):
    files: Sequence[DataFile] = ()


def purge(
    log: DeltaLog, is_done: IsDone, report: HousekeepingReport | None = None, now: int | None = None
) -> HousekeepingReport:
    """Take files out of the log that every subscription has finished and whose retention is over. A subscription that is
    made meanwhile counts too: its creation is a commit, which this commit loses against."""
    report = report or HousekeepingReport()
    at_ms = now_ms() if now is None else now
    done = commit_prepared(
        log, lambda snapshot: finished_files(snapshot, is_done, at_ms), lambda snapshot, files: _purging(files, at_ms)
    )
    if done is not None:
        report.purged_files += len(done.decision.files)
        report.purged_messages += sum(file.rows for file in done.decision.files)
    return report


def purge_acknowledgements(log: DeltaLog, retention_ms: int, now: int | None = None) -> int:
    """Take files of the acknowledgement table out of the log whose newest row is older than `retention_ms`; returns how
    many. spark-jms itself does not read these rows, so age alone decides."""
    at_ms = now_ms() if now is None else now
    done = commit(log, lambda snapshot: _purging(_files_before(snapshot, at_ms - retention_ms), at_ms))
    return len(done.decision.files) if done else 0


def _purging(files: Sequence[DataFile], now: int) -> PurgeDecision | None:
    return PurgeDecision("PURGE", [file.remove_action(now) for file in files], files=files) if files else None


def finished_files(snapshot: Snapshot, is_done: IsDone, now: int, limit: int = _MAX_PURGED_FILES) -> list[DataFile]:
    """The files that a purge takes out of the log now, at most about `limit`."""
    destination = snapshot.destination
    names = destination.subscription_names()
    retention = (
        destination.retention_ms if names else max(destination.retention_ms, TOPIC_WITHOUT_SUBSCRIPTIONS_RETENTION_MS)
    )
    out: list[DataFile] = []
    for files in snapshot.members.values():
        for file in files.files:
            sequences = Ranges.of((file.first, file.last))
            if now - _sent_ms(file) >= retention and all(is_done(name, file.member, sequences) for name in names):
                out.append(file)
            elif destination.is_topic:
                break  # from the front only: a later subscription that starts at "earliest" must find no holes
            if len(out) >= limit:
                break
    return out


def _files_before(snapshot: Snapshot, before_ms: int) -> list[DataFile]:
    def newest_ms(file: DataFile) -> int:
        return int(file.statistics.get("maxValues", {}).get(ACKNOWLEDGED) or file.modified_ms)

    return [file for file in snapshot.files.values() if newest_ms(file) < before_ms][:_MAX_PURGED_FILES]


def _sent_ms(file: DataFile) -> int:
    return int(file.statistics.get("maxValues", {}).get("JMSTimestamp") or file.modified_ms)
