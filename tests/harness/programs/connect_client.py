"""A client of Spark Connect that has neither spark-jms nor Java: `python connect_client.py REMOTE PART WORK`; prints what it sees.

Parts: `uses` tries each way of using a destination; `streams` starts a query that goes on, and waits to be killed; `ends` joins the
session of REMOTE and stops its queries.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

sys.modules.update({"spark_jms": None, "pyspark_jmsq": None})  # type: ignore[dict-item]  # importing them raises

from pyspark.errors import PySparkException  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402


def jmsq(io: Any, work: Path, destination: str) -> Any:
    return io.format("jmsq").option("root", str(work / "messages")).option("destination", destination)


def uses(spark: SparkSession, work: Path) -> None:
    frame = spark.range(20).selectExpr("cast(id AS string) AS text")
    jmsq(frame.write, work, "orders").mode("append").save()
    print("sent and read:", jmsq(spark.read, work, "orders").load().count())
    root = work / "messages"
    given = f"root '{root}', destination 'orders'"
    spark.sql(f"CREATE TABLE t USING jmsq OPTIONS ({given})")
    spark.sql(f"INSERT INTO t WITH (root = '{root}', destination = 'orders') (text) VALUES ('20')")
    spark.sql(f"CREATE TEMPORARY VIEW v USING jmsq OPTIONS ({given})")
    print("table and view:", spark.sql("SELECT * FROM t").count(), spark.table("v").count())
    folder = str(work / "each")

    def keep(batch: Any, number: int) -> None:
        batch.select("text").write.mode("overwrite").parquet(f"{folder}/{number}")

    query = spark.readStream.table("t").writeStream.foreachBatch(keep).trigger(availableNow=True)
    query.option("checkpointLocation", str(work / "each-checkpoint")).start().awaitTermination()
    print("foreachBatch:", spark.read.parquet(f"{folder}/*").distinct().count(), "left:", spark.table("t").count())
    by_variable = spark.read.format("jmsq").option("destination", "orders")
    print("root of the server's environment:", by_variable.load().count())
    try:
        by_variable.option("root", "messages").load().count()
    except PySparkException as error:
        print("relative root:", type(error).__name__, "or give an absolute root: messages is relative" in str(error))
    try:
        jmsq(spark.read, work, "orders").option("selecter", "a = 1").load().count()
    except PySparkException as error:
        where = [number for number, line in enumerate(str(error).splitlines()) if "OptionError" in line]
        print(
            "error:", type(error).__name__, error.getCondition(), bool(where), "did you mean 'selector'" in str(error)
        )


def streams(spark: SparkSession, work: Path) -> None:
    source = jmsq(spark.readStream, work, "orders").option("maxMessagesPerTrigger", 10).load()
    writer = jmsq(source.select("text").writeStream, work, "invoices")
    writer.option("checkpointLocation", str(work / "checkpoint")).queryName("forward").start()
    print("started", flush=True)
    signal.pause()


def ends(spark: SparkSession, work: Path) -> None:
    for query in spark.streams.active:
        print("stops", query.name)
        query.stop()
    print("active:", len(spark.streams.active))


if __name__ == "__main__":
    part = {"uses": uses, "streams": streams, "ends": ends}[sys.argv[2]]
    part(SparkSession.builder.remote(sys.argv[1]).getOrCreate(), Path(sys.argv[3]))
