"""Every type that Spark has, as a column that is not a message's, as a property, and as a message column (C2).

tests/contract/spark/test_column_types.py tries them one by one, without a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

if TYPE_CHECKING:
    from tests.spark.conftest import Bench

MOMENT = "timestamp'2030-01-01 00:00:00Z'"
MOMENT_MS = 1_893_456_000_000
# What a message property may be, and its text.
PROPERTIES = {
    "boolean": ("true", "true"),
    "byte": ("7Y", "7"),
    "short": ("7S", "7"),
    "int": ("7", "7"),
    "long": ("7L", "7"),
    "float": ("cast(1.5 as float)", "1.5"),
    "double": ("1.5D", "1.5"),
    "string": ("'x'", "x"),
}
OTHERS = {
    "char": "cast('x' as char(3))",
    "varchar": "cast('x' as varchar(3))",
    "collated": "collate('x', 'UTF8_LCASE')",
    "binary": "X'01'",
    "date": "date'2030-01-01'",
    "timestamp": MOMENT,
    "timestamp_ltz": "current_timestamp()",
    "timestamp_ntz": "timestamp_ntz'2030-01-01 00:00:00'",
    "time": "time'12:00:00'",
    "decimal": "12.50",
    "wide decimal": "cast(1 as decimal(38, 10))",
    "null": "null",
    "interval of days": "interval '1 02:03:04' day to second",
    "interval of months": "interval '1-2' year to month",
    "array": "array(1, 2)",
    "array of timestamps": f"array({MOMENT})",
    "array of intervals": "array(interval '1' month)",
    "struct": f"named_struct('a', 1, 'b', {MOMENT})",
    "struct of intervals": "named_struct('a', interval '1' month)",
    "map": f"map('a', {MOMENT})",
    "map of intervals": "map('a', interval '1' month)",
    "variant": "parse_json('{\"a\": 1}')",
}
TEXTS = ("char", "varchar", "collated")  # Spark hands these over as string


def refused(bench: Bench, sql: str) -> str:
    with pytest.raises(PySparkException) as caught:
        bench.send(bench.spark.sql(f"select {sql}"), "jobs")
    assert bench.domain.log("jobs").refresh().last_sequence(0) == 0
    return str(caught.value)


@pytest.mark.parametrize(
    "kinds",
    [("timestamp",), ("interval of months",), tuple(PROPERTIES) + tuple(OTHERS)],
    ids=("time", "interval", "all"),
)
def test_extra_columns_of_any_type_give_the_list_of_columns(bench: Bench, kinds: tuple[str, ...]) -> None:
    """C2: Kafka's `timestamp`, for example."""
    columns = {kind: OTHERS.get(kind) or PROPERTIES[kind][0] for kind in kinds}
    error = refused(bench, ", ".join(["'x' text", *(f"{sql} AS `{kind}`" for kind, sql in columns.items())]))
    names = ", ".join(repr(kind) for kind in kinds)
    assert f"MessageFormatError: unknown message column(s) {names}: accepted are JMSMessageID, " in error
    assert "AssertionError" not in error


def test_calendar_interval_is_refused_by_spark(bench: Bench) -> None:
    """C2: before it asks us."""
    assert 'Cannot use "INTERVAL" type in the table schema' in refused(bench, "'x' text, make_interval(1) AS `i`")


def test_properties_of_other_types_are_all_named(bench: Bench) -> None:
    """C2"""
    bad = {kind: sql for kind, sql in OTHERS.items() if kind not in TEXTS}
    fields = ", ".join(f"'{kind}', {sql}" for kind, sql in bad.items())
    error = refused(bench, f"'x' text, named_struct('color', 'red', {fields}) AS properties")
    assert "MessageFormatError: properties of type binary binary, date date32[day], timestamp timestamp[us" in error
    named = error.partition("properties of type ")[2].partition(" cannot be message properties")[0]
    assert [kind for kind in bad if f"{kind} " not in named] == []
    assert "color" not in named
    assert "cast them to one of boolean, byte, short, int, long, float, double, string" in error


def test_properties_of_every_property_type_arrive(bench: Bench) -> None:
    """C2: text with a length or a collation is text."""
    fields = {kind: sql for kind, (sql, _) in PROPERTIES.items()} | {kind: OTHERS[kind] for kind in TEXTS}
    struct = ", ".join(f"'{kind}', {sql}" for kind, sql in fields.items())
    bench.send(bench.spark.sql(f"select 'x' text, named_struct({struct}) properties"), "jobs")
    properties = bench.browse("jobs").collect()[0].properties
    assert {kind: properties[kind] for kind in PROPERTIES} == {kind: text for kind, (_, text) in PROPERTIES.items()}
    assert [properties[kind].strip() for kind in TEXTS] == ["x", "x", "x"]


