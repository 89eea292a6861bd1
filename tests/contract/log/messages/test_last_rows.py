"""A consumer decodes a data file once for many small claims (C7, C11)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spark_jms
from spark_jms.client.context.context import Context
from spark_jms.core.messages.ranges import Ranges
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages import data_files
from spark_jms.log.messages.data_files import LastRows, StoredRows, read_stored
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.testing.inside import domain_of
from tests.harness.messages.shorthands import texts

MESSAGES = 300


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeltaLog]:
    """One file of 300 messages, in groups of decoded rows of 64."""
    root = tmp_path_factory.mktemp("domain")
    spark_jms.apply(str(root), {"destinations": {"orders": {"kind": "queue"}}})
    with spark_jms.connect(str(root), housekeeping=False) as context, pytest.MonkeyPatch.context() as patch:
        context.producer("orders").send_many({"text": f"m{number}"} for number in range(1, MESSAGES + 1))
        patch.setattr(data_files, "_READ_BATCH_BYTES", 1)
        yield Domain(str(root)).log("orders")


@given(st.lists(st.sets(st.integers(1, MESSAGES), min_size=1, max_size=80), min_size=1, max_size=8))
def test_decoded_rows_are_those_of_the_file(log: DeltaLog, claims: list[set[int]]) -> None:
    """C7: whatever was read before, a claim gets its rows and their sequences, in order, as without the decoded ones."""
    (file,) = log.refresh().member_files(0).files
    last = LastRows()
    for claim in claims:
        picks, found = Ranges.from_numbers(claim), list[tuple[int, str]]()
        for rows, sequences in read_stored(log.storage, file.hint, picks, ["text"], last):
            found += zip(sequences.tolist(), rows.column("text").to_pylist(), strict=True)
        assert found == [(number, f"m{number}") for number in sorted(claim)]


def test_one_file_is_opened_once_for_many_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C11: a consumer that claims 10 messages at a time opens a file of 300 once, and gets each message once."""
    monkeypatch.setattr(data_files, "_READ_BATCH_BYTES", 2**20)
    spark_jms.apply(str(tmp_path), {"destinations": {"orders": {"kind": "queue"}}})
    context: Context
    with spark_jms.connect(str(tmp_path), housekeeping=False) as context:
        context.producer("orders").send_many({"text": f"m{number}"} for number in range(MESSAGES))
        storage, opened = domain_of(context).log("orders").storage, list[str]()
        open_input = storage.open_input
        monkeypatch.setattr(storage, "open_input", lambda path: opened.append(path) or open_input(path))
        with context.consumer("orders", prefetch=10) as consumer:
            assert texts(consumer, MESSAGES) == [f"m{number}" for number in range(MESSAGES)]
        assert len(opened) == 1


def test_rows_behind_the_picks_are_not_decoded(log: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """C11: the first ten messages of a file cost one group of rows, not the whole file."""
    (file,) = log.refresh().member_files(0).files
    decoded: list[int] = []
    picked = data_files.picked_rows

    def counted(rows: pa.RecordBatch, first: int, wanted: Ranges) -> Iterator[StoredRows]:
        decoded.append(first)
        return picked(rows, first, wanted)

    monkeypatch.setattr(data_files, "picked_rows", counted)
    list(read_stored(log.storage, file.hint, Ranges.of((1, 10)), ["text"]))
    assert decoded == [1]
