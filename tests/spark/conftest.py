"""A domain with a few destinations, and shorthands to stream, send and browse; and the examples, as a function."""

from __future__ import annotations

import os
import runpy
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_jms.core.destinations.destination import Destination
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import Domain, create_domain
from tests.harness.processes.sessions import TABLES
from tests.harness.project import PROJECT
from tests.harness.users.pages import lines

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


@dataclass
class Bench:
    """The session and domain of one Spark test."""

    spark: SparkSession
    root: str
    path: Path
    domain: Domain

    def options(self, io: Any, destination: str, **options: object) -> Any:
        io = io.format("jmsq").option("root", self.root).option("destination", destination)
        for key, value in options.items():
            io = io.option(key, value)
        return io

    def browse(self, destination: str, **options: object) -> DataFrame:
        return self.options(self.spark.read, destination, **options).load()

    def stream(self, destination: str, **options: object) -> DataFrame:
        return self.options(self.spark.readStream, destination, **options).load()

    def send(self, frame: DataFrame, destination: str, **options: object) -> None:
        self.options(frame.write, destination, **options).mode("append").save()

    def numbers(
        self, first: int, last: int, extra: str = "cast(null as string) JMSXGroupID", partitions: int = 2
    ) -> DataFrame:
        return self.spark.range(first, last + 1, 1, partitions).selectExpr("cast(id as string) text", extra)

    def drain(self, destination: str, checkpoint: str, out: str | None = None, **options: object) -> StreamingQuery:
        """Receive every waiting message into the table `out`."""
        out = out or f"out-{checkpoint}"
        writer = self.stream(destination, **options).writeStream.format(TABLES)
        query = (
            writer.option("checkpointLocation", str(self.path / checkpoint))
            .trigger(availableNow=True)
            .start(str(self.path / out))
        )
        query.awaitTermination()
        return query

    def output(self, name: str) -> DataFrame:
        return self.spark.read.format(TABLES).load(str(self.path / name))

    def texts(self, name: str) -> list[int]:
        return sorted(int(row.text) for row in self.output(name).select("text").collect())


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Iterator[Bench]:
    root = str(tmp_path / f"domain-{uuid.uuid4().hex[:6]}")
    domain = create_domain(root)
    apply_destinations(
        domain,
        [
            Destination("orders", "distributed-queue", 4),
            Destination("jobs", "queue"),
            Destination("prices", "topic", retention_ms=3_600_000),
            Destination("small", "queue", max_message_bytes=100),
        ],
        lambda name, member: False,
    )
    yield Bench(spark, root, tmp_path, domain)
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def run_example(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[[str], list[str]]]:
    """Runs a program of examples/ in the session of the tests, which the program's `stop` leaves; returns the lines that it
    prints."""

    def run(name: str) -> list[str]:
        runpy.run_path(str(PROJECT / "examples" / name), run_name="__main__")
        return lines(capfd.readouterr().out)

    monkeypatch.delenv("JMSQ_ROOT", raising=False)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)  # as `activate` does, for jmsq
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    yield run
    spark.sparkContext.setLogLevel("ERROR")
