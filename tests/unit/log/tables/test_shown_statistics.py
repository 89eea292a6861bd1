"""The columns whose statistics other programs may use have bounds in every file (C3)."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from spark_jms.core.messages.columns import PARTITION_SCHEMA, STORED_SCHEMA, normalise
from spark_jms.log.messages.data_files import FileStatistics
from spark_jms.log.tables.commit import ACKNOWLEDGEMENT_SCHEMA, LIFE_CYCLE_SCHEMA, first_commit
from spark_jms.log.tables.files import PROPERTY, lacking_property, shown_statistics
from spark_jms.log.upkeep.usage_history import USAGE_SCHEMA

SCHEMAS = {
    "messages": STORED_SCHEMA,
    "acknowledgements": ACKNOWLEDGEMENT_SCHEMA,
    "life cycle": LIFE_CYCLE_SCHEMA,
    "usage history": USAGE_SCHEMA,
}
LOWEST, HIGHEST = -(2**63), 2**63 - 1


def named(schema: pa.Schema) -> list[str]:
    return shown_statistics(schema.names)[PROPERTY].split(",")


def bounded(statistics: FileStatistics) -> set[str]:
    """The columns that another program finds bounds and a count of NULLs of."""
    shown = json.loads(statistics.to_json())
    return set(shown["minValues"].keys() & shown["maxValues"].keys() & shown["nullCount"].keys())


@pytest.mark.parametrize("table", SCHEMAS)
def test_named_columns_are_whole_numbers(table: str) -> None:
    """C3: text can be too long for bounds, and NaN has no place between any."""
    schema = SCHEMAS[table]
    assert all(pa.types.is_integer(schema.field(name).type) for name in named(schema))
    assert not set(named(schema)) & set(PARTITION_SCHEMA.names)


@pytest.mark.parametrize("number", [LOWEST, -1, 0, HIGHEST])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("table", ["acknowledgements", "life cycle", "usage history"])
def test_file_of_any_numbers_has_bounds_of_the_named_columns(table: str, rows: int, number: int) -> None:
    """C3, C14: and all other columns are NULL."""
    schema = SCHEMAS[table]
    columns = [pa.array([number if f.name in named(schema) else None] * rows, f.type) for f in schema]
    statistics = FileStatistics()
    statistics.add(pa.RecordBatch.from_arrays(columns, schema=schema))
    assert bounded(statistics) >= set(named(schema))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("given", [{}, dict.fromkeys(("JMSPriority", "JMSExpiration", "JMSDeliveryTime"), None)])
def test_sender_leaves_no_named_column_without_bounds(given: dict[str, None], rows: int) -> None:
    """C3: whatever a sender leaves out, or gives as NULL."""
    columns = {name: pa.nulls(rows, STORED_SCHEMA.field(name).type) for name in given}
    batch = pa.RecordBatch.from_pydict({"text": pa.array(["\U0010ffff" * 40] * rows), **columns})
    stored = normalise(batch, 1_600_000_000_000, 2**20).append_column("ordinal", pa.array(range(rows), pa.int64()))
    statistics = FileStatistics()
    statistics.add(stored)
    assert bounded(statistics) >= set(named(STORED_SCHEMA))


def test_table_lacks_the_property_until_it_is_the_right_one() -> None:
    """C3: an earlier release made the table, or another program has changed the property."""
    created = first_commit("orders", STORED_SCHEMA, [], {"jmsq.name": "orders"}, 0)
    metadata = json.loads(created.splitlines()[2])["metaData"]
    right = {PROPERTY: "ordinal,JMSTimestamp,JMSPriority,JMSExpiration,JMSDeliveryTime"}
    assert metadata["configuration"] == {"jmsq.name": "orders", **right}
    assert lacking_property(metadata) == {}
    for wrong in ({}, {PROPERTY: "ordinal,text"}):
        assert lacking_property({**metadata, "configuration": wrong}) == right
    assert lacking_property({**metadata, "configuration": None}) == right
