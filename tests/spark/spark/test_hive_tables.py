"""Tables in a catalog that outlives the application (C1)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jms.setup import find_java
from tests.harness.processes.sessions import java_environment
from tests.harness.project import PROJECT

pytestmark = pytest.mark.timeout(600)  # two applications that start Hive's catalog
PROGRAM = PROJECT / "tests/harness/programs/hive_tables.py"


def run(which: str, work: Path) -> list[str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("JMSQ_", "SPARK_", "PYSPARK_"))}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), which, str(work)],
        env={
            **kept,
            **java_environment(),
            "PYTHONPATH": str(PROJECT),
            "JAVA_HOME": str(find_java().home),
            "PYSPARK_PYTHON": sys.executable,
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout.splitlines()


def test_a_new_application_finds_the_tables_and_continues_the_stream(tmp_path: Path) -> None:
    """C1, C5: without an option repeated but by INSERT, in another directory; the stream of a table continues from its checkpoint."""
    work = tmp_path / "work"
    work.mkdir()
    assert run("first", work) == ["received ['first of orders']", "jobs ['first of orders']"]
    assert run("second", work) == [
        "received ['first of orders', 'second of orders']",
        "jobs ['first of orders', 'second of orders']",
        "left 2",
    ]
