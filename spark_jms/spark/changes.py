"""The view `changes`: the change feed as a streaming or batch read. It consumes nothing, and asks no store.

The reader on the driver looks at the logs and divides a batch into parts; tasks open files and parse. An offset is a position of
core/changes/change.py: two numbers for each member, by the id of the table. Spark may ask for a batch again at any time, and gets the
same rows.

Spark does not keep a query's initial offset until its first batch is done, and asks for it again after a failure. `latest` would be
later then. So the initial offset of `latest` says just that, and the first batch, which has no rows, fixes what it means.

A batch read has everything that the tables still have; a streaming read begins at `startingPosition`, `earliest` unless it is given.
Nothing new is no new offset, so an idle query runs no batch. Without new rows `latestOffset` waits a moment: with a trigger of 0 Spark
would ask 50 times a second.

A query with timers (`forTimers`) needs two things more: rows of the kind `done`, to forget messages, and a batch when its process
begins. A timer fires in a batch alone, and Spark begins none in a new process until there is news: so the first offset is a new one
even without news.

Features: C1, M12 (docs/FEATURES.md)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from spark_jms.core.messages.columns import COLUMNS
from spark_jms.errors import OptionError, SparkStoppedError
from spark_jms.settings.options import KEEP, OPTIONS, Options
from spark_jms.spark.options import SparkContextWatch
from spark_jms.spark.tasks import freeze_loaded

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from spark_jms.core.changes.change import FeedPosition
    from spark_jms.log.changes.plan import FeedPart
    from spark_jms.log.changes.positions import FeedTables

CHANGES = "changes"
_LATEST = {"begin": "latest"}
CHANGES_SCHEMA = (
    "kind string, destination string, table string, member int, subscription string, consumer string, claim string, "
    "detail string, first bigint, last bigint, ranges string, messages bigint, bytes bigint, at timestamp, minute timestamp, "
    "due timestamp, quota string, position bigint, read timestamp"
)
IDLE_WAIT_S = 0.2
_WAKE = 1  # ms by which the first offset of a process is later
_UNLIMITED = 2**62
_USED = {
    "root",
    "destination",
    "path",
    "view",
    "startingPosition",
    "maxMessagesPerTrigger",
    "checkpointLocation",
    "forTimers",
    "onUnreadable",
}


def check_changes(options: Options) -> None:
    """Raises OptionError for an option that the feed does not use: to ignore it would show too much."""
    fields = attrs.fields_dict(Options)
    for name, row in OPTIONS.items():
        value, unset = getattr(options, row.field), fields[row.field].default
        if name == "columns":
            unset = tuple(COLUMNS)
        if name not in _USED and value != unset:
            raise OptionError(
                f"option {name} is {value!r}, but the view 'changes' does not use it: leave it out, and select rows and columns "
                "of the DataFrame"
            )


@dataclass
class FeedPartition(InputPartition):
    part: FeedPart


class ChangesReader(DataSourceReader):
    def __init__(self, options: Options) -> None:
        check_changes(options)
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        from spark_jms.core.changes.change import NOTHING_READ
        from spark_jms.log.changes.plan import plan

        tables = _tables(self.options)
        tables.check()
        end = tables.newest(NOTHING_READ)
        return [FeedPartition(part) for part in plan(self.options.root, tables, NOTHING_READ, end)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        yield from _read(partition)


class ChangesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Options) -> None:
        check_changes(options)
        self.options = options
        self._tables: FeedTables | None = None
        self._ends = False  # Trigger.AvailableNow
        self._target: FeedPosition | None = None  # of that
        self._wakes = options.for_timers
        self._context = SparkContextWatch()

    def _opened(self) -> FeedTables:
        if self._tables is None:
            self._tables = _tables(self.options)
        return self._tables

    def initialOffset(self) -> dict[str, Any]:
        """A wrong option or destination fails before Spark logs anything."""
        from spark_jms.log.changes.feed import EARLIEST, LATEST, initial_position

        since = self.options.starting_position or EARLIEST
        position = initial_position(self._opened(), since)
        return _LATEST if since == LATEST else position.to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_messages or _UNLIMITED)

    def prepareForTriggerAvailableNow(self) -> None:
        self._ends, self._target = True, None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        from spark_jms.core.changes.change import NOTHING_READ, FeedPosition

        if self._context.is_stopped():
            raise SparkStoppedError
        if start == _LATEST:
            return self._opened().newest(NOTHING_READ).to_json()
        before = FeedPosition.from_json(start)
        end = self._target or (self._opened().newest(before) if self._ends else self._awaited(before))
        if self._ends:
            self._target = end
        if self._wakes and not _has_news(before, end):
            end = replace(end, at_ms=max(end.at_ms, before.at_ms + _WAKE))
            self._wakes = False
            return end.to_json()
        most = limit.max_rows if isinstance(limit, ReadMaxRows) and not isinstance(limit, ReadAllAvailable) else None
        if not _has_news(before, end):
            return start
        return before.towards(end, most).to_json()

    def _awaited(self, before: FeedPosition) -> FeedPosition:
        """The newest position, after a moment if it has nothing new."""
        tables = self._opened()
        end = tables.newest(before)
        if not _has_news(before, end):
            time.sleep(IDLE_WAIT_S)
            end = tables.newest(before)
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        from spark_jms.core.changes.change import FeedPosition
        from spark_jms.log.changes.plan import plan

        if start == _LATEST:
            return []
        before, after = FeedPosition.from_json(start), FeedPosition.from_json(end)
        tables = self._opened()
        after.check_before(tables.newest(after))
        return [FeedPartition(part) for part in plan(self.options.root, tables, before, after)]

    def read(self, partition: InputPartition) -> Iterator[RecordBatch]:
        yield from _read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: the feed keeps nothing."""

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options}


def _tables(options: Options) -> FeedTables:
    from spark_jms.claims.upkeep.power_loss import open_domain
    from spark_jms.log.changes.positions import FeedTables

    domain, isolates = open_domain(options.root), options.on_unreadable == KEEP
    return FeedTables(domain, options.destination, floors=options.for_timers, isolates=isolates)


def _has_news(before: FeedPosition, end: FeedPosition) -> bool:
    return bool(before.spans(end) or before.dropped(end) or before.done(end))


def _read(partition: InputPartition) -> Iterator[RecordBatch]:
    from spark_jms.log.changes.rows import batches_of

    assert isinstance(partition, FeedPartition)
    yield from batches_of(partition.part)
    freeze_loaded()
