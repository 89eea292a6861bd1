"""The services of a domain that are streaming aggregations: usage and expiration, each a query over the change feed.

Each has a query of its own, with a name and a checkpoint; one that ends is started again. All that must survive is in the tables and
the store, so a query may be killed in any batch, and its checkpoint may be lost. What is no aggregation (housekeeping, forwarding,
lag) runs as threads beside them: admin/services.py.

A query of usage whose run was replaced stands by; when the newer run records nothing for a minute, it begins a run with a fresh
checkpoint.

Features: C13, T3, T6 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from spark_jms.admin.services import EXPIRATION, USAGE, USAGE_EVERY_S, ServiceRound, ServiceRunner, told
from spark_jms.claims.upkeep.usage_history import StandBy, UsageSink
from spark_jms.errors import JmsqError, UsageRunReplacedError
from spark_jms.jobs.expiration import DUE, start_expiration
from spark_jms.jobs.usage import delete_checkpoint, start_usage
from spark_jms.log.destinations.domain import Domain
from spark_jms.settings.table import needs
from spark_jms.setup import spark_session
from spark_jms.store import Store

SHORTEST_TRIGGER_S = 5.0
_JAVA_ENDED = (Py4JNetworkError, OSError)  # what a call raises then
_OURS = re.compile(r"spark_jms\.errors\.(\w+: .*)")
_SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
}
OPERATORS = {  # of the queries: timers need RocksDB, and a checkpoint fixes the number of partitions
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}


@dataclass(frozen=True)
class ServiceQuery:
    """`start` gets a checkpoint of its own. `looked` is told of each look at the running query, `ended` gets the error of one that has
    ended. `rests`: whether it is not started now."""

    name: str
    start: Callable[[str], StreamingQuery]
    looked: Callable[[StreamingQuery], None]
    ended: Callable[[str], None]
    rests: Callable[[str], bool] = lambda checkpoint: False


class ServiceQueries:
    """Not thread-safe. `checkpoint`: a directory, in which each query has one of its own."""

    def __init__(self, services: Sequence[ServiceQuery], checkpoint: str) -> None:
        self._services, self._checkpoint = tuple(services), checkpoint
        self.running: dict[str, StreamingQuery] = {}  # by name: as started last

    def start(self) -> None:
        """Those that do not run: also queries that have ended. Raises ConnectionError when Spark's Java process has ended."""
        for service in self._services:
            query = self.running.get(service.name)
            if query is not None and _is_active(query):
                service.looked(query)
                continue
            if query is not None:
                service.ended(f"its query has ended, and is started again: {reason(query)}")
                del self.running[service.name]
            place = f"{self._checkpoint}/{service.name}"
            try:
                if not service.rests(place):
                    self.running[service.name] = service.start(place)
            except (
                PySparkException,
                Py4JError,
                JmsqError,
            ) as error:  # as when its checkpoint cannot be written: tried again
                service.ended(f"its query cannot start: {_first_lines(error)}")

    def stop(self) -> None:
        """In the middle of a batch: it is repeated."""
        for query in self.running.values():
            with suppress(*_JAVA_ENDED):
                query.stop()


