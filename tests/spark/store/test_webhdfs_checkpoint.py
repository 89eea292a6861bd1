"""Spark's checkpoint through the WebHDFS door (R19): state, restart, exact counts."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException

from tests.harness.processes import forked
from tests.harness.processes.java import JavaSide

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

PROVIDERS = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}

FEWER_FORKS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


@pytest.fixture(scope="module")
def door() -> Iterator[str]:
    command = [sys.executable, "-m", "spark_jms.store.webhdfs", "--memory", "--port", "0"]
    with forked.Popen(command, stdout=subprocess.PIPE, text=True) as process:
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


def test_door_refuses_a_second_writer_of_an_offset(spark: SparkSession, door: str) -> None:
    """R19: with the manager that forks less, which checks before it renames: of two that pass the check one is refused."""
    java, directory = JavaSide(spark), f"{door}{uuid.uuid4().hex}"
    files = java.manager(FEWER_FORKS, directory)
    first, second = (files.createAtomic(java.path(f"{directory}/7"), False) for _ in range(2))
    first.close()
    with pytest.raises(Py4JJavaError, match="AlreadyExists"):
        second.close()
    fs = java.path(directory).getFileSystem(java.hadoop_of_session())
    left, right = (java.path(f"{directory}/{name}") for name in ("8", "7"))
    fs.create(left, True).close()
    assert not fs.rename(left, right)  # the door decides, not the check before


@pytest.mark.parametrize("state_conf", PROVIDERS.values(), ids=PROVIDERS.keys(), indirect=True)
@pytest.mark.usefixtures("state_conf")
def test_stateful_query_restarts_from_the_door(spark: SparkSession, door: str, tmp_path: Path) -> None:
    """R19: the door keeps offsets, commits and state of both providers; a restarted query continues with exact counts."""
    words: Counter[str] = Counter()
    checkpoint, table = f"{door}{uuid.uuid4().hex}", f"t{uuid.uuid4().hex}"
    for first, last in [(0, 4), (4, 7)]:
        feed(tmp_path / "in", first, last, words)
        query = count(spark, tmp_path / "in", checkpoint, table)
        query.awaitTermination(120)
        assert query.exception() is None
        assert query.lastProgress["batchId"] == last - 1
        assert {row["value"]: row["count"] for row in spark.table(table).collect()} == words


FAILOVER = """
import asyncio, sys, time
from spark_jms.store.regions.client.objects import MemoryObjects
from spark_jms.store.webhdfs.door import Door
from spark_jms.store.webhdfs.files import Files

def clock_us():
    return time.time_ns() // 1000

async def main():
    objects = MemoryObjects()
    serving = {0: await Files.open(objects, clock_us), 1: None}
    doors = [Door(lambda name=name: serving[name]) for name in serving]
    for door in doors:
        await door.start()
    print(*(door.port for door in doors), flush=True)
    while (line := await asyncio.to_thread(sys.stdin.readline)).strip():
        now = 0 if serving[0] is not None else 1
        port, old = doors[now].port, objects
        await doors[now].stop()
        serving[now], old.failure = None, RuntimeError("dead")
        objects = MemoryObjects(contents=old.contents)
        serving[1 - now] = await Files.open(objects, clock_us)
        await doors[now].start(port=port)
        print("switched", flush=True)

asyncio.run(main())
"""


def test_query_survives_the_take_over_by_another_door(spark: SparkSession, tmp_path: Path) -> None:
    """R19: with Hadoop's fail-over settings a stateful query survives the door it uses, four times, with exact counts; a
    batch that was being written when the door died may fail the query, which then continues from its checkpoint."""
    command = [sys.executable, "-c", FAILOVER]
    name = f"doors{uuid.uuid4().hex[:8]}"
    with forked.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as doors:
        assert doors.stdin is not None
        assert doors.stdout is not None
        first, second = doors.stdout.readline().split()
        settings = {
            "dfs.nameservices": name,
            f"dfs.ha.namenodes.{name}": "a,b",
            f"dfs.namenode.http-address.{name}.a": f"127.0.0.1:{first}",
            f"dfs.namenode.http-address.{name}.b": f"127.0.0.1:{second}",
            f"dfs.client.failover.proxy.provider.{name}": "org.apache.hadoop.hdfs.server.namenode.ha."
            "ConfiguredFailoverProxyProvider",
            "dfs.http.client.failover.sleep.base.millis": "20",
            "dfs.http.client.failover.sleep.max.millis": "200",
        }
        hadoop = JavaSide(spark).hadoop_of_context()
        for key, value in settings.items():
            hadoop.set(key, value)
        words: Counter[str] = Counter()
        folder, out = tmp_path / "in", tmp_path / "out"

        def begin() -> StreamingQuery:
            lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder))
            counts = lines.groupBy("value").count().coalesce(1)

            def keep(batch: Any, number: int) -> None:
                batch.write.mode("overwrite").parquet(str(out))

            writer = counts.writeStream.foreachBatch(keep).outputMode("complete")
            return writer.option("checkpointLocation", f"webhdfs://{name}/query").start()

        before = spark.conf.get("spark.sql.shuffle.partitions")
        spark.conf.set("spark.sql.shuffle.partitions", "2")
        feed(folder, 0, 2, words)
        query, restarts = begin(), 0
        try:
            for round_ in range(4):
                feed(folder, 2 + round_ * 2, 4 + round_ * 2, words)
                doors.stdin.write("switch\n")
                doors.stdin.flush()
                assert doors.stdout.readline() == "switched\n"
                while True:
                    try:
                        query.processAllAvailable()
                        break
                    except StreamingQueryException:
                        restarts += 1
                        assert restarts < 20
                        query = begin()
                assert {row["value"]: row["count"] for row in spark.read.parquet(str(out)).collect()} == words
        finally:
            query.stop()
            spark.conf.set("spark.sql.shuffle.partitions", before)
            doors.stdin.close()
        print(f"4 switches, {restarts} restarts")
