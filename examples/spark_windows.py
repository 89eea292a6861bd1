"""A windowed aggregation over a queue, by the event time in a property: late readings are dropped by the watermark.

python examples/spark_windows.py
spark-submit examples/spark_windows.py

It prints

    first run: 12:00 12:10 12:20 12:30 12:40 12:50 13:00 13:10 are complete, 480 readings
    second run: 13:20 13:30 too, 600 readings
"""

import tempfile

from pyspark.sql import SparkSession
from pyspark.sql.functions import count, expr, window

from spark_jms import apply
from spark_jms.setup import spark_session

NOON = "timestamp '2026-01-01 12:00:00 UTC'"


def send(spark: SparkSession, root: str, first_s: int, last_s: int) -> None:
    """A reading every 10 s. Its time is a property: a long, in milliseconds since 1970, as JMS programs send it."""
    readings = spark.range(first_s, last_s, 10).selectExpr(
        "'reading' AS text", f"named_struct('at', unix_millis({NOON}) + id * 1000) AS properties"
    )
    readings.write.format("jmsq").option("root", root).option("destination", "readings").mode("append").save()


def receive(spark: SparkSession, root: str, work: str) -> dict[str, int]:
    readings = spark.readStream.format("jmsq").option("root", root).option("destination", "readings").load()
    at = expr("timestamp_millis(cast(properties['at'] AS bigint))").alias("at")
    windows = readings.select(at).withWatermark("at", "10 minutes").groupBy(window("at", "10 minutes"))
    writer = windows.agg(count("*").alias("readings")).writeStream.format("parquet").outputMode("append")
    writer = writer.option("checkpointLocation", f"{work}/checkpoint").trigger(availableNow=True)
    writer.start(f"{work}/windows").awaitTermination()
    complete = spark.read.parquet(f"{work}/windows").orderBy("window")
    return dict(complete.selectExpr("date_format(window.start, 'HH:mm')", "readings").collect())


def main() -> None:
    spark = spark_session("windows over a queue", delta=False)
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="jmsq-example-") as work:
        root = f"{work}/messages"
        apply(root, {"destinations": {"readings": {"kind": "queue"}}})
        send(spark, root, 0, 6000)  # 12:00:00 to 13:39:50, so the watermark is 13:29:50
        first = receive(spark, root, work)
        print(f"first run: {' '.join(first)} are complete, {sum(first.values())} readings")
        send(spark, root, 300, 310)  # 12:05:00 comes too late: its window is complete
        send(spark, root, 9000, 9010)  # 14:30:00 moves the watermark to 14:20:00
        second = receive(spark, root, work)
        print(f"second run: {' '.join(list(second)[len(first) :])} too, {sum(second.values())} readings")
    spark.stop()


if __name__ == "__main__":
    main()
