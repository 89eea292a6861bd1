"""Thirty thousand single sends beside a slow consumer (C13). JMSQ_GROWTH_COMMITS=300000 takes longer."""

from __future__ import annotations

import os

import pytest

from benchmarks.growth import measure
from spark_jms.log.upkeep.clean_up import KEPT_VERSIONS

_FEWER_THAN_EACH_LEVEL_HAS = 8 * 7


@pytest.mark.soak
def test_table_stays_small_beside_a_slow_consumer() -> None:
    """C13: the files of the table and of its log do not grow with the number of sends, only with their rate."""
    commits = int(os.environ.get("JMSQ_GROWTH_COMMITS", "30000"))
    for window in measure(commits, 5_000):
        print(window)
        assert window.active_files <= _FEWER_THAN_EACH_LEVEL_HAS + 20 * window.per_s
        assert window.commit_files <= KEPT_VERSIONS + 120 * window.per_s + 1_000
        assert window.checkpoints <= 200
