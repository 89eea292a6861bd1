"""Promoted properties in Spark: sent as a struct, read as columns of the Delta table (C7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.messages.columns import spark_schema
from spark_jms.log.destinations.declarations import apply_destinations

if TYPE_CHECKING:
    from tests.spark.conftest import Bench

SQL_TYPES = {
    "string": "string",
    "boolean": "boolean",
    "byte": "tinyint",
    "short": "smallint",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
}


def promote(bench: Bench, *written: str) -> None:
    wanted = Destination("jobs", "queue", promoted_properties=written)
    apply_destinations(bench.domain, [wanted], lambda destination, member: False)


@pytest.mark.delta
def test_every_type_of_property_becomes_a_column(bench: Bench) -> None:
    """C7: of Spark's own type. Files from before have NULL. Spark's source has the columns
    of every message, whatever is promoted, and its selectors find the messages by the columns."""
    sent = bench.spark.range(0, 6, 1, 1).selectExpr(
        "cast(id as string) text",
        "named_struct('p_string', concat('s', id), 'p_boolean', id % 2 = 0, "
        + ", ".join(
            f"'p_{kind}', cast(id as {sql})" for kind, sql in SQL_TYPES.items() if kind not in ("string", "boolean")
        )
        + ") properties",
    )
    bench.send(sent, "jobs")
    promote(bench, *(f"p_{kind}:{kind}" for kind in SQL_TYPES))
    for _ in range(2):
        bench.send(sent.where("cast(text as int) > 2"), "jobs")
    (old, *new) = bench.domain.log("jobs").refresh().member_files(0).files
    assert (old.promoted, {file.promoted for file in new}) == (frozenset(), {frozenset(f"p_{k}" for k in SQL_TYPES)})
    frame = bench.spark.read.format("delta").load(bench.domain.log("jobs").storage.uri)
    types = {field.name: field.dataType.simpleString() for field in frame.schema}
    assert {kind: types[f"p_{kind}"] for kind in SQL_TYPES} == SQL_TYPES
    rows = frame.where("p_long >= 4 and p_double < 5 and p_string = 's4'").collect()
    assert [(r.text, r.p_boolean, r.p_byte, r.p_short, r.p_int, r.p_float) for r in rows] == [
        ("4", True, 4, 4, 4, 4.0)
    ] * 2
    assert frame.where("p_long is null").count() == 6
    for column, value in (("p_byte", 9), ("p_float", 9.0), ("p_string", "'t'")):
        assert frame.where(f"{column} > {value}").count() == 0
    source = bench.browse("jobs", selector="p_short > 4 AND NOT p_boolean AND p_string LIKE 's%'")
    assert source.schema == bench.spark.createDataFrame([], spark_schema()).schema
    assert [r.text for r in source.collect()] == ["5"] * 3
