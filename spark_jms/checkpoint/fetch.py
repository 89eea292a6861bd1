"""Reading picked messages, whatever compaction does meanwhile: the one road of Spark's tasks and the client (C5, C13)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from spark_jms.checkpoint.scan import hint
from spark_jms.core.message import COLUMNS
from spark_jms.core.ranges import Ranges
from spark_jms.errors import DataLossError
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.files import FileHint, read_messages

_ATTEMPTS = 3
log = logging.getLogger("spark_jms")


def hints(table: DeltaLog, member: int, picks: Ranges) -> list[FileHint]:
    """The files that hold the picks, as of the newest snapshot."""
    with table.lock:
        files = table.refresh().member_files(member).overlapping(picks.first, picks.last)
        return [hint(file) for file in files if picks.between(file.first, file.last)]


def fetch(
    table: DeltaLog,
    destination: str,
    member: int,
    picks: Ranges,
    redelivered: Mapping[int, Ranges],
    *,
    columns: tuple[str, ...] = tuple(COLUMNS),
    files: Sequence[FileHint] | None = None,
    fail_on_data_loss: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The picked messages of one member in order. `files` are tried first; one that compaction has replaced meanwhile is
    looked up anew. Messages that are nowhere are a DataLossError, or left out when `fail_on_data_loss` is false."""
    left = picks
    if not left:
        return
    for attempt in range(1, _ATTEMPTS + 1):
        for file in files if files is not None and attempt == 1 else hints(table, member, left):
            part = left.between(file.first, file.last)
            batches = read_messages(table.storage, [file], part, columns, destination, member, redelivered)
            try:
                first = next(batches, None)  # opens the file
            except FileNotFoundError:
                if attempt < _ATTEMPTS:
                    break  # what is before it has been given; look up the rest
                continue  # it is in the log and not there: give what is behind it
            if first is not None:
                yield first
                yield from batches
            left = left - part
        if not left:
            return
    what = f"{destination}, member {member}: {left.count} message(s) are gone ({left}): purged or deleted"
    if fail_on_data_loss:
        raise DataLossError(
            f"{what}. Set failOnDataLoss (fail_on_data_loss in the client) to false to go on without them."
        )
    log.warning("%s. They are left out.", what)
