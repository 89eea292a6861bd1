"""The declarative pipeline of examples/."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jms.setup import find_java
from tests.harness.processes.sessions import java_environment
from tests.harness.project import PROJECT
from tests.harness.users.pages import lines, says_it_prints

EXAMPLE = PROJECT / "examples/spark_pipeline.py"

pytestmark = pytest.mark.timeout(900)


def test_a_pipeline_that_is_killed_and_run_again_loses_and_doubles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """C1, C5: queue, streaming table, queue; the first run dies by kill -9 while the table receives."""
    for name, text in {"JAVA_HOME": str(find_java().home), "PYTHONPATH": str(PROJECT), **java_environment()}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    assert lines(done.stdout) == says_it_prints(EXAMPLE)
