"""A message that the sink cannot take: the query is restarted until the message is alone, and continues without it.

python examples/spark_poison.py
spark-submit --properties-file conf/spark-defaults.conf examples/spark_poison.py
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import spark_jms

QUEUES = {
    "payments": {"kind": "distributed-queue", "members": 2, "errorDestination": "failed"},
    "failed": {"kind": "queue"},
}


def main() -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark's workers run the python3 of the PATH
    with tempfile.TemporaryDirectory(prefix="jmsq-example-") as work:
        spark = SparkSession.builder.appName("spark-jms poison example").getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        try:
            run(spark, f"{work}/messages", Path(work))
        finally:
            spark.stop()


def run(spark: SparkSession, root: str, work: Path) -> None:
    spark_jms.apply(root, {"destinations": QUEUES})
    with spark_jms.connect(root) as context:
        context.producer("payments").send_many({"text": "?" if n == 5 else str(n)} for n in range(8))

    taken = work / "taken"
    taken.mkdir()

    def take(frame: DataFrame, batch_id: int) -> None:
        """Idempotent: a batch that came before is recognised by its number."""
        amounts = [int(row.text) for row in frame.select("text").collect()]  # raises ValueError for "?"
        file = taken / f"{batch_id}.json"
        if not file.exists():
            file.write_text(json.dumps(amounts))

    payments = spark.readStream.format("jmsq").option("root", root).option("destination", "payments")
    stream = payments.option("onPoison", "isolate").option("idempotentSink", "true").load()
    writer = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(work / "checkpoint"))
    failures = 0
    while True:  # as a supervisor restarts the job
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
            break
        except StreamingQueryException:
            failures += 1
    amounts = sorted(amount for file in taken.iterdir() for amount in json.loads(file.read_text()))
    print(f"taken after {failures} failures: {amounts}")
    with spark_jms.connect(root) as context:
        for message in context.browser("failed"):
            print(f"set aside: {message.text!r}, {message.properties['JMS_JMSQ_ErrorReason']}")


if __name__ == "__main__":
    main()
