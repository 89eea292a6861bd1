"""Compaction: runs of neighbouring files of a member become one file; sequences do not change.

`runs` decides what to merge, on the files of an immutable snapshot. The merged file is written without the log's lock; only
the commit takes it, and checks again that the files are still in the log. A file that cannot be read is left out of the
runs, named by the monitor, and tried again after growing pauses.

Features: C13 (docs/FEATURES.md)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa

from spark_jms.core.messages.carried import joined
from spark_jms.core.messages.columns import ORDINAL, STORED_SCHEMA
from spark_jms.core.messages.compression import codec_of
from spark_jms.core.messages.properties import PromotedColumns
from spark_jms.core.messages.ranges import Ranges, counting
from spark_jms.core.transactions.transfer import StagedFile, noted
from spark_jms.errors import UnreadableTableError
from spark_jms.log.messages.data_files import FileWriter, read_stored, too_old
from spark_jms.log.tables.commit import (
    ACKNOWLEDGEMENT_SCHEMA,
    HAPPENED,
    LIFE_CYCLE_SCHEMA,
    Decision,
    column_types,
    commit_prepared,
)
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.files import DataFile
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.health import STEP_FILES, HousekeepingReport, Monitor, give_way

_RUN_FACTOR_BITS = 3  # a level has 8 times the rows of the level below
_MAX_INPUT_BYTES = 32 * 2**20  # a larger file is never rewritten
_MAX_COMPACTED_BYTES = 128 * 2**20
_JOINED_BYTES = 2**20
_PREFIX = "merged-"  # of the names of its files
_MAX_S = 5.0  # then other housekeeping gets its turn


def compact(
    log: DeltaLog,
    report: HousekeepingReport | None = None,
    monitor: Monitor | None = None,
    *,
    clock_s: Callable[[], float] = time.monotonic,
) -> HousekeepingReport:
    """Merge runs of files as long as there are any, for about 5 s. A run is given up when one of its files was removed or
    replaced meanwhile, or cannot be read; `monitor` keeps the names of such files."""
    report, monitor = report or HousekeepingReport(), monitor or Monitor(log.name)
    until_s = clock_s() + _MAX_S
    _read_damaged_files_again(log, monitor)
    progress = True
    while progress and clock_s() < until_s:
        progress = False
        snapshot, failing = log.refresh(), monitor.health.failures
        for member in sorted(snapshot.members):
            files = snapshot.members[member].files
            for run in runs([file for file in files if _damaged(log, file.path) not in failing] if failing else files):
                if clock_s() < until_s:
                    give_way()
                    progress = _compact_run(log, run, report, monitor) or progress
    return report


def _damaged(log: DeltaLog, path: str) -> str:
    """The name under which the monitor keeps a file."""
    return f"reading data file {log.name}/{path}"


def _read_damaged_files_again(log: DeltaLog, monitor: Monitor) -> None:
    """Those whose pause is over. A file that left the table is forgotten."""
    files, prefix = log.refresh().files, _damaged(log, "")
    known = [what for what in monitor.health.failures if what.startswith(prefix)]
    for what in known:
        file = files.get(what.removeprefix(prefix))
        if file is None:
            monitor.forget([what])
        elif monitor.is_due(what):
            try:
                for _ in _pieces(log, [file], _schema(log).names):
                    pass
            except _UnreadFilesError as unread:
                monitor.failed(what, unread.errors[file.path])
            else:
                monitor.succeeded(what)


def level(rows: int) -> int:
    """0 for 1 to 7 rows, 1 for 8 to 63, 2 for 64 to 511 …"""
    return (rows.bit_length() - 1) // _RUN_FACTOR_BITS


def runs(files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Pure. Runs of neighbours to merge, which do not overlap.

    The files of a run have at most some level, and together the rows of a higher one. So each rewriting takes a message at
    least one level up: a message is rewritten at most once for each level that its file reaches, O(log n) times. And what
    no run takes is little: behind a file of one level there are fewer than 8 times its rows in files up to that level.
    """
    found: list[list[DataFile]] = []
    rest = [list(files)]
    for highest in range(max((level(file.rows) for file in files), default=-1), -1, -1):
        pieces: list[list[DataFile]] = []
        for stretch in rest:
            pieces += _split(stretch, highest, found)
        rest = pieces
    return found


def _split(stretch: Sequence[DataFile], highest: int, found: list[list[DataFile]]) -> list[list[DataFile]]:
    """Append to `found` the runs of files up to this level; return the files between them."""
    left: list[list[DataFile]] = []
    outside: list[DataFile] = []
    run: list[DataFile] = []
    rows = size = 0

    def end_run() -> None:
        nonlocal run, rows, size, outside
        if rows >= 1 << _RUN_FACTOR_BITS * (highest + 1):
            found.append(run)
            left.append(outside)
            outside = []
        else:
            outside += run
        run, rows, size = [], 0, 0

    for file in stretch:
        fits = level(file.rows) <= highest and file.bytes <= _MAX_INPUT_BYTES
        joins = fits and (not run or run[-1].last + 1 == file.first)
        if not joins or len(run) >= STEP_FILES or size + file.bytes > _MAX_COMPACTED_BYTES:
            end_run()
        if fits:
            run.append(file)
            rows, size = rows + file.rows, size + file.bytes
        else:
            outside.append(file)
    end_run()
    return [*left, outside]


