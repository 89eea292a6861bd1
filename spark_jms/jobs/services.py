"""The services of a domain that are streaming aggregations: usage and expiration, each a query over the change feed.

Each has a query of its own, with a name and a checkpoint; one that ends is started again. All that must survive is in the tables and
the store, so a query may be killed in any batch, and its checkpoint may be lost. What is no aggregation (housekeeping, forwarding,
lag) runs as threads beside them: admin/services.py.

A query of usage whose run was replaced stands by; when the newer run does not record news for a minute, it begins a run with a fresh
checkpoint. A query whose checkpoint does not fit any more, because a copy was restored, also gets a fresh one. Nothing is lost by
that: one begins behind the history, the other reads what the tables have.

A destination or a data file that cannot be read stops neither query. This process looks at all destinations too, and names it.

Features: C13, T3, T6 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
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
from spark_jms.claims.failures.due_expiration import ExpirationProblems
from spark_jms.claims.upkeep.usage_history import StandBy, UsageSink
from spark_jms.core.changes.change import ALL_DESTINATIONS, NOTHING_READ, FeedPosition, TablePosition
from spark_jms.core.changes.usage_fold import HOUR_MS, UsageKnown, behind
from spark_jms.errors import (
    JmsqError,
    StaleCheckpointError,
    StaleDomainError,
    UsageRunReplacedError,
)
from spark_jms.jobs.expiration import DUE, start_expiration
from spark_jms.jobs.usage import delete_checkpoint, start_usage
from spark_jms.log.changes.positions import FeedTables
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms
from spark_jms.settings.table import needs
from spark_jms.setup import spark_session
from spark_jms.store import Store, StoreError

log = logging.getLogger("spark_jms")
_FRESH = (StaleCheckpointError, StaleDomainError)  # end a query that continues with another checkpoint
SHORTEST_TRIGGER_S = 5.0
_JAVA_ENDED = (Py4JNetworkError, OSError)  # what a call raises then
_NO_JAVA = "Spark's Java process has ended: start the services again"
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
            except (Py4JNetworkError, ConnectionError) as error:
                raise ConnectionError(_NO_JAVA) from error
            except (PySparkException, Py4JError) as error:  # as when its checkpoint cannot be written: tried again
                service.ended(f"its query cannot start: {_first_lines(error)}")
            except (JmsqError, StoreError, OSError) as error:
                service.ended(f"its query cannot start: {told(error)}")

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
        self._sink, self._feed = UsageSink(domain, store), FeedLook(domain, destinations)
        self._fresh: set[str] = set()  # queries that begin with a fresh checkpoint
        # The session looks for Python's data sources once, and has none for good when the process dies that does.
        self._is_blind = False
        self._is_replaced = False  # the usage query, by a newer run
        self._stands_by: StandBy | None = None
        self._told = ("", -1)  # the run of the expiration query, and its newest batch that was told

    def made(self, only: Sequence[str]) -> list[ServiceQuery]:
        every = {
            EXPIRATION: ServiceQuery(
                EXPIRATION, self._start_expiration, self._expired, partial(self._ended, EXPIRATION)
            ),
            USAGE: ServiceQuery(USAGE, self._start_usage, self._used, self._usage_ended, self._usage_rests),
        }
        return [query for name, query in every.items() if name in only]

    def _ended(self, service: str, problem: str) -> None:
        self._runner.failed(service, problem)
        if any(f"{error.__name__}: " in problem for error in _FRESH):
            self._fresh.add(service)
        self._is_blind |= "DATA_SOURCE_NOT_FOUND" in problem

    def _fits(self, service: str, checkpoint: str) -> None:
        """Before a query starts: a checkpoint that fits, and a session that finds the source. A query is read by its own session, and
        written by the active one of its thread."""
        if self._is_blind:
            self._spark, self._is_blind = query_session(self._spark), False
            self._spark.createDataFrame([], "nothing int")  # makes it the active one
        if service in self._fresh:
            log.warning("%s: its query begins with a fresh checkpoint: %s", service, checkpoint)
            delete_checkpoint(self._spark, checkpoint)
            self._fresh.discard(service)

    def _stop_if_fallen(self, service: str, query: StreamingQuery) -> None:
        """A query whose position is ahead of a table, of which an older copy was restored, would not read what is sent to that. One
        that has read while a clock was wrong keeps that time, and would show all that follows in that hour."""
        reached = _reached(query)
        tables = self._feed.tables()  # looked at after that: a query is never ahead of them otherwise
        is_ahead = any(one.is_ahead_of(tables[table]) for table, one in reached.tables.items() if table in tables)
        if is_ahead or reached.at_ms > now_ms() + 2 * HOUR_MS:
            self._fresh.add(service)
        if service in self._fresh:
            query.stop()

    # -- expiration -----------------------------------------------------------------------------------------------
    def _start_expiration(self, checkpoint: str) -> StreamingQuery:
        self._fits(EXPIRATION, checkpoint)
        ExpirationProblems(self._domain, "").forget_old()
        every_s = max((self._domain.expiration_scan_interval_ms() or 60_000) / 1000, self._shortest_s)
        return start_expiration(self._spark, self._domain.root, checkpoint, every_s, self._given)

    def _expired(self, query: StreamingQuery) -> None:
        due, (run, newest) = 0, self._told
        for progress in query.recentProgress:
            if str(query.runId) != run or progress.batchId > newest:
                run, newest = self._told = str(query.runId), progress.batchId
                row = progress.observedMetrics.get(DUE)
                due += (row.asDict()["messages"] or 0) if row is not None else 0
        try:
            problems = self._feed.look()
            prevented, names = ExpirationProblems(self._domain, str(query.id)).known(), self._domain.destinations()
            problems += [f"{name}: {text}" for name, text in prevented.items() if name in names]
            self._stop_if_fallen(EXPIRATION, query)
        except (JmsqError, OSError) as error:
            problems = [told(error)]
        self._runner.done(EXPIRATION, ServiceRound({"due": due} if due else {}, tuple(problems)))

    # -- usage ----------------------------------------------------------------------------------------------------
    def _start_usage(self, checkpoint: str) -> StreamingQuery:
        self._fits(USAGE, checkpoint)
        every_s = min(USAGE_EVERY_S, 2 * self._shortest_s)
        return start_usage(self._spark, self._domain, self._sink, checkpoint, every_s, self._took, self._given)

    def _took(self, windows: int, errors: Mapping[str, Exception]) -> None:
        """In the thread of the query. What else is wrong, the next look tells."""
        self._runner.done(USAGE, ServiceRound({"windows": windows}, (*_named(errors), *self._feed.problems)))

    def _used(self, query: StreamingQuery) -> None:
        """Between its batches, of which there is none without news."""
        if query.status["isTriggerActive"]:
            return
        try:
            problems = self._feed.look()
            errors = self._sink.look_again(self._feed.tables)
            problems += _named(errors)
            if any(isinstance(error, StaleDomainError) for error in errors.values()):  # its positions are lowered now
                self._fresh |= {EXPIRATION, USAGE}
            self._stop_if_fallen(USAGE, query)
            problems += [f"usage history: {text}" for text in self._sink.damaged]
        except (JmsqError, StoreError, OSError) as error:
            problems = [told(error)]
        self._runner.done(USAGE, ServiceRound({}, tuple(problems)))

    def _usage_ended(self, problem: str) -> None:
        self._ended(USAGE, problem)
        self._is_replaced = UsageRunReplacedError.__name__ in problem

    def _usage_rests(self, checkpoint: str) -> bool:
        """While a newer run records. Then its checkpoint is of no use: a fresh one begins behind the history."""
        if not (self._is_replaced or self._stands_by):
            return False
        known = self._sink.table.known()
        self._stands_by, self._is_replaced = self._stands_by or StandBy.of(known), False
        self._stands_by = self._stands_by.after(known, time.monotonic(), has_news=self._feed.has_news(known))
        if not self._stands_by.is_over(time.monotonic()):
            return True
        delete_checkpoint(self._spark, checkpoint)
        self._stands_by = None
        return False


def _reached(query: StreamingQuery) -> FeedPosition:
    """Where the newest batch of a query ended. Progress from before the first batch has no end."""
    ends = [source.endOffset for progress in query.recentProgress for source in progress.sources]
    found = [end for end in ends if end and end != "null"]
    return FeedPosition.from_text(found[-1]) if found else NOTHING_READ


class FeedLook:
    """Looks at all tables as the queries do, and names those that cannot be read. Not thread-safe."""

    def __init__(self, domain: Domain, destinations: Sequence[str] = ()) -> None:
        self._tables, self._given = FeedTables(domain, ALL_DESTINATIONS, isolates=True), frozenset(destinations)
        self.problems: tuple[str, ...] = ()  # of the newest look

    def look(self) -> list[str]:
        """What prevents the feed of which destinations: the log names each once. Raises DomainError."""
        self._newest()
        return list(self.problems)

    def tables(self) -> Mapping[str, TablePosition]:
        return self._newest().tables

    def has_news(self, known: UsageKnown) -> bool:
        """What the history does not have."""
        newest = self._newest()
        spans = behind(newest, known.positions).spans(newest)
        return any(not self._given or span.destination in self._given for span in spans)

    def _newest(self) -> FeedPosition:
        newest = self._tables.newest(NOTHING_READ)
        found = {name: error for name, error in self._tables.problems.items() if not self._given or name in self._given}
        problems = tuple(_named(found))
        for text in problems:
            if text not in self.problems:
                log.warning("%s: expiration and usage continue without it, and with it as soon as it can be read", text)
        self.problems = problems
        return newest


def _named(errors: Mapping[str, Exception]) -> list[str]:
    return [f"{name}: {told(error)}" for name, error in errors.items()]


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
        raise ConnectionError(_NO_JAVA) from error


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
