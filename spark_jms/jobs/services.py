"""The services of a domain as Structured Streaming queries.

A service reads logs and record sets itself; the query only decides when. Its source is Spark's `rate`, whose rows no task ever
reads, and each batch is one round. All that must survive is in the tables and the store, so a query may be killed in any batch,
and its checkpoint only keeps the number of the batch.

Each service has a query of its own, with a name and a checkpoint; one that ends is started again. A batch costs about 0.1 s of CPU
time, whatever it does, so no query has a batch more often than every 5 s.

Features: C13, T3, T6 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_jms.setup import spark_session

SHORTEST_TRIGGER_S = 5.0
_JAVA_ENDED = (Py4JNetworkError, OSError)  # what a call raises then
_SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "2",
}


@dataclass(frozen=True)
class ServiceQuery:
    """`run` does one round and raises nothing; `ended` gets the error of a query that has ended."""

    name: str
    every_s: float
    run: Callable[[], object]
    ended: Callable[[str], None]


class ServiceQueries:
    """Not thread-safe. `checkpoint`: a directory, in which each query has one of its own."""

    def __init__(self, spark: SparkSession, services: Sequence[ServiceQuery], checkpoint: str) -> None:
        self._spark, self._services, self._checkpoint = spark, tuple(services), checkpoint
        self._queries: dict[str, StreamingQuery] = {}
        self._stopping = threading.Event()

    def start(self) -> None:
        """Those that do not run: also queries that have ended. Raises ConnectionError when Spark's Java process has ended."""
        for service in self._services:
            query = self._queries.get(service.name)
            if query is None or not _is_active(query):
                if query is not None:
                    service.ended(f"its query has ended, and is started again: {_reason(query)}")
                try:
                    self._queries[service.name] = self._started(service)
                except (PySparkException, Py4JError) as error:  # as when its checkpoint cannot be written: tried again
                    service.ended(f"its query cannot start: {_first_lines(error)}")

    def stop(self) -> None:
        """Behind the rounds that run."""
        self._stopping.set()
        for query in self._queries.values():
            with suppress(*_JAVA_ENDED):
                query.stop()

    def _started(self, service: ServiceQuery) -> StreamingQuery:
        moments = self._spark.readStream.format("rate").option("rowsPerSecond", 1).load()
        writer = moments.writeStream.foreachBatch(self._batch(service)).queryName(f"jmsq {service.name}")
        writer = writer.option("checkpointLocation", f"{self._checkpoint}/{service.name}")
        return writer.trigger(processingTime=f"{max(service.every_s, SHORTEST_TRIGGER_S)} seconds").start()

    def _batch(self, service: ServiceQuery) -> Callable[[DataFrame, int], None]:
        def run(_rows: DataFrame, _batch: int) -> None:
            if not self._stopping.is_set():
                service.run()

        return run


def _is_active(query: StreamingQuery) -> bool:
    try:
        return query.isActive
    except _JAVA_ENDED as error:
        raise ConnectionError("Spark's Java process has ended: start the services again") from error


def _reason(query: StreamingQuery) -> str:
    error = query.exception()
    return "stopped" if error is None else _first_lines(error)


def _first_lines(error: Exception) -> str:
    """Without the traces of Java."""
    return " ".join(line.strip() for line in str(error).splitlines()[:2])


@contextmanager
def service_session() -> Iterator[SparkSession]:
    """That of spark-submit, or one of this process: a thread is enough, because no task runs. It is stopped in the end."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        spark = SparkSession.builder.getOrCreate()
    else:
        spark = spark_session("jmsq services", "local[1]", delta=False, conf=_SETTINGS)
        spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        with suppress(*_JAVA_ENDED):
            spark.stop()
