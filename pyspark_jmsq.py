"""Registers `format("jmsq")`: Spark imports every top-level module named `pyspark_*` and registers its DefaultSource."""

from spark_jms.spark.datasource import JmsqDataSource as DefaultSource

__all__ = ["DefaultSource"]
