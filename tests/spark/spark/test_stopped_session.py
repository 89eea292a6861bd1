"""An application stops its Spark session and not its query (C9)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.processes.sessions import java_environment
from tests.harness.project import PROJECT

if TYPE_CHECKING:
    from tests.spark.conftest import Bench


def test_idle_query_of_a_stopped_session_ends_and_starts_again(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C9: Spark ends a query whose job fails, so an idle one lives on in its JVM, and so does one whose messages stop with the
    session. Its source ends it without a claim, and a new session continues it."""
    for name, value in java_environment().items():
        monkeypatch.setenv(name, value)
    directory = tmp_path / "app"
    directory.mkdir()
    command = [sys.executable, "-m", "tests.harness.programs.stopped_session", bench.root, str(directory)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout.split() == ["ended", "received"], done.stderr[-3000:]
    received = bench.spark.read.parquet(str(directory / "out")).collect()
    assert [tuple(row) for row in received] == [("x", 1)]
