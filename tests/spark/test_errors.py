"""Damage that a query meets is named, says where it is and what to do, and never hangs (C3, C16)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.spark.conftest import Bench


def test_a_corrupt_store_file(bench: Bench) -> None:
    """C16: a damaged frame header in the store's journal is StoreCorruptError, naming the file; nothing is changed."""
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


def test_a_damaged_log(bench: Bench) -> None:
    """C3: a commit file that is not JSON is UnreadableTableError with table and version."""
    bench.send(bench.numbers(1, 10), "jobs")
    commit = Path(bench.root) / "jobs" / "_delta_log" / f"{1:020d}.json"
    commit.write_text(commit.read_text()[:-40])
    for action in (lambda: bench.drain("jobs", "ck"), lambda: bench.browse("jobs").count()):
        with pytest.raises(Exception, match=r"(?s)UnreadableTableError: destination jobs .*version 1"):
            action()


def test_a_damaged_data_file(bench: Bench) -> None:
    """C3: a data file that is not Parquet any more is UnreadableTableError naming the file."""
    bench.send(bench.numbers(1, 10), "jobs")
    log = bench.domain.log("jobs")
    path = Path(bench.root) / "jobs" / log.refresh().member_files(0).files[0].path
    path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(Exception, match=r"(?s)UnreadableTableError: data file m0-"):
        bench.browse("jobs").collect()


def test_a_foreign_write(bench: Bench) -> None:
    """C3: rows that somebody else appended to the table are refused by name, for readers and senders."""
    bench.send(bench.numbers(1, 10), "jobs")
    path = bench.domain.log("jobs").storage.uri
    bench.spark.read.format("delta").load(path).limit(1).write.format("delta").mode("append").save(path)
    for action in (lambda: bench.drain("jobs", "ck"), lambda: bench.send(bench.numbers(11, 12), "jobs")):
        with pytest.raises(Exception, match=r"(?s)ForeignWriteError: .*version 2 .*Restore the table to version 1"):
            action()


def test_a_newer_format(bench: Bench) -> None:
    """C16: a destination of a later format version is refused by name, not misread."""
    from deltalake import DeltaTable

    DeltaTable(bench.domain.log("jobs").storage.uri).alter.set_table_properties(
        {"jmsq.formatVersion": "99"}, raise_if_not_exists=False
    )
    with pytest.raises(Exception, match=r"(?s)FormatVersionError: .*format version 99"):
        bench.send(bench.numbers(1, 2), "jobs")
