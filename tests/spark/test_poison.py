"""A real query whose sink refuses messages: restarted until the poison message is set aside (M4)."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.spark.conftest import Bench

pytestmark = pytest.mark.timeout(450)  # a query that is started six times beside others takes its time
EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_poison.py"


def test_failing_query_isolates_its_poison_message(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """M4, C8: examples/spark_poison.py. Spark ends the process of a failed query's source with SIGTERM, which notes the
    failure. One of 8 messages on two members is poison: it is set aside after a few restarts, and the sink has every other
    message once."""
    runpy.run_path(str(EXAMPLE))["run"](bench.spark, f"{bench.root}-payments", bench.path)
    taken, aside = capsys.readouterr().out.splitlines()
    failures, amounts = taken.removeprefix("taken after ").split(" failures: ")
    assert amounts == str([n for n in range(8) if n != 5])
    assert 4 <= int(failures) <= 2 + 3 + 1
    assert aside.startswith("set aside: '?', poison: a batch of query-")
