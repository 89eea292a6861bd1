"""Delta's own streaming, with its defaults and tuned as a user would for a queue on few cores."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from benchmarks.workbench import SPARKS, Workbench

SNAPSHOT_PARTITIONS = "spark.databricks.delta.snapshotPartitions"
STATISTICS = "spark.databricks.delta.stats.collect"
# Delta's defaults, set explicitly: the project's session changes some of them.
DEFAULTS = {SNAPSHOT_PARTITIONS: "50", STATISTICS: "true"}
TUNED = {SNAPSHOT_PARTITIONS: "2", STATISTICS: "false"}


class DeltaPeer:
    """One table per destination. A streaming query keeps the settings its session had at its start."""

    family = "delta"
    consumes = False
    checkpoint_files = SPARKS

    def __init__(self, bench: Workbench, *, tuned: bool) -> None:
        self._bench = bench
        self._tuned = tuned
        self.sink_cell = "delta-tuned" if tuned else "delta-default"
        self.source_cells: tuple[str, ...] = (self.sink_cell,)
        self._home = bench.new_path(self.sink_cell)
        self._before = {name: bench.spark.conf.get(name, None) for name in DEFAULTS}

    def begin(self, number: int) -> None:
        self._configure()

    def sink(self, frame: Any, number: int) -> Any:
        self._configure()
        return frame.writeStream.format("delta").option("path", str(self._table(number)))

    def source(self, cell: str, number: int, rows: int) -> Any:
        self._configure()
        return self._bench.spark.readStream.format("delta").load(str(self._table(number)))

    def end(self, number: int) -> None:
        shutil.rmtree(self._table(number), ignore_errors=True)
        for name, value in self._before.items():
            if value is None:
                self._bench.spark.conf.unset(name)
            else:
                self._bench.spark.conf.set(name, value)

    def _table(self, number: int) -> Path:
        return self._home / f"table-{number}"

    def _configure(self) -> None:
        for name, value in (TUNED if self._tuned else DEFAULTS).items():
            self._bench.spark.conf.set(name, value)
