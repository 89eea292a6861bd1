"""Several queries on a standalone cluster: one sends, two share the queue, and all executors run their tasks.

spark-submit --master spark://host:7077 examples/spark_cluster.py   TMPDIR is a directory that all hosts have
python examples/spark_cluster.py                                    on two executors that Spark starts on this host

It prints

    sent by one query: 400 messages
    received by two queries: 400 messages, 400 different ones
    executors that took part: 2
"""

import os
import sys
import tempfile
import time

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from spark_jms import apply

# For python; spark-submit has its own master, and does not read this variable.
os.environ.setdefault("PYSPARK_SUBMIT_ARGS", "--master local-cluster[2,1,1024] pyspark-shell")
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
# Without a limit an application takes all cores of the cluster. Tasks wait until both executors are there.
CONF = {"spark.cores.max": "2", "spark.executor.cores": "1", "spark.scheduler.minRegisteredResourcesRatio": "1.0"}
executor = udf(lambda: os.getcwd())  # each executor of a standalone cluster works in a directory of its own


def main() -> None:
    spark = SparkSession.builder.appName("queries on a cluster").config(map=CONF).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="jmsq-example-") as work:
        root = f"{work}/messages"
        apply(root, {"destinations": {"orders": {"kind": "distributed-queue", "members": 4}}})
        spark.range(400).selectExpr("concat('order ', id) AS text").write.parquet(f"{work}/new")
        new = spark.readStream.schema("text string").parquet(f"{work}/new")
        sender = new.writeStream.format("jmsq").option("root", root).option("destination", "orders")
        sender.option("checkpointLocation", f"{work}/sender").trigger(availableNow=True).start().awaitTermination()
        backlog = spark.read.format("jmsq").option("root", root).option("destination", "orders")
        print(f"sent by one query: {backlog.load().count()} messages")
        for name in ("a", "b"):
            orders = spark.readStream.format("jmsq").option("root", root).option("destination", "orders")
            orders = orders.option("maxMessagesPerTrigger", 50).load().withColumn("executor", executor())
            writer = orders.writeStream.format("parquet").option("checkpointLocation", f"{work}/{name}")
            writer.start(f"{work}/out-{name}")
        while len(spark.streams.active) == 2 and backlog.load().count():
            time.sleep(0.5)
        for query in spark.streams.active:
            query.stop()
        received = spark.read.parquet(f"{work}/out-a", f"{work}/out-b")
        messages, executors = received.select("text").distinct(), received.select("executor").distinct()
        print(f"received by two queries: {received.count()} messages, {messages.count()} different ones")
        print(f"executors that took part: {executors.count()}")
    spark.stop()


if __name__ == "__main__":
    main()
