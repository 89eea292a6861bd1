"""Reading picked messages, whatever compaction does meanwhile: the one road of Spark's tasks and the client (C5, C13)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from spark_jms.claims.scan import hint
from spark_jms.core.message import COLUMNS
from spark_jms.core.ranges import Ranges, union
from spark_jms.errors import DataLossError
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.files import Delivery, FileHint, StoredRows, read_stored

_ATTEMPTS = 3
log = logging.getLogger("spark_jms")


def hints(table: DeltaLog, member: int, picks: Ranges) -> list[FileHint]:
    """The files that hold the picks, as of the newest snapshot."""
    with table.lock:
        files = table.refresh().member_files(member).overlapping(picks.first, picks.last)
        return [hint(file) for file in files if picks.between(file.first, file.last)]


class Found:
    """The stored rows of the picks; `left` are those that were nowhere."""

    def __init__(self, table: DeltaLog, member: int, picks: Ranges, files: Sequence[FileHint] | None) -> None:
        self._table = table
        self._member = member
        self._files = files
        self.left = picks

    def rows(self, columns: list[str]) -> Iterator[StoredRows]:
        for attempt in range(1, _ATTEMPTS + 1):
            if not self.left:
                return
            given: list[Ranges] = []
            known = self._files if attempt == 1 else None
            for file in known if known is not None else hints(self._table, self._member, self.left):
                part = self.left.between(file.first, file.last)
                rows = read_stored(self._table.storage, file, part, columns)
                try:
                    first = next(rows, None)  # opens the file
                except FileNotFoundError:
                    if attempt < _ATTEMPTS:
                        break  # what is before it has been given; look up the rest
                    continue  # it is in the log and not there: give what is behind it
                if first is not None:
                    yield first
                    yield from rows
                given.append(part)
            self.left = self.left - union(given)


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
    delivery = Delivery(columns, destination, member, redelivered)
    found = Found(table, member, picks, files)
    yield from delivery.messages(found.rows(delivery.stored))
    if not found.left:
        return
    left = found.left
    what = f"{destination}, member {member}: {left.count} message(s) are gone ({left}): purged or deleted"
    if fail_on_data_loss:
        raise DataLossError(
            f"{what}. Set failOnDataLoss (fail_on_data_loss in the client) to false to go on without them."
        )
    log.warning("%s. They are left out.", what)
