"""Overload: eight and more senders against one shared quota (T1, T2). tests/soak has the long run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark_jms.core.limits.quota import FIFO, PREEMPTIVE
from tests.harness.scenarios.overload import MAXIMUM, Plan, run_overload

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.parametrize("policy", [FIFO, PREEMPTIVE])
def test_overload_stays_within_the_maximum_and_loses_nothing(spark: SparkSession, tmp_path: Path, policy: str) -> None:
    """T1, T2: after every entry of the ledger; with FIFO in the order of registration; time-outs are named; senders are killed
    while they wait and while they hold a reservation."""
    outcome = run_overload(spark, tmp_path, Plan(policy))
    assert outcome.messages > MAXIMUM
    assert outcome.killed == 2
    assert outcome.longest_queue >= 4
