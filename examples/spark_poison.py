"""Error destination and redrive: a message that the sink cannot process is set aside, and comes back when the sink is fixed.

python examples/spark_poison.py
spark-submit --properties-file conf/spark-defaults.conf examples/spark_poison.py

It prints

    taken: [0, 1, 2, 3, 4, 6, 7]
    set aside: '5.0' from payments
    moved 1 message(s) of failed to payments
    taken: [0, 1, 2, 3, 4, 5, 6, 7]
"""

import tempfile
from collections.abc import Callable
from contextlib import suppress
from subprocess import getoutput

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from spark_jms import apply, connect
from spark_jms.setup import spark_session

PAYMENTS = {"kind": "distributed-queue", "members": 2, "errorDestination": "failed"}
taken: dict[int, list[int]] = {}


def receive(spark: SparkSession, root: str, amount: Callable[[str], int]) -> None:
    def take(frame: DataFrame, batch_id: int) -> None:
        taken.setdefault(batch_id, [amount(row.text) for row in frame.select("text").collect()])  # idempotent

    options = {"root": root, "destination": "payments", "onPoison": "isolate", "idempotentSink": "true"}
    payments = spark.readStream.format("jmsq").options(**options).load()
    writer = payments.writeStream.option("checkpointLocation", f"{root}-checkpoint").trigger(availableNow=True)
    while True:  # what a supervisor does: restart a failed job
        with suppress(StreamingQueryException):
            writer.foreachBatch(take).start().awaitTermination()
            break
    print(f"taken: {sorted(number for numbers in taken.values() for number in numbers)}")


def main() -> None:
    spark = spark_session("error destination and redrive", delta=False)
    spark.sparkContext.setLogLevel("OFF")  # the query fails, on purpose
    with tempfile.TemporaryDirectory(prefix="jmsq-example-") as work:
        root = f"{work}/messages"
        apply(root, {"destinations": {"payments": PAYMENTS, "failed": {"kind": "queue"}}})
        with connect(root) as context, context.producer("payments") as producer:
            producer.send_many({"text": text} for text in ["0", "1", "2", "3", "4", "5.0", "6", "7"])
            receive(spark, root, int)  # int("5.0") raises ValueError
            for message in context.browser("failed"):
                print(f"set aside: {message.text!r} from {message.properties['JMS_JMSQ_ErrorFrom']}")
        print(getoutput(f"jmsq redrive failed --root {root} 2>/dev/null"))
        receive(spark, root, lambda text: int(float(text)))
    spark.stop()


if __name__ == "__main__":
    main()
