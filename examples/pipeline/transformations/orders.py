"""Queue orders -> table received -> queue invoices. JMSQ_ROOT names the domain; small batches, so that a kill finds one."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table(
    format="parquet", table_properties={"pipelines.reset.allowed": "false"}
)  # what it received, no queue has any more
def received() -> DataFrame:
    orders = spark.readStream.format("jmsq").option("destination", "orders").option("maxMessagesPerTrigger", 100)
    return orders.option("columns", "member,sequence,text").load()


dp.create_sink("invoices", "jmsq", {"destination": "invoices"})


@dp.append_flow(target="invoices")
def send() -> DataFrame:
    return spark.readStream.table("received").selectExpr("concat('invoice of ', text) AS text")
