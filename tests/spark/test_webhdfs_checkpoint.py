"""Spark's own checkpoint through the WebHDFS door (R19): state, restart, exact counts."""

from __future__ import annotations

import statistics
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

PROVIDERS = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
BATCHES = 12


@pytest.fixture(scope="module")
def door() -> Iterator[str]:
    command = [sys.executable, "-m", "store.replicated.webhdfs", "--memory", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("webhdfs://"), "the door did not start"
        yield address
        process.terminate()


@pytest.fixture
def state_conf(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[None]:
    names = {"spark.sql.streaming.stateStore.providerClass": request.param, "spark.sql.shuffle.partitions": "2"}
    before = {name: spark.conf.get(name, None) for name in names}
    for name, value in names.items():
        spark.conf.set(name, value)
    yield
    for name, old in before.items():
        if old is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, old)


def feed(folder: Path, first: int, last: int, words: Counter[str]) -> None:
    folder.mkdir(exist_ok=True)
    for n in range(first, last):
        lines = [f"word{(n * 7 + m) % 5}" for m in range(n + 1)]
        words.update(lines)
        (folder / f"{n:03d}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def count(spark: SparkSession, folder: Path, checkpoint: str, table: str) -> StreamingQuery:
    lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder))
    writer = lines.groupBy("value").count().writeStream.format("memory").queryName(table).outputMode("complete")
    return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


@pytest.mark.parametrize("state_conf", PROVIDERS.values(), ids=PROVIDERS.keys(), indirect=True)
@pytest.mark.usefixtures("state_conf")
def test_stateful_query_restarts_from_the_door(spark: SparkSession, door: str, tmp_path: Path) -> None:
    """R19: offsets, commits and state of both providers live behind the door; a restarted query goes on exactly."""
    words: Counter[str] = Counter()
    checkpoint, table = f"{door}{uuid.uuid4().hex}", f"t{uuid.uuid4().hex}"
    for first, last in [(0, 4), (4, 7)]:
        feed(tmp_path / "in", first, last, words)
        query = count(spark, tmp_path / "in", checkpoint, table)
        query.awaitTermination(120)
        assert query.exception() is None
        assert query.lastProgress["batchId"] == last - 1
        assert {row["value"]: row["count"] for row in spark.table(table).collect()} == words


def committed_ms(spark: SparkSession, checkpoint: str) -> list[int]:
    """walCommit + commitOffsets of each batch but the first three."""
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 20).load()
    query = stream.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    found: dict[int, int] = {}
    while len(found) < BATCHES + 3:
        query.processAllAvailable() if query.exception() else query.awaitTermination(1)
        for progress in query.recentProgress:
            times = progress["durationMs"]
            if "walCommit" in times and "commitOffsets" in times:
                found[progress["batchId"]] = times["walCommit"] + times["commitOffsets"]
    query.stop()
    return [found[batch] for batch in sorted(found)][3:]


def test_commit_time_against_local_disk(
    spark: SparkSession, door: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """R19: walCommit + commitOffsets are at most 0.6 of local disk's, in the same run (the door on the fake store)."""
    local, behind = [], []
    for n in range(2):
        local += committed_ms(spark, str(tmp_path / f"local{n}"))
        behind += committed_ms(spark, f"{door}speed-{uuid.uuid4().hex}")
    ratio = statistics.median(behind) / statistics.median(local)
    record_property("walCommit+commitOffsets", f"{statistics.median(behind)} / {statistics.median(local)} ms")
    print(f"walCommit + commitOffsets: door {statistics.median(behind)} ms, local disk {statistics.median(local)} ms")
    assert ratio <= 0.6
