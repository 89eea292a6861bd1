"""Delta table to queue, exactly once: the stream sends each new row of the table as one message.

python examples/spark_from_delta.py
spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 examples/spark_from_delta.py

It prints

    first run: 1000 messages wait, of 1000 different orders
    second run, which repeats a batch of 1000: 1500 messages wait, of 1500 different orders
    {"id":7,"amount":10.5}: property amount = 10.5, unit of order customer 0
"""

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from spark_jms import apply
from spark_jms.setup import spark_session


def insert(spark: SparkSession, work: Path, first: int, last: int) -> None:
    rows = spark.range(first, last).selectExpr("id", "id * 1.5D AS amount")
    rows.write.format("delta").mode("append").save(str(work / "table"))


def send(spark: SparkSession, root: str, work: Path, run: str) -> None:
    rows = spark.readStream.format("delta").load(str(work / "table"))
    messages = rows.selectExpr(
        "to_json(struct(id, amount)) AS text",
        "named_struct('amount', amount) AS properties",
        "concat('customer ', id % 7) AS JMSXGroupID",  # messages of one customer keep their order
    )
    writer = messages.writeStream.format("jmsq").option("root", root).option("destination", "orders")
    writer = writer.option("checkpointLocation", str(work / "checkpoint")).trigger(availableNow=True)
    writer.start().awaitTermination()
    waiting = spark.read.format("jmsq").option("root", root).option("destination", "orders").load()
    print(f"{run}: {waiting.count()} messages wait, of {waiting.select('text').distinct().count()} different orders")


def main() -> None:
    spark = spark_session("Delta table to queue")
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="jmsq-example-") as name:
        root, work = f"{name}/messages", Path(name)
        apply(root, {"destinations": {"orders": {"kind": "distributed-queue", "members": 2}}})
        insert(spark, work, 0, 1000)
        send(spark, root, work, "first run")
        for note in (work / "checkpoint" / "commits").iterdir():  # as after kill -9: sent, but not recorded by Spark
            note.unlink()
        insert(spark, work, 1000, 1500)
        send(spark, root, work, "second run, which repeats a batch of 1000")
        waiting = spark.read.format("jmsq").option("root", root).option("destination", "orders").load()
        first = waiting.where("text LIKE '{\"id\":7,%'").collect()[0]
        print(f"{first.text}: property amount = {first.properties['amount']}, unit of order {first.JMSXGroupID}")
    spark.stop()


if __name__ == "__main__":
    main()
