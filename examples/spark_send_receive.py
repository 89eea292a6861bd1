"""The first messages through Spark: send a batch, receive a part of it in a stream, browse the rest in SQL.

python examples/spark_send_receive.py                  in a temporary domain
JMSQ_ROOT=/data/messages spark-submit examples/spark_send_receive.py   in your domain, which needs a queue named orders

It prints

    received: 311
    +-----+-------+
    |color|waiting|
    +-----+-------+
    | blue|    666|
    |  red|     23|
    +-----+-------+
"""

import os
import sys
import tempfile

from pyspark.sql import SparkSession

from spark_jms import apply


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise Spark's workers run the python3 of the PATH
    spark = SparkSession.builder.appName("spark-jms example").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="jmsq-example-") as work:
        if not (root := os.environ.get("JMSQ_ROOT")):
            root = f"{work}/messages"
            apply(root, {"destinations": {"orders": {"kind": "distributed-queue", "members": 2}}})
        run(spark, root, work)
    spark.stop()


def run(spark: SparkSession, root: str, work: str) -> None:
    # Send: a body column is enough; a struct becomes typed message properties. No JMSXGroupID here: in a queue, a message that the
    # selector below refuses would hold back the later messages of its group.
    orders = spark.range(1000).selectExpr(
        "concat('order ', id) AS text",
        "named_struct('color', if(id % 3 = 0, 'red', 'blue'), 'amount', id * 1.5D) AS properties",
    )
    orders.write.format("jmsq").option("root", root).option("destination", "orders").mode("append").save()

    # Receive: everything that was there when the query started, once, in order within each member.
    reds = spark.readStream.format("jmsq").option("root", root).option("destination", "orders")
    reds = reds.option("selector", "color = 'red' AND amount > 100").load().select("member", "sequence", "text")
    writer = reds.writeStream.format("parquet").option("checkpointLocation", f"{work}/checkpoint")
    writer.trigger(availableNow=True).start(f"{work}/received").awaitTermination()
    print(f"received: {spark.read.parquet(f'{work}/received').count()}")

    # Browse the remaining messages, which consumes nothing.
    spark.sql(f"CREATE TEMPORARY VIEW backlog USING jmsq OPTIONS (root '{root}', destination 'orders')")
    spark.sql("SELECT properties['color'] AS color, count(*) AS waiting FROM backlog GROUP BY 1 ORDER BY 1").show()


if __name__ == "__main__":
    main()
