"""Spark's Java process, for what PySpark does not show: Hadoop's settings, files through Hadoop, checkpoint file managers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class JavaSide:
    """Of a session's process."""

    def __init__(self, spark: SparkSession) -> None:
        self.jvm: Any = spark.sparkContext._gateway.jvm  # type: ignore[union-attr]

    def hadoop_of_context(self) -> Any:
        """Hadoop's settings of the running SparkContext; what is set there holds for new queries."""
        return self.jvm.org.apache.spark.SparkContext.getOrCreate().hadoopConfiguration()

    def hadoop_of_session(self) -> Any:
        """The same with the session's own, as a query has them at its start."""
        return self.jvm.org.apache.spark.sql.classic.SparkSession.active().sessionState().newHadoopConf()

    def path(self, text: str) -> Any:
        return self.jvm.org.apache.hadoop.fs.Path(text)

    def manager(self, name: str, directory: str) -> Any:
        """The checkpoint file manager of this class in a directory."""
        made = getattr(self.jvm.org.apache.spark.sql.execution.streaming.checkpointing, name.rpartition(".")[2])
        return made(self.path(directory), self.hadoop_of_session())
