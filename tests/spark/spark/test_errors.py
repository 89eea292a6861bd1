"""A query that meets damage fails with a named error that gives the place and the remedy; it never hangs (C3, C16)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

if TYPE_CHECKING:
    from tests.spark.conftest import Bench


def test_damaged_store_journal_raises_store_corrupt_error(bench: Bench) -> None:
    """C16: a damaged frame header in the store's journal is a StoreCorruptError that names the file; nothing changes it."""
    bench.send(bench.numbers(1, 10), "jobs")
    bench.drain("jobs", "ck")
    journal = next(Path(bench.domain.store_uri).glob("journal-*.log"))
    data = bytearray(journal.read_bytes())
    data[data.rindex(b"\x9eFR\xc3", 0, len(data) // 2)] ^= 0xFF  # the mark of a frame
    journal.write_bytes(bytes(data))
    bench.send(bench.numbers(11, 12), "jobs")
    with pytest.raises(Exception, match=r"(?s)StoreCorruptError.*journal-"):
        bench.drain("jobs", "ck")
    assert journal.read_bytes() == bytes(data)


def test_damaged_commit_file_raises_unreadable_table_error(bench: Bench) -> None:
    """C3: a commit file that is not JSON is an UnreadableTableError with table and version."""
    bench.send(bench.numbers(1, 10), "jobs")
    commit = Path(bench.root) / "jobs" / "_delta_log" / f"{1:020d}.json"
    commit.write_text(commit.read_text()[:-40])
    for action in (lambda: bench.drain("jobs", "ck"), lambda: bench.browse("jobs").count()):
        with pytest.raises(Exception, match=r"(?s)UnreadableTableError: destination jobs .*version 1"):
            action()


def test_damaged_data_file_raises_unreadable_table_error(bench: Bench) -> None:
    """C3: a data file that is no longer Parquet is an UnreadableTableError that names the file."""
    bench.send(bench.numbers(1, 10), "jobs")
    log = bench.domain.log("jobs")
    path = Path(bench.root) / "jobs" / log.refresh().member_files(0).files[0].path
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(Exception, match=r"(?s)UnreadableTableError: data file m0-"):
        bench.browse("jobs").collect()


@pytest.mark.delta
def test_foreign_write_is_refused_for_receivers_and_senders(bench: Bench) -> None:
    """C3: rows that another program appended to the table are a ForeignWriteError, for receivers and senders."""
    bench.send(bench.numbers(1, 10), "jobs")
    path = bench.domain.log("jobs").storage.uri
    bench.spark.read.format("delta").load(path).limit(1).write.format("delta").mode("append").save(path)
    for action in (lambda: bench.drain("jobs", "ck"), lambda: bench.send(bench.numbers(11, 12), "jobs")):
        with pytest.raises(Exception, match=r"(?s)ForeignWriteError: .*version 2 .*Restore the table to version 1"):
            action()


def test_newer_format_version_is_refused(bench: Bench) -> None:
    """C16: a destination of a later format version is a FormatVersionError, not misread."""
    from deltalake import DeltaTable

    DeltaTable(bench.domain.log("jobs").storage.uri).alter.set_table_properties(
        {"jmsq.formatVersion": "99"}, raise_if_not_exists=False
    )
    with pytest.raises(Exception, match=r"(?s)FormatVersionError: .*format version 99"):
        bench.send(bench.numbers(1, 2), "jobs")


@pytest.mark.parametrize(
    ("damage", "error", "ours"),
    [
        (lambda text: 'v1\n{}\n{"orders": {"0": 17}}', "OffsetError: the offset in the checkpoint is not one of", True),
        (lambda text: text[:-20], "json.decoder.JSONDecodeError: ", False),
        (lambda text: "", "Incomplete log file", False),
    ],
    ids=["another source", "truncated", "empty"],
)
def test_a_damaged_checkpoint(bench: Bench, damage: Callable[[str], str], error: str, ours: bool) -> None:
    """C5: JSON that is not ours is OffsetError. What is not JSON fails in PySpark's worker, and a file without an offset in
    Spark, before they ask spark-jms: docs/OPERATING.md names those errors. tests/contract/spark/test_source.py has more damage."""
    bench.send(bench.numbers(1, 10), "jobs")
    bench.drain("jobs", "ck")
    newest = max((bench.path / "ck" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.with_name(f".{newest.name}.crc").unlink()
    newest.write_text(damage(newest.read_text()))
    with pytest.raises(StreamingQueryException, match=error) as caught:
        bench.drain("jobs", "ck")
    assert ("/spark_jms/" in str(caught.value)) == ours
