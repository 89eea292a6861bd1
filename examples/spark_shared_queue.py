"""Two queries share a queue: each message goes to one of them, and a query that starts later takes over members.

python examples/spark_shared_queue.py
spark-submit examples/spark_shared_queue.py

It prints

    together: 1000 messages
    twice: 0 messages
    both have received some: True
"""

import tempfile
import time

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_jms import apply
from spark_jms.setup import spark_session


def start(spark: SparkSession, root: str, work: str, name: str) -> StreamingQuery:
    """A query is known by its checkpoint: with one of its own it is another consumer of the queue."""
    orders = spark.readStream.format("jmsq").option("root", root).option("destination", "orders")
    writer = orders.option("maxMessagesPerTrigger", 100).load().writeStream.format("parquet")
    return writer.option("checkpointLocation", f"{work}/{name}-checkpoint").start(f"{work}/{name}")


def main() -> None:
    spark = spark_session("two queries share a queue", delta=False)
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="jmsq-example-") as work:
        root = f"{work}/messages"
        apply(root, {"destinations": {"orders": {"kind": "distributed-queue", "members": 4}}})
        orders = spark.range(1000).selectExpr("concat('order ', id) AS text")
        orders.write.format("jmsq").option("root", root).option("destination", "orders").mode("append").save()

        names = ("a", "b")
        queries = [start(spark, root, work, name) for name in names]
        backlog = spark.read.format("jmsq").option("root", root).option("destination", "orders")
        while all(query.isActive for query in queries) and backlog.load().count():
            time.sleep(0.5)
        for query in queries:
            query.stop()
        a, b = (spark.read.parquet(f"{work}/{name}").select("text") for name in names)
        print(f"together: {a.union(b).distinct().count()} messages")
        print(f"twice: {a.count() + b.count() - a.union(b).distinct().count()} messages")
        print(f"both have received some: {a.count() > 0 and b.count() > 0}")
    spark.stop()


if __name__ == "__main__":
    main()
