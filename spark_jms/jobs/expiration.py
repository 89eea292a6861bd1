"""Expiration as a streaming aggregation: the messages that fall due are the state of a Spark operator.

    change feed -> groupBy(table, member) -> transformWithStateInPandas: a DueMap, one timer -> sink with the action expire

Sent messages enter the map of their member under the minute in which they are over; a timer stands at the first minute. When it fires,
the sink gets those messages, and the record set decides which of them expire (claims/failures/due_expiration.py). What is not ready
stays in the map, and fires again after a minute, then rarer; a row `done` of the feed forgets what is purged. Messages in a file that
cannot be read enter as due now: the sink names the file, and looks again until it is restored.

So a batch that is repeated, a second query, a lost checkpoint (the next one reads all messages that the tables still have) lose and
double nothing. A message expires up to a minute and a trigger after its time, as soon as no consumer has it.

Features: T6, M12 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle, StreamingQuery
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

from spark_jms.core.changes.change import ALL_DESTINATIONS, DONE, DROPPED_TABLE, GONE, MINUTE_MS, SENT, UNREAD
from spark_jms.core.changes.due_map import DueMap, DueRow
from spark_jms.settings.options import EXPIRE, KEEP

if TYPE_CHECKING:
    import pandas as pd

DUE_SCHEMA = "table string, destination string, member int, ranges string, messages bigint, late_ms bigint"
_STATE = "map binary, destination string, timer bigint"
_NO_TIMER = -1
DUE = "due"  # the metric of the query's progress: `messages` that were handed to the sink


class DueMessagesProcessor(StatefulProcessor):
    """Of one member of a table. Its whole state is one value: the map, the name of the destination, and the time of the timer."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle, self._state = handle, handle.getValueState("due", _STATE)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        dues, name, timer = self._known()
        for some in rows:
            columns = (some[column].tolist() for column in ("destination", "kind", "last", "due_minute", "ranges"))
            for destination, *row in zip(*columns, strict=True):
                name, dues = destination, dues.told(DueRow(*row))
        self._keep(dues, name, timer)
        return iter(())

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        import pandas as pd

        dues, name, timer = self._known()
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        dues, fired = dues.fire(now_ms // MINUTE_MS)
        self._keep(dues, name, _NO_TIMER if timer == expiredTimerInfo.getExpiryTimeInMs() else timer)
        table, member = key
        rows = [
            (
                table,
                name,
                int(member),
                json.dumps([*map(list, one.picks)]),
                one.picks.count,
                now_ms - one.minute * MINUTE_MS,
            )
            for one in fired
        ]
        if rows:
            yield pd.DataFrame(rows, columns=["table", "destination", "member", "ranges", "messages", "late_ms"])

    def close(self) -> None:
        pass

    def _known(self) -> tuple[DueMap, str, int]:
        stored = self._state.get()
        if stored is None:
            return DueMap(), "", _NO_TIMER
        data, name, timer = stored
        return DueMap.from_bytes(bytes(data)), name, timer

    def _keep(self, dues: DueMap, name: str, before: int) -> None:
        """A timer is deleted by its time, so it stands in the state. Of a table that was dropped nothing is kept."""
        timer = _NO_TIMER if dues.next_minute is None else dues.next_minute * MINUTE_MS
        if timer != before:
            if before != _NO_TIMER:
                self._handle.deleteTimer(before)
            if timer != _NO_TIMER:
                self._handle.registerTimer(timer)
        if dues == DueMap():
            self._state.clear()
            return
        self._state.update((dues.to_bytes(), name, timer))


def due_messages(changes: DataFrame) -> DataFrame:
    """Messages whose time has come, out of the change feed with `forTimers`."""
    falls_due = f.col("kind").isin(SENT, UNREAD) & f.col("due").isNotNull()
    dropped = (f.col("kind") == GONE) & (f.col("detail") == DROPPED_TABLE)
    minute = (f.unix_millis("due") / MINUTE_MS).cast("bigint").alias("due_minute")
    rows = changes.where(falls_due | (f.col("kind") == DONE) | dropped)
    rows = rows.select("table", "member", "kind", "destination", "last", "ranges", minute)
    return rows.groupBy("table", "member").transformWithStateInPandas(
        DueMessagesProcessor(), DUE_SCHEMA, "Append", "ProcessingTime"
    )


def start_expiration(
    spark: SparkSession, root: str, checkpoint: str, every_s: float, destinations: Sequence[str] = ()
) -> StreamingQuery:
    """The query, started. `every_s`: of the trigger. `destinations` empty: all there are. The session has the settings OPERATORS of
    services.py."""
    feed = spark.readStream.format("jmsq").option("root", root).option("destination", ALL_DESTINATIONS)
    changes = feed.option("view", "changes").option("forTimers", "true").option("onUnreadable", KEEP).load()
    if destinations:
        changes = changes.where(f.col("destination").isin(*destinations))
    due = due_messages(changes).observe(DUE, f.sum("messages").alias("messages"))
    writer = due.writeStream.format("jmsq").outputMode("append").queryName("jmsq expiration")
    writer = writer.option("root", root).option("destination", ALL_DESTINATIONS).option("action", EXPIRE)
    return writer.option("checkpointLocation", checkpoint).trigger(processingTime=f"{every_s} seconds").start()
