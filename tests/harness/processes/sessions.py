"""Spark sessions for tests. A test lasts seconds and moves few rows, so start-up counts and throughput does not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from spark_jms.setup.session import delta_fits, short_lived_options, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = (
    "delta" if delta_fits() else "parquet"
)  # the format of tables that tests write, also beside a Spark without Delta
FEW_ROWS = {
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.adaptive.enabled": "false",
    # Expressions are interpreted: to generate and compile Java for them takes longer than a test's rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
# As outside the tests, for what has to know the classes of all sessions.
GENERATED_CODE = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


def java_environment() -> dict[str, str]:
    """What the launcher `java` reads (JDK 9 and later): so every JVM that a test starts, by whatever way, has the options."""
    return {"JDK_JAVA_OPTIONS": short_lived_options()}


def small_session(name: str, directory: Path, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A session, with Delta where it fits, whose warehouse and Derby files are in `directory`."""
    session = spark_session(
        name,
        delta=delta_fits(),
        conf={
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={directory}",
            **FEW_ROWS,
            **(conf or {}),
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    return session
