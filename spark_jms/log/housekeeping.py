"""Keeps a destination small beside live readers and writers: purge, compaction, checkpoints, clean-up (C13).

Every change is a maintenance commit (data_change false) through the committer, which checks again that what it replaces
is still there. A file that leaves the log stays on disk for the destination's grace, for batches that still read it.

    purge       a file goes when every subscription is done with all of it and its retention is over; acknowledgements
                go by their age
    compaction  runs of small neighbouring files of a member become one; sequences do not change
    checkpoint  every 50 versions, by delta-rs, so that a new reader starts fast
    clean-up    expired log files, removed files after the grace, files of sends that died before their commit
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from spark_jms.core.message import ORDINAL, STORED_SCHEMA
from spark_jms.core.ranges import Ranges
from spark_jms.log.committer import Decision, commit, too_old
from spark_jms.log.delta_log import LOG, DeltaLog
from spark_jms.log.domain import ACKNOWLEDGEMENT_SCHEMA
from spark_jms.log.files import ACKNOWLEDGED, FileHint, FileWriter, StagedFile, read_stored, staged_grace_ms
from spark_jms.log.snapshot import FILE_NAME, DataFile, Snapshot
from spark_jms.log.storage import now_ms

log_ = logging.getLogger("spark_jms")
CHECKPOINT_EVERY_VERSIONS = 50
_TIERS_BYTES = (64 * 2**10, 2**20, 8 * 2**20, 32 * 2**20)  # a run of files of one tier becomes one of the next
_MIN_RUN = 8
_MAX_RUN = 200
_MAX_COMPACTED_BYTES = 128 * 2**20
_MAX_PURGED_FILES = 2000
TOPIC_WITHOUT_SUBSCRIPTIONS_RETENTION_MS = 86_400_000
_SINK_ONLY_EVERY_VERSIONS = 100

IsDone = Callable[[str, int, Ranges], bool]  # (subscription, member, sequences) -> everybody there is done with them


@dataclass
class Report:
    """What one round did."""

    purged_files: int = 0
    purged_messages: int = 0
    compacted_files: int = 0
    checkpoints: int = 0
    deleted_files: int = 0


# -- purge ----------------------------------------------------------------------------------------------------------------
def purge(log: DeltaLog, is_done: IsDone, report: Report | None = None, now: int | None = None) -> Report:
    """Take out of the log what every subscription is done with. A subscription that appears meanwhile is asked too,
    because its creation is a commit, which this commit would lose against."""
    report = report or Report()
    now = now_ms() if now is None else now
    gone: list[DataFile] = []

    def decide(snapshot: Snapshot) -> Decision | None:
        gone.clear()
        destination = snapshot.destination
        names = destination.subscription_names()
        retention = (
            destination.retention_ms
            if names
            else max(destination.retention_ms, TOPIC_WITHOUT_SUBSCRIPTIONS_RETENTION_MS)
        )
        for files in snapshot.members.values():
            for file in files.files:
                sequences = Ranges.of((file.first, file.last))
                if now - _sent_ms(file) >= retention and all(is_done(name, file.member, sequences) for name in names):
                    gone.append(file)
                elif destination.is_topic:
                    break  # from the front only: a subscription made later begins with "earliest" and must find no holes
                if len(gone) >= _MAX_PURGED_FILES:
                    break
        return Decision("PURGE", [_remove(file) for file in gone]) if gone else None

    if commit(log, decide) is not None:
        report.purged_files += len(gone)
        report.purged_messages += sum(file.rows for file in gone)
    return report


def purge_acknowledgements(log: DeltaLog, retention_ms: int, now: int | None = None) -> int:
    """Take rows of the acknowledgement table out that are older, file by file; how many files. Nobody in spark-jms reads
    them but people, so age alone decides."""
    before = (now_ms() if now is None else now) - retention_ms
    gone: list[DataFile] = []

    def decide(snapshot: Snapshot) -> Decision | None:
        newest = {path: f.statistics.get("maxValues", {}).get(ACKNOWLEDGED) or f.modified_ms
                  for path, f in snapshot.files.items()}  # fmt: skip
        gone[:] = [file for path, file in snapshot.files.items() if newest[path] < before][:_MAX_PURGED_FILES]
        return Decision("PURGE", [_remove(file) for file in gone]) if gone else None

    commit(log, decide)
    return len(gone)


def _sent_ms(file: DataFile) -> int:
    return int(file.statistics.get("maxValues", {}).get("JMSTimestamp") or file.modified_ms)


def _remove(file: DataFile) -> dict[str, dict[str, object]]:
    first_sequence = str(file.first - file.first_ordinal)
    return {
        "remove": {
            "path": file.path,
            "deletionTimestamp": now_ms(),
            "dataChange": False,
            "extendedFileMetadata": True,
            "partitionValues": {"member": str(file.member), "first_sequence": first_sequence},
            "size": file.bytes,
        }
    }


# -- compaction -----------------------------------------------------------------------------------------------------------
def compact(log: DeltaLog, report: Report | None = None) -> Report:
    """Merge runs of small files. What was removed or replaced meanwhile makes this round's result void."""
    report = report or Report()
    snapshot = log.refresh()
    for member in sorted(snapshot.members):
        run = small_run(snapshot.members[member].files)
        if run:
            _compact_run(log, run, report)
    return report


