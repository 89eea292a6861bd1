"""Spark sessions for tests. A test lasts seconds and moves few rows, so start-up counts and throughput does not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from spark_jms.setup.jars import cache_dir
from spark_jms.setup.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Without the optimizing compiler, which uses more CPU than a test's code does, and without verification of the bytecode
# of Spark's classes. A session that sends and drains a few times takes half the CPU time so, and two thirds of
# the memory.
JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss2m -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
ONE_PARTITION = {"spark.sql.shuffle.partitions": "1", "spark.databricks.delta.snapshotPartitions": "1"}


def java_environment() -> dict[str, str]:
    """What the launcher `java` reads (JDK 9 and later): so every JVM that a test starts, by whatever way, has the options.

    With Spark's classes parsed and linked in an archive (see class_archive.py) an application needs 7 s of CPU time
    less to its first batch. Another Java, or another class path, ignores the archive.
    """
    archive = class_archive()
    shared = f' -XX:SharedArchiveFile="{archive}" -Xlog:disable' if archive.is_file() else ""
    return {"JDK_JAVA_OPTIONS": JAVA_OPTIONS + shared}


def class_archive() -> Path:
    return cache_dir() / "spark-classes.jsa"


def small_session(name: str, directory: Path, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session with Delta whose warehouse and Derby files are in `directory`."""
    session = spark_session(
        name,
        conf={
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory}",
            **ONE_PARTITION,
            **(conf or {}),
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    return session
