"""A stream-static join: each order from the queue gets the country of its customer from a table.

python examples/spark_join.py
spark-submit examples/spark_join.py

It prints

    CH: 400 orders, 80160.0
    DE: 200 orders, 39800.0
    FR: 200 orders, 39880.0
    not known: 200 orders, 39960.0
"""

import tempfile

from spark_jms import apply
from spark_jms.setup import spark_session

COUNTRIES = [("0", "DE"), ("1", "FR"), ("3", "CH"), ("4", "CH")]  # customer 2 is missing


def main() -> None:
    spark = spark_session("a stream-static join", delta=False)
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="jmsq-example-") as work:
        root = f"{work}/messages"
        apply(root, {"destinations": {"orders": {"kind": "distributed-queue", "members": 2}}})
        spark.createDataFrame(COUNTRIES, "customer string, country string").write.parquet(f"{work}/customers")
        orders = spark.range(1000).selectExpr(
            "concat('order ', id) AS text",
            "named_struct('customer', string(id % 5), 'amount', id * 0.4D) AS properties",
        )
        orders.write.format("jmsq").option("root", root).option("destination", "orders").mode("append").save()

        received = spark.readStream.format("jmsq").option("root", root).option("destination", "orders").load()
        amounts = received.selectExpr(
            "text", "properties['customer'] AS customer", "double(properties['amount']) AS amount"
        )
        customers = spark.read.parquet(f"{work}/customers")
        joined = amounts.join(customers, "customer", "left").fillna("not known", ["country"])
        writer = joined.writeStream.format("parquet").option("checkpointLocation", f"{work}/checkpoint")
        writer.trigger(availableNow=True).start(f"{work}/joined").awaitTermination()
        by_country = spark.read.parquet(f"{work}/joined").groupBy("country").agg({"*": "count", "amount": "sum"})
        for country, count, amount in sorted(by_country.select("country", "count(1)", "sum(amount)").collect()):
            print(f"{country}: {count} orders, {amount:.1f}")
    spark.stop()


if __name__ == "__main__":
    main()