def small_run(files: Sequence[DataFile]) -> list[DataFile]:
    """The first run of at least 8 neighbours that are all of one size tier; [] when there is none."""
    for limit in _TIERS_BYTES:
        run: list[DataFile] = []
        size = 0
        for file in files:
            fits = file.bytes <= limit and size + file.bytes <= _MAX_COMPACTED_BYTES and len(run) < _MAX_RUN
            if fits and (not run or run[-1].last + 1 == file.first):
                run.append(file)
                size += file.bytes
                continue
            if len(run) >= _MIN_RUN:
                return run
            run, size = ([file], file.bytes) if file.bytes <= limit else ([], 0)
        if len(run) >= _MIN_RUN:
            return run
    return []


def _compact_run(log: DeltaLog, run: list[DataFile], report: Report) -> None:
    try:
        staged = _merge(log, run)
    except FileNotFoundError:
        return  # purged and cleaned up meanwhile
    first = run[0].first

    def decide(snapshot: Snapshot) -> Decision | None:
        if any(file.path not in snapshot.files for file in run) or too_old(log, [staged], snapshot):
            return None
        actions = [_remove(file) for file in run]
        return Decision("OPTIMIZE", [*actions, staged.add_action(first, data_change=False)])

    if commit(log, decide) is None:
        log.storage.delete(staged.path)
    else:
        report.compacted_files += len(run)


def _merge(log: DeltaLog, run: list[DataFile]) -> StagedFile:
    schema = ACKNOWLEDGEMENT_SCHEMA if _is_acknowledgements(log) else STORED_SCHEMA
    writer = FileWriter(log.storage, run[0].member, schema)
    try:
        for file in run:
            picks = Ranges.of((file.first, file.last))
            for batch, sequences in read_stored(
                log.storage, FileHint(file.path, file.first, file.rows, file.bytes), picks, schema.names
            ):
                ordinals = pa.array(sequences - run[0].first)
                writer.append(batch.set_column(schema.get_field_index(ORDINAL), ORDINAL, ordinals).cast(schema))
        return writer.close()
    except BaseException:
        writer.abort()
        raise


def _is_acknowledgements(log: DeltaLog) -> bool:
    return ACKNOWLEDGED in str(log.snapshot.metadata.get("schemaString"))


# -- checkpoint and clean-up ----------------------------------------------------------------------------------------------
def checkpoint(log: DeltaLog, report: Report | None = None, *, every: int = CHECKPOINT_EVERY_VERSIONS) -> Report:
    report = report or Report()
    if log.versions_since_checkpoint() >= every:
        from deltalake import DeltaTable

        version = log.snapshot.version
        DeltaTable(log.storage.uri, version=version).create_checkpoint()  # see clean_up
        if log.snapshot.destination.durability == "power":  # the log before it goes some day
            log.storage.sync([f"{LOG}/{version:020d}.checkpoint.parquet", f"{LOG}/_last_checkpoint"])
        report.checkpoints += 1
    return report


def clean_up(log: DeltaLog, report: Report | None = None, now: int | None = None) -> Report:
    """Delete expired log files and data files nobody needs any more."""
    from deltalake import DeltaTable

    report = report or Report()
    now = now_ms() if now is None else now
    # At a stated version: a listing that races with senders may miss a name before one that it has, which reads as a gap.
    DeltaTable(log.storage.uri, version=log.refresh().version).cleanup_metadata()
    with log.lock:
        snapshot = log.refresh()
        active, removed = set(snapshot.files), dict(snapshot.removed_ms)
        before = now - snapshot.destination.file_grace_ms
        staged_before = now - staged_grace_ms(snapshot.destination)
        snapshot.removed_ms = {path: when for path, when in removed.items() if when > before}
    for file in log.storage.list(""):
        name = file.path.rsplit("/", 1)[-1]
        orphan = name.startswith(".") and (file.path.startswith(LOG) or FILE_NAME.search(name.strip(".")))
        unused = orphan or (FILE_NAME.match(file.path) and file.path not in active)
        was_in_log = file.path in removed
        if unused and (removed[file.path] <= before if was_in_log else file.modified_ms <= staged_before):
            log.storage.delete(file.path)
            report.deleted_files += 1
    return report


def after_send(log: DeltaLog, version: int) -> None:
    """A little upkeep by whoever sends, so that a destination that is only written to stays small as well."""
    if version > 0 and version % _SINK_ONLY_EVERY_VERSIONS == 0:
        compact(log)
        checkpoint(log)


# -- all of it, by one process at a time ----------------------------------------------------------------------------------
class Maintenance:
    """The rounds of one destination and its acknowledgement table. `is_done` asks the store."""

    CLEAN_UP_EVERY_S = 60.0

    def __init__(
        self, logs: Mapping[str, DeltaLog], is_done: IsDone, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.logs, self._is_done, self._clock_s = logs, is_done, clock_s
        self._cleaned_s = clock_s()
        self.total = Report()

    def round(self) -> None:
        for kind, log in self.logs.items():
            if kind == "messages":
                purge(log, self._is_done, self.total)
            else:
                purge_acknowledgements(log, self.logs["messages"].snapshot.destination.acknowledgement_retention_ms)
            compact(log, self.total)
            checkpoint(log, self.total)
        if self._clock_s() - self._cleaned_s >= self.CLEAN_UP_EVERY_S:
            self._cleaned_s = self._clock_s()
            for log in self.logs.values():
                clean_up(log, self.total)
