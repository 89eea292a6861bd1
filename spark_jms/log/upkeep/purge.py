"""Purge: files leave the log when every subscription has finished all their messages.

A purged file stays on disk for the destination's grace, for batches that still read it; clean-up deletes it.

Features: C13, T1 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from spark_jms.core.messages.ranges import Ranges
from spark_jms.log.tables.commit import Decision, commit
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.files import ACKNOWLEDGED, DataFile
from spark_jms.log.tables.snapshot import Snapshot, TableMetadata
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.health import STEP_FILES, HousekeepingReport, give_way

_MAX_PURGED_FILES = 10_000  # of one decision
_MAX_DECISIONS = 10
TOPIC_WITHOUT_SUBSCRIPTIONS_RETENTION_MS = 86_400_000

IsDone = Callable[[str, int, Ranges], bool]  # (subscription, member, sequences): has the subscription finished them?
LiveNames = Callable[[], Collection[str]]  # the subscriptions that live now and are not in the table
Publish = Callable[[], bool]  # to senders, what is finished now; False: other processes were faster


@dataclass(frozen=True)
class PurgeDecision(Decision):
    files: Sequence[DataFile] = ()


def purge(
    log: DeltaLog,
    is_done: IsDone,
    report: HousekeepingReport | None = None,
    now: int | None = None,
    live_names: LiveNames = tuple,
    publish: Publish = lambda: True,
) -> HousekeepingReport:
    """Take files out of the log that every subscription has finished and whose retention is over.

    `live_names` is asked after the snapshot is fixed: a subscription that begins later begins behind the snapshot's
    messages. `is_done` is asked without the log's lock, on an immutable snapshot: a done message stays done. The commit checks that
    the files are still in the log and that the declaration, with its subscriptions, is the one that was decided on;
    otherwise the purge decides again. `publish` comes before the first removal: a publication that another process has looked for
    before that is then refused, so usage that falls with the files does not rise again."""
    report = report or HousekeepingReport()
    at_ms = now_ms() if now is None else now
    for _ in range(_MAX_DECISIONS):
        snapshot = log.refresh()
        finished = finished_files(snapshot, is_done, at_ms, live_names=live_names())
        if finished and not publish():
            break
        for at in range(0, len(finished), STEP_FILES):
            give_way()
            part = FinishedFiles(snapshot.table, finished[at : at + STEP_FILES])
            done = commit(log, partial(decide_purge, part, at_ms))
            if done is not None:
                report.purged_files += len(done.decision.files)
                report.purged_messages += sum(file.rows for file in done.decision.files)
        if log.snapshot.table is snapshot.table:
            break
    return report


class FinishedFiles(NamedTuple):
    """Files to purge, and the declaration on which that was decided."""

    table: TableMetadata
    files: Sequence[DataFile]


def decide_purge(finished: FinishedFiles, now: int, snapshot: Snapshot) -> PurgeDecision | None:
    """Pure. None when another declaration holds now, or when there is nothing to purge."""
    if snapshot.table is not finished.table:
        return None
    return _purging([file for file in finished.files if file.path in snapshot.files], now)


def purge_acknowledgements(log: DeltaLog, retention_ms: int, now: int | None = None) -> int:
    """Take files of the acknowledgement table, or of the life-cycle table, out of the log whose newest row is older than
    `retention_ms`; returns how many. spark-jms itself does not read these rows, so age alone decides."""
    at_ms = now_ms() if now is None else now
    snapshot = log.refresh()
    old, purged = _files_before(snapshot, at_ms - retention_ms), 0
    for at in range(0, len(old), STEP_FILES):
        give_way()
        done = commit(log, partial(_purge_acknowledgements, old[at : at + STEP_FILES], at_ms))
        purged += len(done.decision.files) if done else 0
    return purged


def _purge_acknowledgements(files: Sequence[DataFile], now: int, snapshot: Snapshot) -> PurgeDecision | None:
    return _purging([file for file in files if file.path in snapshot.files], now)


def _purging(files: Sequence[DataFile], now: int) -> PurgeDecision | None:
    return PurgeDecision("PURGE", [file.remove_action(now) for file in files], files=files) if files else None


def finished_files(
    snapshot: Snapshot,
    is_done: IsDone,
    now: int,
    limit: int = _MAX_PURGED_FILES,
    live_names: Collection[str] = (),
) -> list[DataFile]:
    """The files that a purge takes out of the log now, at most about `limit`. A topic without durable subscriptions keeps
    messages for a day at least, for one that may be made. A member was finished for all subscriptions when it was removed."""
    destination = snapshot.destination
    names = destination.subscription_names()
    retention = (
        destination.retention_ms if names else max(destination.retention_ms, TOPIC_WITHOUT_SUBSCRIPTIONS_RETENTION_MS)
    )
    out: list[DataFile] = []
    for member, files in snapshot.members.items():
        removed = member not in destination.member_ids
        for file in files.files:
            sequences = Ranges.of((file.first, file.last))
            done = removed or all(is_done(name, member, sequences) for name in (*names, *live_names))
            if done and now - _sent_ms(file) >= retention:
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
