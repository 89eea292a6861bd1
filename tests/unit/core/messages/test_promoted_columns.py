"""Promoted properties: what a column takes, and that neither selectors nor keys can tell it from the map (C7, T15)."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_jms.claims.messages.scan import never_matches
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.messages.columns import COLUMNS, ORDINAL, PARTITION_SCHEMA, STORED_SCHEMA, normalise
from spark_jms.core.messages.properties import PromotedColumns
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.ordering.sort_order import SortOrder
from spark_jms.core.selector.tree import Expression, unparse
from spark_jms.errors import ModuleFileError
from spark_jms.log.messages.data_files import FileStatistics, FileWriter, read_stored
from spark_jms.log.tables.files import DataFile
from spark_jms.settings.fields import KEY_TYPES, TABLE_COLUMNS, PromotedText
from spark_jms.settings.types import NotAllowed
from spark_jms.testing.memory_storage import MemoryStorage
from tests.harness.messages.selector_messages import selector, table_of
from tests.unit.core.selector.test_random import conditions, messages

NAMES = ("a", "b", "c")
promotions = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(KEY_TYPES)).map(
    lambda types: tuple(f"{name}:{kind}" for name, kind in types.items())
)
slow = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def rows_of(found: list[Any]) -> pa.RecordBatch:
    return table_of(found).combine_chunks().to_batches()[0]


def with_columns(rows: pa.RecordBatch, promoted: PromotedColumns) -> tuple[pa.RecordBatch, frozenset[str]]:
    """The rows with their promoted columns, and the complete ones."""
    read = promoted.read(rows)
    wide = pa.RecordBatch.from_arrays([*rows.columns, *read.columns], names=[*rows.schema.names, *promoted.names])
    return wide, frozenset(promoted.names) - read.incomplete


def file_of(rows: pa.RecordBatch, promoted: PromotedColumns) -> DataFile:
    """As its statistics describe it."""
    statistics = FileStatistics(promoted.names)
    for start in range(0, rows.num_rows, 2):  # in several batches
        part = rows.slice(start, 2)
        statistics.add(with_columns(part, promoted)[0], promoted.read(part).incomplete)
    return DataFile("m0-aaaaaaaaaaaa.parquet", 0, 1, rows.num_rows, 1, 0, 0, statistics.to_json(), 1)


@slow
@given(conditions, st.lists(messages, min_size=1, max_size=8), promotions)
def test_selector_answers_the_same_with_and_without_columns(
    tree: Expression, found: list[Any], written: tuple[str, ...]
) -> None:
    """C7: for random selectors, types, values of other types, NULLs; also where some columns are complete and some not."""
    rows, promoted, chosen = rows_of(found), PromotedColumns.of(written), selector(unparse(tree))
    wide, complete = with_columns(rows, promoted)
    read = wide.select(chosen.columns_with(complete))
    assert chosen.mask(read, complete).tolist() == chosen.mask(rows).tolist()


@slow
@given(conditions, st.lists(messages, min_size=1, max_size=5), promotions)
def test_statistics_of_columns_prove_only_what_is_true(
    tree: Expression, found: list[Any], written: tuple[str, ...]
) -> None:
    """C7: a file that they skip has no match; its complete columns are those that it has statistics of."""
    rows, promoted, chosen = rows_of(found), PromotedColumns.of(written), selector(unparse(tree))
    file = file_of(rows, promoted)
    assert file.promoted == with_columns(rows, promoted)[1]
    assert not (never_matches(file, chosen) and pc.any(chosen.mask(rows)).as_py())
    json.loads(file.stats, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))


@slow
@given(
    st.lists(messages, min_size=1, max_size=12),
    promotions,
    st.lists(
        st.builds(
            lambda n, d, k: f"{n} {d} {k}",
            st.sampled_from(NAMES),
            st.sampled_from(("ascending", "descending")),
            st.sampled_from(KEY_TYPES),
        ),
        min_size=1,
        max_size=3,
    ),
)
def test_keys_sort_the_same_with_and_without_columns(
    found: list[Any], written: tuple[str, ...], keys: list[str]
) -> None:
    """T15: for keys of the column's type and of others."""
    rows, promoted, order = rows_of(found), PromotedColumns.of(written), SortOrder.of(keys)
    wide, complete = with_columns(rows, promoted)
    there = promoted.sorted_by(order.keys) & complete
    sequences, none = pa.array(range(rows.num_rows), pa.int64()), pa.repeat(False, rows.num_rows)
    plain = order.by_keys(pa.Table.from_batches([order.key_rows(rows)]), sequences, none)
    by_column = order.key_rows(wide.select(order.columns_with(there)), there)
    assert order.by_keys(pa.Table.from_batches([by_column]), sequences, none).tolist() == plain.tolist()


def read(kind: str, *properties: dict[str, Any]) -> tuple[list[Any], bool]:
    """The column `p` of this type, and whether it is complete."""
    found = PromotedColumns.of([f"p:{kind}"]).read(rows_of([({}, each) for each in properties]))
    return found.columns[0].to_pylist(), not found.incomplete


