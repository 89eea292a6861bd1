"""Queue to Delta table by MERGE in foreachBatch, exactly once: a deposit that Spark repeats is not added twice.

python examples/spark_merge.py
spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 examples/spark_merge.py

It prints

    failed after the MERGE of batch 0, and started again
    balances: {0: 14850, 1: 14950, 2: 15050}
"""

import tempfile

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from spark_jms import apply
from spark_jms.setup import spark_session


def main() -> None:
    spark = spark_session("MERGE in foreachBatch")
    spark.sparkContext.setLogLevel("OFF")  # the query fails once, on purpose
    with tempfile.TemporaryDirectory(prefix="jmsq-example-") as work:
        root, table, failures = f"{work}/messages", f"delta.`{work}/accounts`", []
        apply(root, {"destinations": {"deposits": {"kind": "queue"}}})
        deposits = "'deposit' AS text", "named_struct('account', id % 3, 'amount', id) AS properties"
        queue = spark.range(300).selectExpr(*deposits).write.format("jmsq").option("root", root)
        queue.option("destination", "deposits").mode("append").save()
        spark.sql(f"CREATE TABLE {table} (account INT, balance BIGINT) USING delta")

        def add(frame: DataFrame, batch_id: int) -> None:
            """Delta remembers the number of the query's newest batch, and ignores a MERGE that has it, or a lower one."""
            session = frame.sparkSession
            session.conf.set("spark.databricks.delta.write.txnAppId", "deposits to accounts")
            session.conf.set("spark.databricks.delta.write.txnVersion", batch_id)
            frame.createOrReplaceTempView("batch")
            sums = "SELECT properties['account'] AS account, sum(properties['amount']) AS amount FROM batch GROUP BY 1"
            session.sql(f"""MERGE INTO {table} a USING ({sums}) b ON a.account = b.account
                WHEN MATCHED THEN UPDATE SET balance = a.balance + b.amount
                WHEN NOT MATCHED THEN INSERT (account, balance) VALUES (b.account, b.amount)""")
            if not failures:
                failures.append(batch_id)
                raise RuntimeError("the network is gone, just now")

        received = spark.readStream.format("jmsq").option("root", root).option("destination", "deposits").load()
        writer = received.writeStream.foreachBatch(add).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", f"{work}/checkpoint")
        try:
            writer.start().awaitTermination()
        except StreamingQueryException:
            print(f"failed after the MERGE of batch {failures[0]}, and started again")
        writer.start().awaitTermination()
        print(f"balances: {dict(spark.sql(f'SELECT account, balance FROM {table} ORDER BY 1').collect())}")
    spark.stop()


if __name__ == "__main__":
    main()