def _compact_run(log: DeltaLog, run: list[DataFile], report: HousekeepingReport, monitor: Monitor) -> bool:
    """False when nothing came of it. What can be prepared is, before the log is locked for the commit."""
    try:
        staged = merged(log, run)
    except _UnreadFilesError as unread:
        files = log.refresh().files
        for path, error in unread.errors.items():
            if path in files:  # else purged and cleaned up meanwhile
                monitor.failed(_damaged(log, path), error)
        return True  # plan again without them
    give_way()
    if log.snapshot.destination.durability == "process":  # else the commit does it
        with suppress(FileNotFoundError):  # clean-up took it for a dead process's, which `is_current` finds
            log.storage.sync([staged.path])  # what was on the disk stays there
    first, now = run[0].first, now_ms()
    actions = [file.remove_action(now) for file in run]
    decision = Decision("OPTIMIZE", [*actions, staged.add_action(first, data_change=False)])

    def is_current(snapshot: Snapshot) -> bool:
        if any(file.path not in snapshot.files for file in run):
            return False
        return not too_old(log.storage, [staged], snapshot.destination, now)

    if commit_prepared(log, is_current, lambda snapshot, current: decision if current else None) is None:
        log.storage.delete(staged.path)
        return False
    report.compacted_files += len(run)
    return True


def is_merged(path: str) -> bool:
    """The file is one that compaction has made: its bytes are not what a sender wrote."""
    return path.partition("-")[2].startswith(_PREFIX)


def merged(log: DeltaLog, run: list[DataFile]) -> StagedFile:
    schema = _schema(log)
    declared = log.snapshot.destination
    promoted = PromotedColumns.of(declared.promoted_properties)
    codec = codec_of(declared, declared.compression_on(run[0].member))
    writer = FileWriter(log.storage, run[0].member, schema, promoted=promoted, prefix=_PREFIX, codec=codec)
    try:
        pending: list[pa.RecordBatch] = []
        size = 0
        for piece in _pieces(log, run, schema.names):
            pending.append(piece.rows)
            size += piece.bytes
            if size >= _JOINED_BYTES:
                _append(writer, pending, schema)
                pending, size = [], 0
        _append(writer, pending, schema)
        give_way()
        (staged,) = noted([writer.close()], joined(file.carried.shifted(1 - run[0].first) for file in run))
        return staged
    except BaseException:
        writer.abort()
        raise


def _append(writer: FileWriter, batches: list[pa.RecordBatch], schema: pa.Schema) -> None:
    """Small batches are joined first: statistics of a batch cost more than a hundred rows."""
    if batches:
        joined = pa.concat_batches([b if b.schema.equals(schema) else b.cast(schema) for b in batches])
        ordinals = counting(writer.rows, joined.num_rows)
        writer.append(joined.set_column(schema.get_field_index(ORDINAL), schema.field(ORDINAL), ordinals))


class _UnreadFilesError(Exception):
    """Files of the run are missing or damaged."""

    def __init__(self, errors: Mapping[str, Exception]) -> None:
        super().__init__(errors)
        self.errors = errors


class _Piece(NamedTuple):
    """Rows of one file, and about how many bytes of it they are: counting those in memory would cost more than joining them."""

    rows: pa.RecordBatch
    bytes: int


def _pieces(log: DeltaLog, run: list[DataFile], columns: list[str]) -> Iterator[_Piece]:
    """Raises _UnreadFilesError with all files of the run that cannot be read: behind the first one, the others are only
    opened."""
    errors: dict[str, Exception] = {}
    for file in run:
        recent = log.recent.take(file.path)
        if recent is not None:
            if not errors:
                yield _Piece(recent, file.bytes)
            continue
        try:
            for batch, _ in read_stored(log.storage, file.hint, Ranges.of((file.first, file.last)), columns):
                if errors:
                    break
                yield _Piece(batch, file.bytes * batch.num_rows // file.rows)
        except (UnreadableTableError, OSError) as error:
            errors[file.path] = error
        give_way()
    if errors:
        raise _UnreadFilesError(errors)


def _schema(log: DeltaLog) -> pa.Schema:
    """Of the files of this table, without promoted columns: the writer makes those of its own."""
    columns = column_types(log.snapshot.metadata)
    if "JMSMessageID" in columns:
        return STORED_SCHEMA
    return LIFE_CYCLE_SCHEMA if HAPPENED in columns else ACKNOWLEDGEMENT_SCHEMA
