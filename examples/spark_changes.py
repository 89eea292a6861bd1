"""The change feed in Spark: what happened to the messages of all destinations, by kind, without consuming any.

python examples/spark_changes.py
spark-submit examples/spark_changes.py

It prints

    orders: 100 sent, 60 finished, 10 expired, 30 purged
    returns: 5 sent
    then orders: 20 sent
    still in returns: 5
"""

import tempfile

from pyspark.sql import DataFrame, SparkSession

from spark_jms import admin as administration
from spark_jms import apply, connect
from spark_jms.setup import spark_session

KINDS = ["sent", "finished", "expired", "purged"]


def send(root: str, destination: str, count: int, **headers: str) -> None:
    with connect(root) as context:
        context.producer(destination).send_many({"text": str(n), **headers} for n in range(count))


def work(root: str) -> None:
    send(root, "orders", 10, time_to_live="1 ms")
    send(root, "orders", 90)
    send(root, "returns", 5)
    with connect(root) as context, context.consumer("orders", acknowledge="auto") as consumer:
        for _ in range(60):
            consumer.receive(timeout="10 s")
    with administration.connect(root) as admin:
        admin.purge("orders")


def changes(spark: SparkSession, root: str, work_path: str) -> None:
    """Append what has happened since the last call to a table. A restart continues where the checkpoint ends."""
    feed = spark.readStream.format("jmsq").option("root", root).option("destination", "*").option("view", "changes")
    writer = feed.load().writeStream.format("parquet").option("checkpointLocation", f"{work_path}/checkpoint")
    writer.trigger(availableNow=True).start(f"{work_path}/changes").awaitTermination()


def told(rows: DataFrame) -> list[str]:
    sums = rows.groupBy("destination").pivot("kind", KINDS).sum("messages").na.fill(0).orderBy("destination").collect()
    return [f"{row.destination}: " + ", ".join(f"{row[kind]} {kind}" for kind in KINDS if row[kind]) for row in sums]


def main() -> None:
    spark = spark_session("the change feed", delta=False)
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="jmsq-example-") as path:
        root = f"{path}/messages"
        kept = {"kind": "queue", "retention": "1 h"}  # a reader that comes later finds them gone
        apply(root, {"destinations": {"orders": kept, "returns": kept}})
        work(root)
        changes(spark, root, path)
        first = spark.read.parquet(f"{path}/changes").cache()
        print("\n".join(told(first)))
        send(root, "orders", 20)
        changes(spark, root, path)
        print("then", *told(spark.read.parquet(f"{path}/changes").exceptAll(first)))
        left = spark.read.format("jmsq").option("root", root).option("destination", "returns").load()
        print("still in returns:", left.count())
    spark.stop()


if __name__ == "__main__":
    main()
