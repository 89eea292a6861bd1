"""Spark, Delta and a Python worker run on each Java of this machine that the set-up accepts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jms.setup.machine import PREFERRED_MAJORS, Java, candidates

PROGRAM = """
import sys
from spark_jms.setup import spark_session

table = sys.argv[1]
spark = spark_session("java", master="local[1]")
spark.range(10).mapInArrow(lambda batches: batches, "id long").write.format("delta").save(table)
version = spark._jvm.System.getProperty("java.version")
print("RESULT", version, spark.read.format("delta").load(table).count())
spark.stop()
"""


def java_of(major: int) -> Java:
    for java in candidates(os.environ):
        if java.major == major and java.unfit_because() is None:
            if os.environ.get("JAVA_HOME") == str(java.home):
                pytest.skip(f"all other tests with Spark run on Java {major}")
            return java
    pytest.skip(f"no Java {major} on this machine")


@pytest.mark.parametrize("major", PREFERRED_MAJORS)
def test_spark_and_delta_run(major: int, tmp_path: Path) -> None:
    java = java_of(major)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "table")],
        env={**os.environ, "JAVA_HOME": str(java.home), "PYSPARK_PYTHON": sys.executable},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert f"RESULT {java.version} 10" in done.stdout, done.stdout + done.stderr
