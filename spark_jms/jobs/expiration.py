"""How many messages have expired in each minute, by subscription: a streaming aggregation over the life-cycle table.

    spark-submit spark_jms/jobs/expiration.py --root /data/messages --destination orders \\
      --output /data/expired/orders --checkpoint /data/expired/orders-checkpoint

The destination has its life-cycle log switched on (`messageLoggingEnabled`); redirected messages count too. The result is a
Delta table with the columns subscription, minute and messages, which each batch replaces. Delta and the checkpoint make a
batch that is repeated after a kill the same batch, so the counts are those of a recount from the life-cycle table, as long as
that has its rows (`acknowledgementRetention`): what was purged before the first start is not in them.

Features: T6 (docs/FEATURES.md)
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

from spark_jms import admin as administration
from spark_jms.setup import spark_session


def expired_by_minute(events: DataFrame) -> DataFrame:
    """Of rows of a life-cycle table, from a batch or a stream: subscription, minute, messages."""
    discarded = f.col("event") == "expired"
    redirected = (f.col("event") == "transferred") & (f.col("consumer") == "message expiration")
    minute = f.date_trunc("minute", f.timestamp_millis("happened_ms")).alias("minute")
    found = events.where(discarded | redirected).groupBy("subscription", minute)
    return found.agg(f.sum("messages").alias("messages"))


def start(
    spark: SparkSession, root: str, destination: str, output: str, checkpoint: str, *, once: bool = False
) -> StreamingQuery:
    """The query, started. `once`: it ends when it has counted what is there. Raises InvalidDestinationError without a life-cycle
    table."""
    with administration.connect(root) as admin:
        events = spark.readStream.format("delta").load(admin.life_cycle_table(destination))
    writer = expired_by_minute(events).writeStream.format("delta").outputMode("complete")
    writer = writer.queryName(f"expired messages of {destination}").option("checkpointLocation", checkpoint)
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="10 seconds")).start(output)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Count expired messages by subscription and minute, into a Delta table."
    )
    for name in ("--root", "--destination", "--output", "--checkpoint"):
        parser.add_argument(name, required=True)
    parser.add_argument("--once", action="store_true", help="count the events so far, then stop")
    given = parser.parse_args(arguments)
    spark = SparkSession.getActiveSession() or spark_session("jmsq expired messages")
    start(spark, given.root, given.destination, given.output, given.checkpoint, once=given.once).awaitTermination()


if __name__ == "__main__":
    main()
