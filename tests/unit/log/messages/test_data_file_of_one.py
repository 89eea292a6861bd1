"""The file of a message that is sent alone: it costs less to write and to read, and Delta readers know as much of it (C3, C11)."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jms.core.messages.columns import normalise
from spark_jms.log.messages.data_files import FEW, FileStatistics, FileWriter
from spark_jms.log.tables.storage import LocalStorage

COLUMNS: dict[str, list[object]] = {
    "text": ["a"],
    "JMSPriority": [7],
    "JMSXGroupID": ["g"],
    "JMSDeliveryTime": [1_700_000_000_000],
}


def rows(count: int, columns: dict[str, list[object]] = COLUMNS) -> pa.RecordBatch:
    given = pa.RecordBatch.from_pydict({name: values * count for name, values in columns.items()})
    return normalise(given, 1_600_000_000_000, 2**20)


@pytest.mark.parametrize("columns", [COLUMNS, {"text": ["a"]}], ids=["given", "defaults"])
def test_statistics_of_one_row_are_those_of_equal_rows(columns: dict[str, list[object]]) -> None:
    """C3: also of a column without values, and of a promoted one whose value has no order."""
    told = []
    for count in (1, 2):
        statistics = FileStatistics(["amount", "region"])
        batch = rows(count, columns).append_column("amount", pa.array([float("nan")] * count))
        statistics.add(batch.append_column("region", pa.array(["north"] * count)))
        told.append(json.loads(statistics.to_json()))
    one, two = told
    assert one["minValues"] == one["maxValues"] == two["minValues"] == two["maxValues"]
    assert one["minValues"].keys() >= {"JMSPriority", "JMSTimestamp", "region"}
    assert {name: 2 * nulls for name, nulls in one["nullCount"].items()} == two["nullCount"]


@pytest.mark.parametrize("count", [1, FEW - 1, FEW])
def test_only_files_of_many_rows_have_dictionaries(tmp_path: Path, count: int) -> None:
    """C11: each dictionary is a page more to write and to read."""
    writer = FileWriter(LocalStorage(tmp_path), 0)
    writer.write(rows(count))
    staged = writer.close()
    group = pq.ParquetFile(tmp_path / staged.path).metadata.row_group(0)
    found = {group.column(n).has_dictionary_page for n in range(group.num_columns)}
    assert found == ({False} if count < FEW else {False, True})
    assert pq.read_table(tmp_path / staged.path)["JMSPriority"].to_pylist() == [7] * count


def test_defaults_of_one_message_are_those_of_many() -> None:
    """C2."""
    one, many = rows(1, {"text": ["a"]}), rows(3, {"text": ["a"]})
    assert one.to_pylist() * 3 == many.to_pylist()
    assert one.schema == many.schema
