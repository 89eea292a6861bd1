"""Usage as a streaming aggregation: sums by quota, destination, member and minute over the change feed.

    change feed -> watermark on the hour of reading -> groupBy(…).agg(…) in update mode -> foreachBatch: the usage history

The operator's state has what was read in the last two hours. A batch hands over the *absolute* totals that have changed, and the
positions that it has reached;
core/changes/usage_fold.py has the rule by which the history takes them, and the same sums without Spark.

A checkpoint belongs to a run of the query, which owns the history. The run and where it began are in a file of the checkpoint,
`jmsq-run`: a fresh checkpoint draws a run and begins behind what the history has, so a lost one loses and doubles nothing.

Features: T3, M12 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from spark_jms.claims.upkeep.usage_history import UsageSink
from spark_jms.core.changes.change import (
    ALL_DESTINATIONS,
    DROPPED_TABLE,
    ENDINGS,
    GONE,
    MESSAGES,
    NOTHING_READ,
    SENT,
    UNREAD,
)
from spark_jms.core.changes.usage_fold import (
    FIELDS,
    MinuteUsage,
    UnreadSpan,
    UsageBatch,
    UsageKey,
    UsagePosition,
    behind,
)
from spark_jms.log.changes.positions import FeedTables
from spark_jms.log.destinations.domain import Domain
from spark_jms.settings.options import KEEP

RUN_FILE = "jmsq-run"
_KEYS = ("read_hour", "quota", "destination", "table", "member", "minute")
_UNREAD = "unread"  # a key too: each span that could not be read has a row, with its ranges
_FORMAT_VERSION = 1
Took = Callable[[int, Mapping[str, Exception]], None]


def usage_by_minute(changes: DataFrame) -> DataFrame:
    """Out of the change feed: sums of every kind, and the newest numbers of messages (`sent_to`) and of ends (`row_to`)."""
    kind, messages, position = f.col("kind"), f.coalesce("messages", f.lit(0)), f.col("position")
    are_messages = kind.isin(GONE, UNREAD) & (f.col("detail") == MESSAGES)
    is_message = (kind == SENT) | are_messages
    is_end = ~is_message & ~((kind == GONE) & (f.col("detail") == DROPPED_TABLE))

    def of(condition: Column, what: Column = messages) -> Column:
        return f.sum(f.when(condition, what).otherwise(0))

    sums = {"sent": of(kind == SENT), "bytes": of(kind == SENT, f.coalesce("bytes", f.lit(0)))}
    sums |= {field: of(kind == name) for name, field in FIELDS.items()}
    sums["gone"] = of(kind == GONE)
    rows = changes.withColumn("read_hour", f.date_trunc("hour", "read")).withWatermark("read_hour", "2 hours")
    rows = rows.withColumn(_UNREAD, f.when(kind == UNREAD, f.col("ranges")))
    return rows.groupBy(*_KEYS, _UNREAD).agg(
        *(sums[name].alias(name) for name in MinuteUsage._fields),
        f.max(f.when(is_message, position)).alias("sent_to"),
        f.max(f.when(is_end, position)).alias("row_to"),
    )


def batch_of(rows: Iterable[Mapping[str, Any]]) -> UsageBatch:
    """Pure. Of rows of `usage_by_minute`, times in ms."""
    totals, end, unread = dict[UsageKey, MinuteUsage](), dict[UsagePosition, int](), set[UnreadSpan]()
    for row in rows:
        key = UsageKey(*(row[name] for name in _KEYS))
        if row[_UNREAD] is None:
            totals[key] = MinuteUsage(*(row[name] for name in MinuteUsage._fields))
        for what, to in ((MESSAGES, row["sent_to"]), (ENDINGS, row["row_to"])):
            if to is not None:
                place = UsagePosition(key.table, key.member, what)
                end[place] = max(to, end.get(place, 0))
                if row[_UNREAD] is not None:
                    unread |= {UnreadSpan(*place, first, last) for first, last in json.loads(row[_UNREAD])}
    return UsageBatch(totals, end, unread=frozenset(unread))


def start_usage(
    spark: SparkSession,
    domain: Domain,
    sink: UsageSink,
    checkpoint: str,
    every_s: float,
    took: Took = lambda *_: None,
    destinations: Sequence[str] = (),
) -> StreamingQuery:
    """The query, started. `destinations` empty: all there are. `took` is told how many windows a batch has changed, and what
    prevented a look at a destination. The query ends with UsageRunReplacedError when a newer run owns the history."""
    run, position = _run_of(spark, domain, sink, checkpoint)
    sink.follow(run)
    feed = spark.readStream.format("jmsq").option("root", domain.root).option("destination", ALL_DESTINATIONS)
    feed = feed.option("view", "changes").option("onUnreadable", KEEP)
    changes = feed.option("startingPosition", position).load()
    if destinations:
        changes = changes.where(f.col("destination").isin(*destinations))

    def take(totals: DataFrame, number: int) -> None:
        times = {name: f.unix_millis(name).alias(name) for name in ("read_hour", "minute")}
        rows = totals.select(*(times.get(name, f.col(name)) for name in totals.columns)).collect()
        took(*sink.take(run, number, batch_of(row.asDict() for row in rows)))

    writer = usage_by_minute(changes).writeStream.outputMode("update").foreachBatch(take).queryName("jmsq usage")
    return writer.option("checkpointLocation", checkpoint).trigger(processingTime=f"{every_s} seconds").start()


def _run_of(spark: SparkSession, domain: Domain, sink: UsageSink, checkpoint: str) -> tuple[str, str]:
    """The run of this checkpoint, and the position of the feed at which it began. The file is written once the run owns the history:
    a start that is killed before, or while it writes, draws another run. Then nothing else of the checkpoint is of use: its state and
    offsets are another run's."""
    sink.table.create()
    if stored := _stored_run(spark, checkpoint):
        return stored
    delete_checkpoint(spark, checkpoint)
    path, files = _hadoop_path(spark, f"{checkpoint}/{RUN_FILE}")
    run, positions = sink.table.begin()
    tables = FeedTables(domain, ALL_DESTINATIONS, isolates=True)
    newest = tables.newest(NOTHING_READ)
    position = behind(newest, positions, keeps=bool(tables.problems)).to_text()
    with closing(files.create(path, True)) as stream:
        stream.write(bytearray(json.dumps({"v": _FORMAT_VERSION, "run": run, "position": position}).encode()))
    return run, position


def _stored_run(spark: SparkSession, checkpoint: str) -> tuple[str, str] | None:
    """None: there is none, or it is torn."""
    path, files = _hadoop_path(spark, f"{checkpoint}/{RUN_FILE}")
    if not files.exists(path):
        return None
    try:
        with closing(files.open(path)) as stream:
            stored = json.loads(bytes(stream.readAllBytes()))
        return str(stored["run"]), str(stored["position"])
    except (ValueError, KeyError, TypeError, Py4JJavaError):  # Hadoop's checksum finds it too
        return None


def delete_checkpoint(spark: SparkSession, checkpoint: str) -> None:
    path, files = _hadoop_path(spark, checkpoint)
    files.delete(path, True)


def _hadoop_path(spark: SparkSession, name: str) -> tuple[Any, Any]:
    """With its file system: a checkpoint may be wherever Spark can write."""
    path = spark._jvm.org.apache.hadoop.fs.Path(name)
    return path, path.getFileSystem(spark._jsc.hadoopConfiguration())
