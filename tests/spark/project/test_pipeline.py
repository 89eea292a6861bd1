"""The declarative pipeline of examples/."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import spark_jms
from spark_jms.setup import find_java
from tests.harness.processes.sessions import java_environment
from tests.harness.project import PROJECT
from tests.harness.users.pages import block, lines, says_it_prints

EXAMPLE = PROJECT / "examples/spark_pipeline.py"

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def shell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of a reader's shell."""
    for name, text in {"JAVA_HOME": str(find_java().home), "PYTHONPATH": str(PROJECT), **java_environment()}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)


def test_a_pipeline_that_is_killed_and_run_again_loses_and_doubles_nothing() -> None:
    """C1, C5: queue, streaming table, queue; the first run dies by kill -9 while the table receives."""
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=850, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    assert lines(done.stdout) == says_it_prints(EXAMPLE)


def test_pipeline_of_the_page_runs(tmp_path: Path) -> None:
    """C1, C5: its definitions in the place of the example's, by the command as it stands."""
    page = "docs/PIPELINES.md"
    shutil.copytree(EXAMPLE.parent / "pipeline", tmp_path / "examples" / "pipeline")
    settings = (
        tmp_path / "examples/pipeline/spark-pipeline.yml"
    )  # a place of its own for the checkpoints, as the page says
    settings.write_text(settings.read_text().replace("file:///tmp/orders-pipeline", f"file://{tmp_path}/checkpoints"))
    definitions = block(page, "python", "dp.create_sink(")
    (tmp_path / "examples/pipeline/transformations/orders.py").write_text(definitions.text, encoding="utf-8")
    root = tmp_path / "messages"
    spark_jms.apply(root, PROJECT / "conf" / "jms-module.yaml")
    with spark_jms.connect(root, housekeeping=False) as context:
        context.producer("orders").send(text="7")
        command = ["bash", "-euc", block(page, "bash", "spark-pipelines run").text]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=850, check=False)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
        assert [message.text for message in context.browser("invoices")] == ["invoice of 7"]
        assert list(context.browser("orders")) == []
