"""pandas over messages: a pandas_udf on a column of the stream, and applyInPandas on the messages of each sensor.

python examples/spark_pandas.py
spark-submit examples/spark_pandas.py

It prints

    sensor a: 100 readings, mean 69.8 °F, outliers []
    sensor b: 100 readings, mean 71.2 °F, outliers [212.0]
"""

import tempfile

import pandas as pd
from pyspark.sql import DataFrame, functions, types

from spark_jms import apply
from spark_jms.setup import spark_session


@functions.pandas_udf(types.DoubleType())
def fahrenheit(celsius: pd.Series) -> pd.Series:
    return celsius.astype("float64") * 9 / 5 + 32


def summary(readings: pd.DataFrame) -> pd.DataFrame:  # of one sensor's messages in the batch
    values = readings["value"]
    outliers = values[(values - values.mean()).abs() > 3 * values.std()]
    row = {"sensor": readings["sensor"].iloc[0], "n": len(values), "mean": values.mean(), "outliers": [list(outliers)]}
    return pd.DataFrame(row)


def show(batch: DataFrame, batch_id: int) -> None:
    table = batch.groupBy("sensor").applyInPandas(summary, "sensor string, n int, mean double, outliers array<double>")
    for row in table.orderBy("sensor").collect():
        print(f"sensor {row.sensor}: {row.n} readings, mean {row['mean']:.1f} °F, outliers {row.outliers}")


def main() -> None:
    spark = spark_session("pandas over messages", delta=False)
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="jmsq-example-") as work:
        root = f"{work}/messages"
        apply(root, {"destinations": {"readings": {"kind": "distributed-queue", "members": 2}}})
        readings = spark.range(200).selectExpr(
            "if(id = 199, '100.0', string(21 + (id DIV 2) % 3 - 1)) AS text",
            "named_struct('sensor', if(id % 2 = 0, 'a', 'b')) AS properties",
        )
        readings.write.format("jmsq").option("root", root).option("destination", "readings").mode("append").save()

        received = spark.readStream.format("jmsq").option("root", root).option("destination", "readings").load()
        values = received.select(received.properties["sensor"].alias("sensor"), fahrenheit("text").alias("value"))
        writer = values.writeStream.foreachBatch(show).option("checkpointLocation", f"{work}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
