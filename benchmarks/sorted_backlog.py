"""A backlog received in the order of priorities, and newest first, beside FIFO (T15)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from benchmarks.measure import run_to_end, settle
from benchmarks.results import TargetComparison
from benchmarks.workbench import Workbench

TABLE, FIFO = "sorted", "FIFO"
KEYS = {FIFO: [], "LIFO": ["JMSMessageID descending"], "priority": ["JMSPriority descending"]}
BOUND = 0.5
BATCH = 100_000


def run(bench: Workbench) -> None:
    """Every cell's backlog is sent anew for each run, uncounted."""
    cycles = bench.options.runs + 1
    bench.recorder.part("sorted", cycles * len(KEYS))
    for cell in KEYS:
        if cell != FIFO:
            bench.recorder.compare(TargetComparison(TABLE, cell, FIFO, BOUND))
    for cycle in range(cycles):
        for cell, keys in KEYS.items():
            bench.recorder.doing(f"sorted {cell}")
            root = bench.new_path("sorted")
            try:
                if bench.recorder.attempt([(TABLE, cell)], lambda root=root, keys=keys: _fill(bench, root, keys)):
                    settle(bench.spark)
                    bench.recorder.rate(TABLE, cell, cycle, bench.options.rows, lambda root=root: _drain(bench, root))
            finally:
                shutil.rmtree(root, ignore_errors=True)


def _fill(bench: Workbench, root: Path, keys: list[str]) -> None:
    import numpy as np
    import pyarrow as pa

    import spark_jms

    spark_jms.apply(str(root), {"destinations": {"orders": {"kind": "queue", "destinationKeys": keys}}})
    chance = np.random.default_rng(1)
    with spark_jms.connect(str(root)) as context:
        producer = context.producer("orders")
        for first in range(0, bench.options.rows, BATCH):
            count = min(BATCH, bench.options.rows - first)
            priorities = pa.array(chance.integers(0, 10, count), pa.int32())
            text = pa.array([f"{n:0100d}" for n in range(first, first + count)])
            producer.send_table(pa.table({"text": text, "JMSPriority": priorities}))


def _drain(bench: Workbench, root: Path) -> dict[str, float | str]:
    reader = bench.spark.readStream.format("jmsq").option("root", str(root)).option("destination", "orders")
    frame: Any = reader.option("maxMessagesPerTrigger", BATCH).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(bench.new_path("checkpoint")))
    return run_to_end(writer, bench.options.rows)
