"""A topic with two subscriptions: each gets every message that its selector takes, even those sent while its query was away.

python examples/spark_subscriptions.py
spark-submit examples/spark_subscriptions.py

It prints

    first run: billing has 400 prices, alarms has 40
    second run: billing has 600 prices, alarms has 60
"""

import tempfile

from pyspark.sql import SparkSession

from spark_jms import apply
from spark_jms.setup import spark_session

SELECTORS = {"billing": None, "alarms": "change > 90"}


def send(spark: SparkSession, root: str, count: int) -> None:
    prices = spark.range(count).selectExpr("'price' AS text", "named_struct('change', id % 100 + 1) AS properties")
    prices.write.format("jmsq").option("root", root).option("destination", "prices").mode("append").save()


def receive(spark: SparkSession, root: str, work: str, run: str) -> None:
    counts = []
    for name, selector in SELECTORS.items():
        stream = spark.readStream.format("jmsq").option("root", root).option("destination", "prices")
        stream = stream.option("subscription", name).option("startingPosition", "earliest")
        if selector:
            stream = stream.option("selector", selector)
        writer = stream.load().writeStream.format("parquet").option("checkpointLocation", f"{work}/{name}-checkpoint")
        writer.trigger(availableNow=True).start(f"{work}/{name}").awaitTermination()
        counts.append(spark.read.parquet(f"{work}/{name}").count())
    print(f"{run}: billing has {counts[0]} prices, alarms has {counts[1]}")


def main() -> None:
    spark = spark_session("a topic with two subscriptions", delta=False)
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="jmsq-example-") as work:
        root = f"{work}/messages"
        # A topic keeps messages that a subscription has not finished; `retention` keeps them for later subscriptions.
        apply(root, {"destinations": {"prices": {"kind": "topic", "retention": "1 h"}}})
        send(spark, root, 400)
        receive(spark, root, work, "first run")
        send(spark, root, 200)
        receive(spark, root, work, "second run")
    spark.stop()


if __name__ == "__main__":
    main()
