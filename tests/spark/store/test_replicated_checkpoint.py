"""Spark's checkpoint in the replicated store, with real daemons that the test kills (R10, R19)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from spark_jms.setup import find_java
from tests.harness.project import PROJECT
from tests.harness.services.daemons import Daemons
from tests.harness.services.doors import nameservice, wait_for_two_copies
from tests.harness.users.pages import lines, says_it_prints

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

PROVIDERS = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PARTITIONS = "spark.sql.shuffle.partitions"
KILLS = 3
SOAK_KILLS = 10


@pytest.fixture
def doors(tmp_path: Path) -> Iterator[Daemons]:
    daemons = Daemons(tmp_path / "global", count=3, memory="1G", environment={"RS_DOOR_REGION_MB": "16"}, doors=True)
    yield daemons
    daemons.close()


def feed(folder: Path, n: int, words: Counter[str]) -> None:
    folder.mkdir(exist_ok=True)
    lines = [f"word{(n * 7 + m) % 5}" for m in range(n % 40 + 1)]
    words.update(lines)
    (folder / f"{n:04d}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def run_with_kills(spark: SparkSession, daemons: Daemons, folder: Path, out: Path, kills: int) -> int:
    """Kill the serving daemon `kills` times, check the counts after each kill; returns the restarts of the query."""
    checkpoint = f"webhdfs://{nameservice(spark, daemons.doors)}/queries/words"
    words: Counter[str] = Counter()

    def keep(batch: Any, number: int) -> None:
        batch.write.mode("overwrite").parquet(str(out))

    def begin() -> StreamingQuery:
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder))
        writer = lines.groupBy("value").count().coalesce(1).writeStream.foreachBatch(keep).outputMode("complete")
        return writer.option("checkpointLocation", checkpoint).start()

    fed, restarts = 0, 0
    feed(folder, fed, words)
    query = begin()
    try:
        for _ in range(kills):
            victim = wait_for_two_copies(daemons)
            for _ in range(4):
                fed += 1
                feed(folder, fed, words)
            before = query.lastProgress["batchId"] if query.lastProgress else -1
            while query.isActive and (query.lastProgress["batchId"] if query.lastProgress else -1) == before:
                query.awaitTermination(0.02)
            daemons.signal(victim, signal.SIGKILL)  # during one of the four batches
            while True:
                try:
                    query.processAllAvailable()
                    break
                except StreamingQueryException:
                    restarts += 1
                    assert restarts <= 3 * kills, "the query does not recover"
                    query = begin()
            assert {row["value"]: row["count"] for row in spark.read.parquet(str(out)).collect()} == words
            daemons.start(victim)
    finally:
        query.stop()
    return restarts


@pytest.fixture
def provider(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[str]:
    before = {name: spark.conf.get(name, None) for name in (PROVIDER, PARTITIONS)}
    spark.conf.set(PROVIDER, PROVIDERS[request.param])
    spark.conf.set(PARTITIONS, "2")
    yield request.param
    for name, old in before.items():
        if old is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, old)


@pytest.mark.parametrize("provider", PROVIDERS, indirect=True)
def test_stateful_query_survives_three_daemon_kills(
    spark: SparkSession, provider: str, doors: Daemons, tmp_path: Path
) -> None:
    """R19, R10: the test kills the daemon that serves the checkpoint during a batch; the counts stay exact."""
    restarts = run_with_kills(spark, doors, tmp_path / "in", tmp_path / "out", KILLS)
    print(f"{provider}: {KILLS} kills, {restarts} restarts of the query")


@pytest.mark.soak
@pytest.mark.parametrize("provider", PROVIDERS, indirect=True)
def test_stateful_query_survives_ten_daemon_kills(
    spark: SparkSession, provider: str, doors: Daemons, tmp_path: Path
) -> None:
    """R19: the same with ten kills."""
    restarts = run_with_kills(spark, doors, tmp_path / "in", tmp_path / "out", SOAK_KILLS)
    print(f"{provider}: {SOAK_KILLS} kills, {restarts} restarts of the query")


def test_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """R10, R19: by python, which starts the daemons too."""
    monkeypatch.setenv("JAVA_HOME", str(find_java().home))
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    example = PROJECT / "examples" / "replicated_checkpoint.py"
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    assert lines(done.stdout) == says_it_prints(example)
