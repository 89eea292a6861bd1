"""kill -9 of a driver between its sink's commit and Spark's commit log, before the batch is narrowed (M4)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jms import connect
from spark_jms.claims.upkeep import views
from spark_jms.core.destinations.destination import Destination
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import create_domain
from tests.harness.processes.crash import PLUGIN
from tests.harness.project import PROJECT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1_800)]  # two applications of its own, on a busy machine


def run(root: Path, work: Path) -> int:
    environment = {**os.environ, "PYTHONPATH": f"{PLUGIN}:{PROJECT}", "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-m", "tests.harness.programs.poison_app", str(root), str(work)]
    with open(work / "output.log", "ab") as output:
        return subprocess.run(
            command, env=environment, cwd=PROJECT, stdout=output, stderr=output, timeout=280, check=False
        ).returncode


def test_sink_that_committed_before_the_crash_gets_withheld_messages_again_flagged(tmp_path: Path) -> None:
    """M4, C5, C9: the sink has the whole batch when the driver dies; the death narrows nothing. The replays fail and the
    batch is narrowed: its sink takes the smaller batch for the one it has. What that left out comes again, flagged."""
    root, work = tmp_path / "domain", tmp_path / "work"
    (work / "taken").mkdir(parents=True)
    domain = create_domain(str(root))
    apply_destinations(domain, [Destination("orders", "queue")], lambda *_: True)
    with connect(str(root), housekeeping=False) as context:
        context.producer("orders").send_many({"text": str(n)} for n in range(8))
    assert run(root, work) == -9
    with views.opened_store(domain) as store:
        (claim,) = views.claims(domain, store, "orders")
        assert (claim.messages, claim.withheld) == (8, 0)
    assert run(root, work) == 0, (work / "output.log").read_text()[-4000:]
    sizes = [int(line) for line in (work / "attempts").read_text().splitlines()]
    assert sizes == [8, 8, 8, 4, 2, 1, 1]
    batches = sorted((work / "taken").iterdir(), key=lambda file: int(file.stem))
    rows = [row for file in batches for row in json.loads(file.read_text())]
    assert rows == [[str(n), False] for n in range(8)] + [[str(n), True] for n in range(4, 8)]
    with views.opened_store(domain) as store:
        assert views.claims(domain, store, "orders") == []
