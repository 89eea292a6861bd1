"""Makes or uses tables in a catalog that outlives the application, as `python hive_tables.py first|second WORK`; prints what it reads.

The first application makes the domain and the tables with a root relative to its own directory. The second has another one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import spark_jms


def drain(stream: DataFrame, work: Path) -> list[str]:
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(work / "checkpoint"))
    writer.trigger(availableNow=True).start(str(work / "received")).awaitTermination()
    received = stream.sparkSession.read.parquet(str(work / "received"))
    return sorted(row.text for row in received.collect())


def main(which: str, work: Path) -> None:
    os.chdir(work if which == "first" else work.parent)
    if which == "first":
        spark_jms.apply("messages", {"destinations": {"orders": {"kind": "queue"}, "jobs": {"kind": "queue"}}})
    derby = f"jdbc:derby:;databaseName={work / 'metastore'};create=true"
    builder = SparkSession.builder.master("local[2]").enableHiveSupport().config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.warehouse.dir", str(work / "warehouse"))
    spark = builder.config("spark.hadoop.javax.jdo.option.ConnectionURL", derby).getOrCreate()
    if which == "first":
        for table in ("orders", "jobs"):
            spark.sql(f"CREATE TABLE {table} USING jmsq OPTIONS (root 'messages', destination '{table}')")
    root = work / "messages"
    text = f"{which} of orders"
    spark.sql(f"INSERT INTO orders WITH (root = '{root}', destination = 'orders') (text) VALUES ('{text}')")
    spark.sql(f"INSERT INTO jobs WITH (root = '{root}', destination = 'jobs') (text) SELECT text FROM orders")
    print("received", drain(spark.readStream.table("orders").select("text"), work))
    print("jobs", sorted(row.text for row in spark.sql("SELECT text FROM jobs").collect()))
    if which == "second":
        spark.sql("DROP TABLE jobs")
        print("left", spark_jms.browse(spark, root, "jobs").count())
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