@pytest.mark.parametrize("column", ["JMSDeliveryTime", "JMSExpiration"])
def test_times_may_be_timestamps(bench: Bench, column: str) -> None:
    """C2: as docs/MESSAGES.md allows, in any session time zone, in a batch and in a stream."""
    zone = bench.spark.conf.get("spark.sql.session.timeZone")
    try:
        for other in ("UTC", "America/New_York"):
            bench.spark.conf.set("spark.sql.session.timeZone", other)
            bench.send(bench.spark.sql(f"select 'x' text, {MOMENT} AS {column}"), "jobs")
    finally:
        bench.spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert [row[column] for row in bench.browse("jobs").collect()] == [MOMENT_MS] * 2
    frame = bench.stream("jobs").selectExpr("text", f"{MOMENT} AS {column}")
    query = bench.options(frame.writeStream, "orders", checkpointLocation=str(bench.path / "ck"))
    if column == "JMSExpiration":
        query.trigger(availableNow=True).start().awaitTermination()
        assert [row[column] for row in bench.browse("orders").collect()] == [MOMENT_MS] * 2


def test_delivery_time_of_now_is_delivered(bench: Bench) -> None:
    """C2"""
    bench.send(bench.spark.sql("select 'now' text, current_timestamp() AS JMSDeliveryTime"), "jobs")
    bench.drain("jobs", "ck")
    assert [row.text for row in bench.output("out-ck").collect()] == ["now"]


def test_large_layouts_of_arrow_are_sent_and_read(bench: Bench) -> None:
    """C2: text, bytes and maps with long offsets, as Spark makes them for very large batches."""
    bench.spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    try:
        bench.send(bench.spark.sql("select 'x' text, 't' JMSType, map('a', 'b') properties"), "jobs")
        bench.send(bench.spark.sql("select X'01' body, named_struct('a', 'b', 'n', 1) properties"), "jobs")
        found = bench.browse("jobs").collect()
        bench.drain("jobs", "ck")
        drained = bench.output("out-ck").orderBy("sequence").collect()
    finally:
        bench.spark.conf.unset("spark.sql.execution.arrow.useLargeVarTypes")
    assert [(row.text, row.body) for row in found] == [("x", None), (None, b"\x01")]
    assert [row.properties["a"] for row in found] == ["b", "b"]
    assert [row.asDict() for row in drained] == [row.asDict() for row in found]


@pytest.mark.parametrize("column", ["JMSDeliveryTime", "JMSExpiration"])
def test_time_without_a_zone_is_refused(bench: Bench, column: str) -> None:
    """C2: by a batch, an INSERT and a stream, with the cast that helps; the cast takes the session's time zone."""
    frame = bench.spark.sql(f"select 'x' text, timestamp_ntz'2030-01-01 00:00:00' {column}")
    frame.createOrReplaceTempView("without_zone")
    bench.spark.sql(
        f"create or replace temporary view jobs_view using jmsq options (root '{bench.root}', destination 'jobs')"
    )
    streamed = (
        bench.spark.readStream.format("rate").load().selectExpr("'x' text", f"timestamp_ntz'2030-01-01' {column}")
    )
    writer = bench.options(streamed.writeStream, "jobs", checkpointLocation=str(bench.path / "ck"))
    names = ", ".join(
        column if name == column else "text" if name == "text" else f"null {name}"
        for name in bench.browse("jobs").columns
    )
    for send in (lambda: bench.send(frame, "jobs"), lambda: writer.start().awaitTermination(60)):
        with pytest.raises(PySparkException, match=f"column '{column}' is a time without a time zone") as caught:
            send()
        assert f"cast({column} as timestamp)" in str(caught.value)
    with pytest.raises(PySparkException, match=f'Cannot safely cast `{column}` "TIMESTAMP_NTZ" to "BIGINT"'):
        bench.spark.sql(f"insert into jobs_view select {names} from without_zone")
    assert bench.browse("jobs").count() == 0


@pytest.mark.parametrize("sql", ["{} text", "'x' text, {} JMSXGroupID", "'x' text, map('a', {}) properties"])
def test_text_that_is_not_utf8_is_refused_before_anything_is_sent(bench: Bench, sql: str) -> None:
    """C2, C20: Kafka's `CAST(value AS STRING)` keeps any bytes; the error names row and column."""
    bad = "case when id = 2 then cast(X'68ff69' as string) else 'good' end"
    frame = bench.spark.range(0, 4, 1, 1).selectExpr(*_parts(sql.format(bad)))
    with pytest.raises(PySparkException, match="MessageFormatError: row 2: .* which is not UTF-8"):
        bench.send(frame, "jobs")
    assert bench.browse("jobs").count() == 0


def _parts(sql: str) -> list[str]:
    first, comma, rest = sql.partition(", ")
    return [first, rest] if comma else [first]
