"""Reading the files of a member while compaction replaces them: a file that is missing is looked up in the newest snapshot
.

Features: C13 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from spark_jms.core.ranges import Ranges, union
from spark_jms.errors import DestinationReplacedError
from spark_jms.log.data_file import DataFile
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.snapshot import Snapshot

ATTEMPTS = 3
T = TypeVar("T")


def snapshot_to_read(table: DeltaLog, attempt: int, table_id: str | None) -> Snapshot:
    """The known one, and after a file was missing the newest. Raises DestinationReplacedError when the table is not `table_id`
    any more (None: it may be another one)."""
    snapshot = table.verify() if attempt else table.snapshot
    if table_id not in (None, snapshot.table_id):
        raise DestinationReplacedError()
    return snapshot


def read_files(
    table: DeltaLog,
    member: int,
    wanted: Ranges,
    read: Callable[[DataFile, Ranges], Iterable[T]],
    *,
    table_id: str | None = None,
) -> tuple[list[T], Ranges]:
    """What `read` makes of each file and the part of `wanted` in it; and the messages that are in no file. A file whose reading
    raises FileNotFoundError gives nothing; its messages are looked up again, so the results may not be in their order. Raises
    DestinationReplacedError as `snapshot_to_read` does."""
    found: list[T] = []
    left = wanted
    for attempt in range(ATTEMPTS if wanted else 0):
        given: list[Ranges] = []
        missing = False
        for file in snapshot_to_read(table, attempt, table_id).member_files(member).overlapping(left.first, left.last):
            part = left.between(file.first, file.last)
            if not part:
                continue
            try:
                found += list(read(file, part))
            except FileNotFoundError:
                missing = True
                continue
            given.append(part)
        left = left - union(given)
        if not missing:
            break
    return found, left
