"""Compaction: runs of small neighbouring files of a member become one file; sequences do not change (C13).

A file that cannot be read is left out of the runs, named by the monitor, and tried again after growing pauses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from spark_jms.core.message import ORDINAL, STORED_SCHEMA
from spark_jms.core.ranges import Ranges
from spark_jms.core.staged_file import StagedFile
from spark_jms.errors import UnreadableTableError
from spark_jms.log.acknowledgements import ACKNOWLEDGED, ACKNOWLEDGEMENT_SCHEMA
from spark_jms.log.commit import Decision, commit_prepared
from spark_jms.log.data_file import DataFile
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.file_reader import StoredRows, read_stored
from spark_jms.log.file_writer import FileWriter
from spark_jms.log.monitor import Monitor
from spark_jms.log.report import HousekeepingReport
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.staged_file import too_old
from spark_jms.log.storage import now_ms

_TIERS_BYTES = (64 * 2**10, 2**20, 8 * 2**20, 32 * 2**20)  # a run of files of one tier becomes one of the next
_MIN_RUN = 8
_MAX_RUN = 200
_MAX_COMPACTED_BYTES = 128 * 2**20


def compact(
    log: DeltaLog, report: HousekeepingReport | None = None, monitor: Monitor | None = None
) -> HousekeepingReport:
    """Merge runs of small files. A run is given up when one of its files was removed or replaced meanwhile, or cannot be
    read; `monitor` keeps the names of such files."""
    report, monitor = report or HousekeepingReport(), monitor or Monitor(log.name)
    snapshot = log.refresh()
    damaged = {what: what.removeprefix(_damaged(log, "")) for what in monitor.health.failures}
    monitor.forget(what for what, path in damaged.items() if path != what and path not in snapshot.files)
    for member in sorted(snapshot.members):
        files = snapshot.members[member].files
        run = small_run([file for file in files if monitor.is_due(_damaged(log, file.path))] if damaged else files)
        if run:
            _compact_run(log, run, report, monitor)
    return report


def _damaged(log: DeltaLog, path: str) -> str:
    """The name under which the monitor keeps a file."""
    return f"reading data file {log.name}/{path}"


def small_run(files: Sequence[DataFile]) -> list[DataFile]:
    """The first run of at least 8 neighbours of one size tier; [] when there is none."""
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


def _compact_run(log: DeltaLog, run: list[DataFile], report: HousekeepingReport, monitor: Monitor) -> None:
    try:
        staged = _merge(log, run)
    except _UnreadFileError as unread:
        if unread.file.path in log.refresh().files:  # else purged and cleaned up meanwhile
            monitor.failed(_damaged(log, unread.file.path), unread.error)
        return
    for file in run:
        monitor.succeeded(_damaged(log, file.path))
    first, now = run[0].first, now_ms()

    def is_current(snapshot: Snapshot) -> bool:
        if any(file.path not in snapshot.files for file in run):
            return False
        return not too_old(log.storage, [staged], snapshot.destination, now)

    def decide(snapshot: Snapshot, current: bool) -> Decision | None:
        if not current:
            return None
        actions = [file.remove_action(now) for file in run]
        return Decision("OPTIMIZE", [*actions, staged.add_action(first, data_change=False)])

    if commit_prepared(log, is_current, decide) is None:
        log.storage.delete(staged.path)
    else:
        report.compacted_files += len(run)


def _merge(log: DeltaLog, run: list[DataFile]) -> StagedFile:
    schema = ACKNOWLEDGEMENT_SCHEMA if _is_acknowledgements(log) else STORED_SCHEMA
    writer = FileWriter(log.storage, run[0].member, schema)
    try:
        for file in run:
            for batch, sequences in _read(log, file, schema.names):
                ordinals = pa.array(sequences - run[0].first)
                writer.append(batch.set_column(schema.get_field_index(ORDINAL), ORDINAL, ordinals).cast(schema))
        return writer.close()
    except BaseException:
        writer.abort()
        raise


class _UnreadFileError(Exception):
    """A file of the run is missing or damaged."""

    def __init__(self, file: DataFile, error: Exception) -> None:
        super().__init__(file, error)
        self.file, self.error = file, error


def _read(log: DeltaLog, file: DataFile, columns: list[str]) -> Iterator[StoredRows]:
    try:
        yield from read_stored(log.storage, file.hint, Ranges.of((file.first, file.last)), columns)
    except (UnreadableTableError, OSError) as error:
        raise _UnreadFileError(file, error) from error


def _is_acknowledgements(log: DeltaLog) -> bool:
    return ACKNOWLEDGED in str(log.snapshot.metadata.get("schemaString"))
