"""The options of a benchmark in tests."""

from __future__ import annotations

from benchmarks.workbench import BenchmarkOptions

OPTIONS = BenchmarkOptions(
    rows=1_000_000,
    runs=3,
    parts=("sink",),
    only=("jmsq", "kafka"),
    quick=False,
    latency_s=30,
    warm_s=10,
    rate=100,
    versions=(10,),
    files=(10,),
    backlogs=(1000,),
    rounds=20,
    build_budget_s=900,
    commits=300_000,
    large_rows=3_000_000,
)
