"""The Spark session of the demo, the notebooks and the tests: jars, Delta, Python, Java, loopback."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from spark_jms.settings.extras import needs
from spark_jms.setup.errors import SessionConflictError
from spark_jms.setup.jars import delta_jars
from spark_jms.setup.java import find_java
from spark_jms.setup.step import output_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The same as conf/spark-defaults.conf (a test compares them); a wheel has no conf/.
SPARK_DEFAULTS: Mapping[str, str] = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA = {
    "spark.sql.extensions": DELTA_EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "2",
}
LOCAL_MASTER = "local[2]"
WORKER_PYTHON = Path(__file__).parent / "spark-python.sh"


def spark_session(
    app_name: str,
    master: str = LOCAL_MASTER,
    delta: bool = True,
    conf: Mapping[str, str] | None = None,
    log: str | os.PathLike[str] | None = None,
) -> SparkSession:
    """A session ready for `format("jmsq")` and, with `delta`, for Delta tables. `conf` overrides every setting here. What Spark's
    processes print goes to the file `log`, as a notebook wants it (None: to where this process prints).

    As with Spark's builder, a running session of this process is returned unchanged; if it lacks Delta and `delta` is
    True, SessionConflictError. Sets JAVA_HOME in this process, to a Java it finds unless JAVA_HOME is suitable, and
    PYSPARK_PYTHON, to this Python unless it is set. In local mode the workers of this Python start by spark-python.sh.
    """
    with needs("spark"):
        from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is None:
        os.environ["JAVA_HOME"] = str(find_java().home)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            os.environ.update(worker_python(os.environ))
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in session_conf(master, delta, conf).items():
        builder = builder.config(key, value)
    with nullcontext() if log is None else output_to(Path(log)):
        session = builder.getOrCreate()
    if delta and DELTA_EXTENSION not in (session.conf.get("spark.sql.extensions", "") or ""):
        raise SessionConflictError
    return session


def worker_python(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which Spark's Python processes on this machine use the installed PySpark and not pyspark.zip. Empty
    when they run another Python than this one or another Spark, or when the script is not executable."""
    ours = environment.get("PYSPARK_PYTHON") == sys.executable
    same_driver = environment.get("PYSPARK_DRIVER_PYTHON", sys.executable) == sys.executable
    if not (ours and same_driver and os.access(WORKER_PYTHON, os.X_OK)) or "SPARK_HOME" in environment:
        return {}
    script = str(WORKER_PYTHON)
    return {"PYSPARK_PYTHON": script, "PYSPARK_DRIVER_PYTHON": script, "SPARK_JMS_WORKER_PYTHON": sys.executable}


def session_conf(master: str, delta: bool, conf: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings of `spark_session`, also for `spark-submit --conf`."""
    settings = {**SPARK_DEFAULTS, "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    if master.startswith("local"):
        settings |= LOCAL
    if delta:
        settings |= {**DELTA, "spark.jars": ",".join(delta_jars())}
    return {**settings, **(conf or {})}