@pytest.mark.parametrize(
    ("kind", "taken", "refused"),
    [
        ("boolean", [("boolean", True), ("boolean", False)], [("string", "true"), ("int", 1)]),
        ("byte", [("byte", -128), ("long", 127)], [("long", 128), ("short", -129), ("double", 1.0)]),
        ("short", [("byte", 1), ("int", -32768)], [("int", 32768)]),
        ("int", [("int", 2**31 - 1), ("long", -(2**31))], [("long", 2**31), ("string", "1")]),
        ("long", [("byte", 1), ("long", 2**63 - 1), ("long", -(2**63))], [("double", 1.0), ("boolean", True)]),
        ("float", [("float", 0.5), ("double", 0.25), ("double", math.inf)], [("double", 0.1), ("long", 1)]),
        ("double", [("double", 0.1), ("float", 0.5), ("double", -math.inf)], [("long", 1), ("string", "0.5")]),
        ("string", [("string", "x"), ("string", "")], [("long", 1), ("boolean", True)]),
    ],
)
def test_column_takes_values_of_its_type(kind: str, taken: list[Any], refused: list[Any]) -> None:
    """C7: each JMS type; a missing property is NULL and leaves the column complete, a value of another type does not."""
    assert read(kind, {}, *({"p": value} for value in taken)) == ([None, *(value for _, value in taken)], True)
    for value in refused:
        assert read(kind, {"p": value}, {"p": taken[0]}) == ([None, taken[0][1]], False), value
    assert read(kind, {"q": taken[0]}) == ([None], True)


def test_float_column_has_the_value_that_selectors_see() -> None:
    """C7: a float property is rounded to 32 bits; NaN stays NaN."""
    values, complete = read("float", {"p": ("float", 0.1)}, {"p": ("float", math.nan)})
    assert values[0] == float(np.float32(0.1))
    assert math.isnan(values[1])
    assert complete


def test_unreadable_value_leaves_the_column_incomplete() -> None:
    """C7, C20: text that is not of its declared type is NULL for a selector; a key may read it otherwise."""
    maps = [[("p", "1_0"), ("JMS_JMSQ_Types", "p:double")], [("p", "5"), ("JMS_JMSQ_Types", "p:other")]]
    for one in maps:
        found = PromotedColumns.of(["p:double"]).read(
            pa.record_batch({"properties": pa.array([one], COLUMNS["properties"])})
        )
        assert (found.columns[0].to_pylist(), found.incomplete) == ([None], {"p"})


def test_values_without_an_order_have_no_minimum() -> None:
    """C7: to Delta readers NaN is the largest number, and JSON cannot hold it."""
    promoted = PromotedColumns.of(["p:double"])
    statistics = file_of(rows_of([({}, {"p": ("double", v)}) for v in (1.0, 2.0, math.nan)]), promoted).statistics
    assert statistics["nullCount"]["p"] == 0
    assert "p" not in statistics["minValues"]
    statistics = file_of(rows_of([({}, {"p": ("string", v)}) for v in ("a" * 100, "b")]), promoted).statistics
    assert "p" not in statistics["nullCount"]


def test_written_file_has_columns_and_statistics() -> None:
    """C7: in Parquet and in the statistics for Delta's log, over several batches; what is asked for reads back."""
    promoted = PromotedColumns.of([f"p_{kind}:{kind}" for kind in KEY_TYPES])
    struct = pa.array(
        [
            {f"p_{kind}": value for kind, value in zip(KEY_TYPES, row, strict=True)}
            for row in (("x", True, 1, 2, 3, 4, 0.5, 1.5), ("y", False, -1, -2, -3, -4, -0.5, -1.5))
        ],
        pa.struct(promoted.fields),
    )
    storage = MemoryStorage("memory:promoted")
    writer = FileWriter(storage, 0, promoted=promoted)
    for row in range(2):
        sent = pa.record_batch({"text": pa.array(["t"]), "properties": struct.slice(row, 1)})
        writer.write(normalise(sent, 5, 1000))
    staged = writer.close()
    assert writer.single is None
    statistics = json.loads(staged.stats)
    assert statistics["numRecords"] == 2
    assert {name: statistics["minValues"][name] for name in promoted.names} == struct[1].as_py() | {"p_string": "x"}
    assert {name: statistics["maxValues"][name] for name in promoted.names} == struct[0].as_py() | {"p_string": "y"}
    assert {statistics["nullCount"][name] for name in promoted.names} == {0}
    file = DataFile(staged.path, 0, 1, 2, staged.bytes, 0, 0, staged.stats, staged.message_bytes)
    ((rows, _),) = read_stored(storage, file.hint, Ranges.of((1, 2)), list(promoted.names))
    assert rows.schema.types == [field.type for field in promoted.fields]
    assert rows.to_pylist() == struct.to_pylist()


# -- the setting -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "written",
    ["", "amount", "amount:", "amount:decimal", "1a:int", "JMSType:string", "jms_x:int", "Text:string", "ordinal:long"],
)
def test_wrong_promotions_are_refused(written: str) -> None:
    """C7: names of other columns and of JMS too."""
    with pytest.raises(NotAllowed, match="NAME:TYPE"):
        PromotedText().read(written)
    assert not PromotedText().fits(written)


def test_no_property_is_promoted_to_a_column_of_ours() -> None:
    """C7: property names cannot begin with JMS; the other columns are refused by name."""
    ours = {*STORED_SCHEMA.names, *PARTITION_SCHEMA.names, *COLUMNS, ORDINAL}
    assert {name for name in ours if not name.startswith("JMS")} <= set(TABLE_COLUMNS)


def test_list_of_promotions_is_checked_as_a_whole() -> None:
    """C7: Delta's columns differ by more than case, and readers use the statistics of 32."""
    with pytest.raises(ModuleFileError, match="'amount' and 'Amount'"):
        Destination("orders", "queue", promoted_properties=("amount:double", "Amount:double"))
    with pytest.raises(ModuleFileError, match="'a' and 'a'"):
        Destination("orders", "queue", promoted_properties=("a:double", "a:long"))
    with pytest.raises(ModuleFileError, match="at most 16"):
        Destination("orders", "queue", promoted_properties=tuple(f"p{n}:int" for n in range(17)))
    assert PromotedText().read(" amount : double ") == "amount:double"
