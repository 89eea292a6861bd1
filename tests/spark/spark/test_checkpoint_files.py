"""The checkpoint file manager that forks less: kills between the steps of a write, two drivers, what it does not replace (C5, C9)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError

from tests.harness.processes.java import JavaSide
from tests.harness.project import PROGRAMS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import Bench

pytestmark = pytest.mark.delta  # its queries write exactly once

SETTING = "spark.sql.streaming.checkpointFileManagerClass"
FEWER_FORKS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"  # as docs/SPARK.md says
SPARKS_OWN = "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"


@pytest.fixture
def fewer_forks(bench: Bench) -> Iterator[None]:
    bench.spark.conf.set(SETTING, FEWER_FORKS)
    yield
    bench.spark.conf.unset(SETTING)


def last_batch(checkpoint: Path) -> int:
    return max(int(path.name) for path in (checkpoint / "offsets").iterdir() if path.name.isdigit())


def undo_last_write(folder: Path, batch: int, step: str) -> None:
    """The folder of a driver that died in its write of the file `batch`, after this step of it."""
    temporary = f".{batch}.3f1c9a52-6d0e-4b7a-9c55-0a7d5a1c2b11.tmp"
    final, checksum = folder / str(batch), folder / f".{batch}.crc"
    if step == "renamed":  # the file, but not its checksum
        checksum.rename(folder / f".{temporary}.crc")
        return
    final.rename(folder / temporary)
    checksum.rename(folder / f".{temporary}.crc")
    if step == "half written":
        (folder / temporary).write_bytes((folder / temporary).read_bytes()[:3])


@pytest.mark.usefixtures("fewer_forks")
@pytest.mark.parametrize("step", ["half written", "written", "renamed"])
@pytest.mark.parametrize("folder", ["offsets", "commits"])
def test_query_continues_after_a_kill_between_the_steps_of_a_checkpoint_write(
    bench: Bench, folder: str, step: str
) -> None:
    """C5, C9: every message reaches the Delta table once, whichever step of Spark's last write was the last one."""
    bench.send(bench.numbers(1, 20, partitions=1), "orders")
    if folder == "commits":
        bench.drain("orders", "ck", out="out", maxMessagesPerTrigger=5)
        undo_last_write(bench.path / "ck" / "commits", last_batch(bench.path / "ck"), step)
    else:  # a driver that dies in this write has not begun the batch
        fail_in_last_batch(bench)
        undo_last_write(bench.path / "ck" / "offsets", last_batch(bench.path / "ck"), step)
    bench.drain("orders", "ck", out="out", maxMessagesPerTrigger=5)
    assert bench.texts("out") == list(range(1, 21))
    assert bench.browse("orders").count() == 0


def fail_in_last_batch(bench: Bench) -> None:
    """Runs until batch 2 is in the log of offsets and not in the sink."""

    def take(frame: Any, batch_id: int) -> None:
        if batch_id == 2:
            raise ValueError("on purpose")
        writer = frame.write.format("delta").option("txnAppId", "out").option("txnVersion", batch_id)
        writer.mode("append").save(str(bench.path / "out"))

    writer = bench.stream("orders", maxMessagesPerTrigger=5).writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(bench.path / "ck")).trigger(availableNow=True).start()
    with pytest.raises(Exception, match="on purpose"):
        query.awaitTermination()


@pytest.mark.usefixtures("fewer_forks")
def test_second_driver_on_a_checkpoint_is_refused_and_the_first_continues(bench: Bench) -> None:
    """C9: not Spark's checkpoint tells the second driver, whose file manager has no atomic check, but the query's own session."""
    writer = bench.stream("orders").writeStream.format("delta").option("checkpointLocation", str(bench.path / "ck"))
    query = writer.trigger(processingTime="0 seconds").start(str(bench.path / "out"))
    bench.send(bench.numbers(1, 10), "orders")
    query.processAllAvailable()
    program = PROGRAMS / "second_driver.py"
    second = subprocess.run(
        [
            sys.executable,
            str(program),
            *map(str, (bench.root, bench.path / "ck", bench.path / "out", bench.path / "second")),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "QueryRunningError" in second.stdout, second.stdout[-2000:] + second.stderr[-2000:]
    bench.send(bench.numbers(11, 20), "orders")
    query.processAllAvailable()
    query.stop()
    assert bench.texts("out") == list(range(1, 21))


# -- what the documentation says of Spark's two file managers (docs/SPARK.md, checkpoints) -----------------------------
def write(java: JavaSide, files: Any, file: str, text: bytes, *, overwrite: bool) -> None:
    stream = files.createAtomic(java.path(file), overwrite)
    stream.write(bytearray(text))
    stream.close()


@pytest.mark.parametrize(("name", "left"), [(FEWER_FORKS, b"one"), (SPARKS_OWN, b"three")])
def test_file_managers_differ_in_what_they_replace(spark: SparkSession, tmp_path: Path, name: str, left: bytes) -> None:
    """C9: both refuse to write an offset again. A file of state that may be replaced stays as it was with the one that forks less."""
    java, file = JavaSide(spark), str(tmp_path / "3")
    files = java.manager(name, str(tmp_path))
    write(java, files, file, b"one", overwrite=False)
    with pytest.raises(Py4JJavaError, match="AlreadyExists"):
        write(java, files, file, b"two", overwrite=False)
    write(java, files, file, b"three", overwrite=True)
    assert Path(file).read_bytes() == left


def test_checkpoint_of_one_manager_continues_with_the_other(bench: Bench) -> None:
    """C9: the setting may be set for one query, and an existing checkpoint continues, in either direction."""
    sent = 0
    for name in (None, FEWER_FORKS, None):
        if name is not None:
            bench.spark.conf.set(SETTING, name)
        assert JavaSide(bench.spark).hadoop_of_session().get(SETTING) == name
        try:
            bench.send(bench.numbers(sent + 1, sent + 5), "orders")
            sent += 5
            bench.drain("orders", "ck", out="out")
        finally:
            bench.spark.conf.unset(SETTING)
    assert bench.texts("out") == list(range(1, sent + 1))
