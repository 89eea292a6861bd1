"""Delta's own streaming reader follows a destination's table beside housekeeping (C3, C13)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spark_jms.log.destinations.domain import Domain
from spark_jms.log.upkeep.clean_up import checkpoint
from spark_jms.log.upkeep.compaction import compact
from spark_jms.log.upkeep.purge import purge

if TYPE_CHECKING:
    from tests.spark.conftest import Bench


def test_delta_stream_sees_each_message_once_through_compaction_and_purge(bench: Bench, tmp_path: Path) -> None:
    """C3, C13: purge and compaction commit without data change: the stream neither fails ("detected deleted data") nor
    repeats a message, and it still gets messages that were purged from the table before it read their commit."""
    log = Domain(bench.root).log("jobs")

    def drain() -> None:
        stream = bench.spark.readStream.format("delta").load(log.storage.uri).select("text")
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()

    bench.send(bench.numbers(1, 20), "jobs")
    drain()
    for first in range(21, 61, 4):
        bench.send(bench.numbers(first, first + 3), "jobs")
    assert purge(log, lambda subscription, member, sequences: sequences.last <= 40).purged_files > 0
    compact(log)
    checkpoint(log, every=1)
    drain()
    bench.send(bench.numbers(61, 64), "jobs")
    drain()
    read = bench.spark.read.parquet(str(tmp_path / "out"))
    assert sorted(int(row.text) for row in read.collect()) == list(range(1, 65))
