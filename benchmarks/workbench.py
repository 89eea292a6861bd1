"""What the parts share: the Spark session, the work directory, the cache, the options and the recorder."""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from benchmarks.recorder import Recorder

MASTER = "local[2]"
CHECKPOINT_FILES = "spark.sql.streaming.checkpointFileManagerClass"
FILE_SYSTEM_BASED = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
FEWER_FORKS, SPARKS = "with fewer forks", "as Spark by itself"
"""How a peer's queries write their checkpoints (docs/SPARK.md, checkpoints)."""
PARTS = (
    "sink",
    "source",
    "large",
    "sorted",
    "latency",
    "commit",
    "planning",
    "quotas",
    "ranking",
    "client",
    "competing",
    "modes",
    "pipeline",
    "compression",
    "growth",
    "selectors",
    "blocked",
    "subscriptions",
    "services",
)
FAMILIES = ("jmsq", "kafka", "delta")


@dataclass(frozen=True)
class BenchmarkOptions:
    """What to measure, and how much."""

    rows: int
    runs: int
    parts: tuple[str, ...]
    only: tuple[str, ...]
    quick: bool
    latency_s: float
    warm_s: float
    rate: int
    versions: tuple[int, ...]
    files: tuple[int, ...]
    backlogs: tuple[int, ...]
    rounds: int
    build_budget_s: float
    commits: int
    large_rows: int

    def __post_init__(self) -> None:
        for name, given, known in (("--parts", self.parts, PARTS), ("--only", self.only, FAMILIES)):
            unknown = sorted(set(given) - set(known))
            if unknown:
                raise ValueError(f"{name}: {', '.join(unknown)} is not one of {', '.join(known)}")
        for name, value in (
            ("--rows", self.rows),
            ("--runs", self.runs),
            ("--rate", self.rate),
            ("--rounds", self.rounds),
            ("--commits", self.commits),
            ("--large-rows", self.large_rows),
        ):
            if value < 1:
                raise ValueError(f"{name} must be 1 or more, not {value}")

    def wants(self, *parts: str) -> bool:
        return bool(set(parts) & set(self.parts))


@dataclass
class Workbench:
    """`open_spark`: one session for all peers, the connector's jars on its class path, Delta's as the project's set-up adds them."""

    open_spark: Callable[[], Any]
    work: Path
    cache: Path
    options: BenchmarkOptions
    recorder: Recorder

    @cached_property
    def spark(self) -> Any:
        """Opened by the first part that needs it."""
        return self.open_spark()

    def new_path(self, purpose: str) -> Path:
        """An unused path on the disk that all peers share."""
        return self.work / f"{purpose}-{uuid.uuid4().hex[:12]}"


@contextlib.contextmanager
def checkpoint_files(spark: Any, which: str) -> Iterator[None]:
    """A query that starts inside writes its checkpoint so."""
    if which == FEWER_FORKS:
        spark.conf.set(CHECKPOINT_FILES, FILE_SYSTEM_BASED)
    try:
        yield
    finally:
        spark.conf.unset(CHECKPOINT_FILES)


def open_session(work: Path, connector_jars: list[Path]) -> Any:
    """The project's own session, plus Kafka's connector on the class path (local mode: the driver runs the tasks)."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from spark_jms.setup.session import spark_session

    conf = {
        "spark.driver.memory": "3g",
        "spark.local.dir": str(work / "spark-local"),
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.streaming.numRecentProgressUpdates": "5000",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    if connector_jars:
        conf["spark.driver.extraClassPath"] = os.pathsep.join(str(jar) for jar in connector_jars)
    session = spark_session("spark-jms-bench", master=MASTER, delta=True, conf=conf)
    session.sparkContext.setLogLevel("ERROR")
    return session