class DomainQueries:
    """The queries of a domain, which tell a ServiceRunner how they are."""

    def __init__(
        self,
        spark: SparkSession,
        domain: Domain,
        store: Store,
        runner: ServiceRunner,
        destinations: Sequence[str] = (),
        *,
        shortest_s: float = SHORTEST_TRIGGER_S,
    ) -> None:
        """Raises MissingExtraError. `destinations` empty: all there are."""
        check_operators()
        self._spark, self._domain, self._runner, self._given = query_session(spark), domain, runner, tuple(destinations)
        self._shortest_s = shortest_s
        self._sink = UsageSink(domain, store)
        self._problems: tuple[str, ...] = ()  # of the newest batch of usage
        self._stands_by: StandBy | None = None
        self._seen: dict[str, int] = {}  # by run of a query: its newest batch that was told

    def made(self, only: Sequence[str]) -> list[ServiceQuery]:
        every = {
            EXPIRATION: ServiceQuery(
                EXPIRATION, self._start_expiration, self._expired, partial(self._runner.failed, EXPIRATION)
            ),
            USAGE: ServiceQuery(USAGE, self._start_usage, self._used, self._usage_ended, self._usage_rests),
        }
        return [query for name, query in every.items() if name in only]

    # -- expiration -----------------------------------------------------------------------------------------------
    def _start_expiration(self, checkpoint: str) -> StreamingQuery:
        every_s = max((self._domain.expiration_scan_interval_ms() or 0) / 1000, self._shortest_s)
        return start_expiration(self._spark, self._domain.root, checkpoint, every_s, self._given)

    def _expired(self, query: StreamingQuery) -> None:
        due = 0
        for progress in query.recentProgress:
            if progress.batchId > self._seen.get(str(query.runId), -1):
                self._seen[str(query.runId)] = progress.batchId
                row = progress.observedMetrics.get(DUE)
                due += (row.asDict()["messages"] or 0) if row is not None else 0
        self._runner.done(EXPIRATION, ServiceRound({"due": due} if due else {}))

    # -- usage ----------------------------------------------------------------------------------------------------
    def _start_usage(self, checkpoint: str) -> StreamingQuery:
        every_s = min(USAGE_EVERY_S, 2 * self._shortest_s)
        return start_usage(self._spark, self._domain, self._sink, checkpoint, every_s, self._took, self._given)

    def _took(self, windows: int, errors: Mapping[str, Exception]) -> None:
        problems = [f"{name}: {told(error)}" for name, error in errors.items()]
        problems += [f"usage history: {text}" for text in self._sink.damaged]
        self._problems = tuple(problems)
        self._runner.done(USAGE, ServiceRound({"windows": windows}, self._problems))

    def _used(self, query: StreamingQuery) -> None:
        """Without news it has no batch, and nothing is wrong but what was in the last one."""
        if not query.status["isTriggerActive"]:
            self._runner.done(USAGE, ServiceRound({}, self._problems))

    def _usage_ended(self, problem: str) -> None:
        self._runner.failed(USAGE, problem)
        if UsageRunReplacedError.__name__ in problem:
            self._stands_by = StandBy.of(self._sink.table.known(), time.monotonic())

    def _usage_rests(self, checkpoint: str) -> bool:
        """While a newer run records. Then its checkpoint is of no use: a fresh one begins behind the history."""
        if self._stands_by is None:
            return False
        self._stands_by = self._stands_by.after(self._sink.table.known(), time.monotonic())
        if not self._stands_by.is_over(time.monotonic()):
            return True
        delete_checkpoint(self._spark, checkpoint)
        self._stands_by = None
        return False


def check_operators() -> None:
    """Raises MissingExtraError: Spark tells of a missing package only when the first batch runs in a worker."""
    with needs("spark"):
        for package in ("google.protobuf", "pandas"):
            import_module(package)


def query_session(spark: SparkSession) -> SparkSession:
    """A session with the settings of OPERATORS, which leaves the given one as it is."""
    session = spark.newSession()
    for name, value in OPERATORS.items():
        session.conf.set(name, value)
    return session


def _is_active(query: StreamingQuery) -> bool:
    try:
        return query.isActive
    except _JAVA_ENDED as error:
        raise ConnectionError("Spark's Java process has ended: start the services again") from error


def reason(query: StreamingQuery) -> str:
    error = query.exception()
    return "stopped" if error is None else _first_lines(error)


def _first_lines(error: Exception) -> str:
    """An error of ours, as it stands in the traces of Python; or the first lines, without the traces of Java."""
    ours = _OURS.findall(str(error))
    return ours[-1] if ours else " ".join(line.strip() for line in str(error).splitlines()[:2])


@contextmanager
def service_session() -> Iterator[SparkSession]:
    """That of spark-submit, or one of this process. It is stopped in the end."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        spark = SparkSession.builder.getOrCreate()
    else:
        spark = spark_session("jmsq services", "local[2]", delta=False, conf=_SETTINGS)
        spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        with suppress(*_JAVA_ENDED):
            spark.stop()
