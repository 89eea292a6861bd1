"""Three minutes of overload (T1, T2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark_jms.core.limits.quota import FIFO, PREEMPTIVE
from tests.harness.scenarios.overload import MAXIMUM, Plan, run_overload

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.soak
@pytest.mark.parametrize("policy", [FIFO, PREEMPTIVE])
def test_minutes_of_overload(spark: SparkSession, tmp_path: Path, policy: str) -> None:
    """T1, T2: as tests/spark/log/test_overload.py, but 90 s for each policy, with kills in all of them."""
    outcome = run_overload(spark, tmp_path, Plan(policy, rounds=3, seconds=90))
    print(
        f"{policy}: {outcome.entries} entries, {outcome.messages} messages, {outcome.killed} killed, {outcome.late} late"
    )
    assert outcome.messages > 2 * MAXIMUM
    assert outcome.killed >= 6
