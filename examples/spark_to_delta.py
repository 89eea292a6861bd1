"""Queue to Delta table, exactly once, by Delta's own sink: a batch that Spark repeats is in the table once.

python examples/spark_to_delta.py
spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 examples/spark_to_delta.py

It prints

    first run: 1000 rows, 1000 different orders
    second run, which repeats a batch of 1000: 1500 rows, 1500 different orders
"""

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from spark_jms import apply
from spark_jms.setup import spark_session

# Spark can repeat the newest batch while its messages are in the table: `retention` keeps finished ones.
QUEUE = {"orders": {"kind": "distributed-queue", "members": 2, "retention": "1 h"}}


def send(spark: SparkSession, root: str, first: int, last: int) -> None:
    orders = spark.range(first, last).selectExpr("concat('order ', id) AS text")
    orders.write.format("jmsq").option("root", root).option("destination", "orders").mode("append").save()


def receive(spark: SparkSession, root: str, work: Path, run: str) -> None:
    orders = spark.readStream.format("jmsq").option("root", root).option("destination", "orders").load()
    writer = orders.select("sequence", "text").writeStream.format("delta").trigger(availableNow=True)
    writer.option("checkpointLocation", str(work / "checkpoint")).start(str(work / "table")).awaitTermination()
    table = spark.read.format("delta").load(str(work / "table"))
    print(f"{run}: {table.count()} rows, {table.select('text').distinct().count()} different orders")


def main() -> None:
    spark = spark_session("queue to Delta table")
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="jmsq-example-") as work:
        root = f"{work}/messages"
        apply(root, {"destinations": QUEUE})
        send(spark, root, 0, 1000)
        receive(spark, root, Path(work), "first run")
        # As after kill -9 at the worst moment: Delta has the batch, but Spark has not recorded its end.
        for note in Path(work, "checkpoint", "commits").iterdir():
            note.unlink()
        send(spark, root, 1000, 1500)
        receive(spark, root, Path(work), "second run, which repeats a batch of 1000")
    spark.stop()


if __name__ == "__main__":
    main()
