"""A destination as a table of Spark's catalog, and what a function, a table, a view and a DataFrame show (C1)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

import spark_jms
from spark_jms.spark.fresh import fresh

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import Bench

CATALOG = "spark.sql.catalog.spark_catalog"
TEMPORARY = ("of_source", "of_frame", "of_table")
NEEDS_WITH = r"OptionError: format\(\"jmsq\"\) needs option\(\"root\".*INSERT INTO t WITH \(root = "
NEEDS_OPTIONS = r"OptionError: format\(\"jmsq\"\) needs option\(\"root\".*for toTable too"
KEEPS_NONE = r"OptionError: format\(\"jmsq\"\) needs option\(\"root\".*CREATE TABLE t USING jmsq OPTIONS"


@pytest.fixture
def spark_sql(bench: Bench) -> Iterator[SparkSession]:
    """The session with Spark's own catalog in the place of Delta's, in a database of the test."""
    delta = str(bench.spark.conf.get(CATALOG))
    bench.spark.conf.set(CATALOG, "builtin")
    bench.spark.sql("CREATE DATABASE test_tables")
    bench.spark.sql("USE test_tables")
    yield bench.spark
    for view in TEMPORARY:
        bench.spark.catalog.dropTempView(view)
    bench.spark.sql("USE default")
    bench.spark.sql("DROP DATABASE test_tables CASCADE")
    bench.spark.conf.set(CATALOG, delta)


def create(bench: Bench, name: str, destination: str, **options: str) -> None:
    given = "".join(f", {key} '{text}'" for key, text in options.items())
    bench.spark.sql(f"CREATE TABLE {name} USING jmsq OPTIONS (root '{bench.root}', destination '{destination}'{given})")


def at(bench: Bench, destination: str) -> str:
    return f"WITH (root = '{bench.root}', destination = '{destination}')"


def texts(frame: DataFrame) -> list[str]:
    return sorted(row.text for row in frame.select("text").collect())


def waiting(bench: Bench, destination: str) -> list[str]:
    return texts(spark_jms.browse(bench.spark, bench.root, destination))


def refused(act: Callable[[], object], what: str) -> None:
    with pytest.raises(Exception, match=f"(?s){what}"):
        act()


def test_each_verb_of_sql(bench: Bench, spark_sql: SparkSession) -> None:
    """C1: CREATE TABLE, SELECT, INSERT, JOIN, CREATE VIEW, readStream.table, writeTo, saveAsTable, toTable, DESCRIBE and DROP,
    which leaves the destination. What only reads repeats no option."""
    sql, out = spark_sql.sql, str(bench.path / "out")
    create(bench, "t", "jobs")
    sql(f"CREATE TABLE IF NOT EXISTS t USING jmsq OPTIONS (root '{bench.root}', destination 'orders')")
    sql(f"INSERT INTO t {at(bench, 'jobs')} (text) VALUES ('a'), ('b')")
    sql(f"INSERT INTO t {at(bench, 'jobs')} (text, properties) SELECT 'c', map('k', '1')")
    sql(f"INSERT INTO t {at(bench, 'jobs')} BY NAME SELECT 'd' AS text")
    assert texts(sql("SELECT * FROM t")) == ["a", "b", "c", "d"]
    assert texts(sql("SELECT text FROM t WHERE properties['k'] = '1'")) == ["c"]
    assert sql("SELECT a.text FROM t a JOIN t b USING (sequence)").count() == 4
    sql("CREATE VIEW v AS SELECT text FROM t")
    assert texts(spark_sql.table("v")) == ["a", "b", "c", "d"]
    create(bench, "small", "orders", columns="text,JMSXGroupID")
    one = bench.spark.sql("SELECT 'x' AS text, 'u' AS JMSXGroupID")
    named = {"root": bench.root, "destination": "orders"}
    one.writeTo("small").options(**named).append()
    one.write.format("jmsq").options(**named).mode("append").saveAsTable("small")
    refused(lambda: one.write.options(**named).insertInto("small"), NEEDS_WITH)  # Spark drops the options
    sql(f"INSERT INTO small {at(bench, 'orders')} VALUES ('y', NULL)")
    assert texts(spark_sql.table("small")) == ["x", "x", "y"]
    assert spark_sql.table("small").columns == ["text", "JMSXGroupID"]
    moved = spark_sql.readStream.table("t").writeStream.options(**named, checkpointLocation=out)
    moved.trigger(availableNow=True).toTable("small").awaitTermination()
    assert [texts(spark_sql.table("t")), len(waiting(bench, "orders"))] == [[], 7]
    assert sql("DESCRIBE small").count() == 2
    for table in ("t", "small"):
        sql(f"DROP TABLE {table}")
    assert len(waiting(bench, "orders")) == 7


def test_the_same_names_before_and_after_a_send(bench: Bench, spark_sql: SparkSession) -> None:
    """C1: the function, the table and a view over the table are current at each read. A temporary view of the source, one of a
    DataFrame, and a DataFrame stay as they were first read, until `fresh`."""
    sql, root = spark_sql.sql, bench.root
    create(bench, "t", "jobs")
    sql("CREATE VIEW over_table AS SELECT * FROM t")
    sql("CREATE TEMPORARY VIEW of_table AS SELECT * FROM t")
    sql(f"CREATE TEMPORARY VIEW of_source USING jmsq OPTIONS (root '{root}', destination 'jobs')")
    frame = spark_jms.browse(spark_sql, root, "jobs")
    frame.createOrReplaceTempView("of_frame")
    kept = spark_sql.table("t")
    reads: dict[str, Callable[[], int]] = {
        "function": lambda: spark_jms.browse(spark_sql, root, "jobs").count(),
        "table": lambda: sql("SELECT * FROM t").count(),
        "spark.table": lambda: spark_sql.table("t").count(),
        "view over the table": lambda: sql("SELECT * FROM over_table").count(),
        "temporary view over the table": lambda: sql("SELECT * FROM of_table").count(),
        "temporary view of the source": lambda: sql("SELECT * FROM of_source").count(),
        "temporary view of a DataFrame": lambda: sql("SELECT * FROM of_frame").count(),
        "DataFrame": lambda: frame.count(),
        "DataFrame of the table": lambda: kept.count(),
    }
    frozen = {"temporary view of the source", "temporary view of a DataFrame", "DataFrame", "DataFrame of the table"}
    bench.send(bench.numbers(1, 10), "jobs")
    assert {name: read() for name, read in reads.items()} == dict.fromkeys(reads, 10)
    bench.send(bench.numbers(11, 11), "jobs")
    assert {name: read() for name, read in reads.items()} == {name: 10 if name in frozen else 11 for name in reads}
    assert [fresh(frame).count(), fresh(kept).count(), fresh(spark_sql.table("of_source")).count()] == [11, 11, 11]


def test_no_road_from_a_table_leads_to_a_destination_that_was_not_named(bench: Bench, spark_sql: SparkSession) -> None:
    """C1: when a frame has exactly the columns of a table, its writer sees the source's schema. Each road is refused and sends
    nothing, and takes nothing from the source."""
    sql = spark_sql.sql
    create(bench, "t", "jobs")
    create(bench, "t2", "orders")
    bench.send(bench.numbers(1, 3), "jobs")
    whole = sql("SELECT * FROM t")
    source = spark_sql.readStream.table("t")

    def stream(name: str, start: Callable[[Any], Any]) -> None:
        writer = source.writeStream.option("checkpointLocation", str(bench.path / name)).trigger(availableNow=True)
        start(writer).awaitTermination()

    for statement in (
        "INSERT INTO t2 SELECT * FROM t",
        "INSERT INTO t2 BY NAME SELECT * FROM t",
        "INSERT INTO t2 TABLE t",
        "INSERT INTO t2 (text) VALUES ('x')",
        "INSERT INTO t SELECT * FROM t2",
        "INSERT INTO t2 WITH (destination = 'orders') SELECT * FROM t",
    ):
        refused(lambda statement=statement: sql(statement), NEEDS_WITH)
    refused(
        lambda: sql(f"INSERT INTO t2 WITH (root = '{bench.root}') SELECT * FROM t"), r"needs option\(\"destination\""
    )
    for write in (
        lambda: whole.writeTo("t2").append(),
        lambda: whole.write.insertInto("t2"),
        lambda: whole.write.format("jmsq").mode("append").saveAsTable("t2"),
        lambda: whole.write.format("jmsq").mode("append").save(),
        lambda: sql(
            f"CREATE TABLE t3 USING jmsq OPTIONS (root '{bench.root}', destination 'orders') AS SELECT * FROM t"
        ),
    ):
        refused(write, NEEDS_WITH)
    refused(lambda: stream("a", lambda writer: writer.toTable("t2")), NEEDS_OPTIONS)
    refused(lambda: stream("b", lambda writer: writer.format("jmsq").start()), NEEDS_OPTIONS)
    assert [waiting(bench, "jobs"), waiting(bench, "orders")] == [["1", "2", "3"], []]
    assert bench.browse("jobs", view="claims").count() == 0
    assert not spark_sql.catalog.tableExists("t3")
    sql(f"INSERT INTO t2 {at(bench, 'orders')} SELECT * FROM t")
    assert [waiting(bench, "jobs"), waiting(bench, "orders")] == [["1", "2", "3"], ["1", "2", "3"]]


def test_a_table_made_from_a_table_does_not_read_the_first_one(bench: Bench, spark_sql: SparkSession) -> None:
    """C1: no schema of a DataFrame has the options: those that are made from one keep none, and files do not show the root."""
    create(bench, "t", "jobs")
    bench.send(bench.numbers(1, 2), "jobs")
    whole = spark_sql.table("t")
    whole.write.format("jmsq").options(root=bench.root, destination="orders").saveAsTable("saved")
    spark_sql.catalog.createTable("declared", None, "jmsq", whole.schema, root=bench.root, destination="orders")
    assert waiting(bench, "orders") == ["1", "2"]
    for name in ("saved", "declared"):
        refused(lambda name=name: spark_sql.table(name).count(), KEEPS_NONE)
        stream = spark_sql.readStream.table(name).writeStream.format("noop")
        refused(lambda stream=stream, name=name: _drain(stream, str(bench.path / name)), KEEPS_NONE)
        assert texts(spark_sql.sql(f"SELECT text FROM {name} {at(bench, 'orders')}")) == ["1", "2"]
    whole.write.parquet(str(bench.path / "files"))
    schema = json.dumps(spark_sql.read.parquet(str(bench.path / "files")).schema.jsonValue())
    assert bench.root not in schema
    assert [waiting(bench, "jobs"), bench.browse("jobs", view="claims").count()] == [["1", "2"], 0]
    refused(lambda: spark_sql.sql("CREATE TABLE other LIKE t"), "does not support CREATE TABLE LIKE")


def _drain(writer: Any, checkpoint: str) -> None:
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()


def test_options_at_the_use_win(bench: Bench, spark_sql: SparkSession) -> None:
    """C1: in SQL by WITH, in Python by option; other columns are refused before anything is claimed, and the next query gets
    all messages."""
    kind = "map('n', cast(id % 2 as string)) properties"
    bench.send(bench.numbers(1, 3, kind), "jobs")
    bench.send(bench.numbers(7, 8), "orders")
    create(bench, "t", "jobs", columns="sequence,text", selector="n <> \\'0\\'")
    assert texts(spark_sql.table("t")) == ["1", "3"]
    assert texts(spark_sql.sql("SELECT * FROM t WITH (selector = 'n = \\'0\\'')")) == ["2"]
    assert texts(spark_sql.sql("SELECT * FROM t WITH (DESTINATION = 'orders', selector = '')")) == ["7", "8"]
    assert texts(spark_sql.read.option("destination", "orders").option("selector", "").table("t")) == ["7", "8"]
    other = r"OptionError: a table has the columns that CREATE TABLE gave it, \(sequence bigint, text string\)"
    refused(lambda: spark_sql.sql("SELECT * FROM t WITH (view = 'all', columns = 'text')").count(), other)
    refused(lambda: spark_sql.read.option("columns", "text").table("t").count(), other)
    narrow = spark_sql.readStream.option("columns", "text").table("t").writeStream.format("noop")
    refused(lambda: _drain(narrow, str(bench.path / "narrow")), other)
    assert bench.browse("jobs", view="claims").count() == 0
    whole = spark_sql.readStream.option("selector", "").table("t").writeStream.format("parquet")
    _drain(whole.option("path", str(bench.path / "out")), str(bench.path / "whole"))
    assert texts(spark_sql.read.parquet(str(bench.path / "out"))) == ["1", "2", "3"]


def test_what_a_table_cannot_do_is_refused(bench: Bench, spark_sql: SparkSession) -> None:
    """C1: a list of columns, CREATE TABLE with a wrong or an unkept option, OVERWRITE, TRUNCATE, DELETE, UPDATE and columns that
    ALTER TABLE changes; nothing is sent, removed or claimed."""
    sql = spark_sql.sql
    create(bench, "t", "jobs")
    bench.send(bench.numbers(1, 2), "jobs")
    for statement, what in {
        f"CREATE TABLE x USING jmsq OPTIONS (root '{bench.root}', destinatio 'jobs')": "did you mean 'destination'",
        f"CREATE TABLE x USING jmsq OPTIONS (root '{bench.root}', destination 'jobs', maxMessagesPerTrigger '5')": (
            "OptionError: a table does not keep option maxMessagesPerTrigger"
        ),
        f"CREATE TABLE x USING jmsq OPTIONS (root '{bench.root}', destination 'nowhere')": "InvalidDestinationError",
        f"INSERT OVERWRITE t {at(bench, 'jobs')} (text) VALUES ('x')": "OptionError: messages are sent, not overwritten",
        "INSERT INTO t SELECT 'x'": "INSERT_COLUMN_ARITY_MISMATCH",
        "TRUNCATE TABLE t": "does not support truncates",
        "DELETE FROM t": "does not support deletes",
        "UPDATE t SET text = 'x'": "does not support UPDATE TABLE",
        "MERGE INTO t USING t u ON t.text = u.text WHEN MATCHED THEN DELETE": "does not support MERGE INTO TABLE",
    }.items():
        refused(lambda statement=statement: sql(statement), what)
    sql(f"CREATE TABLE listed (text STRING) USING jmsq OPTIONS (root '{bench.root}', destination 'jobs')")
    refused(lambda: sql("SELECT * FROM listed").count(), KEEPS_NONE)
    refused(lambda: sql(f"SELECT * FROM listed {at(bench, 'jobs')}").count(), r"a schema is given, \(text string\)")
    sql("ALTER TABLE t ADD COLUMNS (x INT)")
    refused(lambda: sql("SELECT * FROM t").count(), "do not alter its columns")
    assert [waiting(bench, "jobs"), bench.browse("jobs", view="claims").count()] == [["1", "2"], 0]


@pytest.mark.delta
def test_beside_the_catalog_of_delta(bench: Bench, spark_sql: SparkSession) -> None:
    """C1, C3: Spark itself refuses the table under Delta's class, and the function works there; with Spark's class a statement uses
    both kinds, MERGE into a Delta table included, which is whole again under Delta's class."""
    delta, sql = "org.apache.spark.sql.delta.catalog.DeltaCatalog", spark_sql.sql
    spark_sql.conf.set(CATALOG, delta)
    sql(f"CREATE TABLE accounts USING delta LOCATION '{bench.path / 'accounts'}' AS SELECT '1' AS text, 0 AS n")
    create(bench, "t", "jobs")
    refused(lambda: sql("SELECT * FROM t"), "jmsq is not a valid Spark SQL Data Source")
    bench.send(bench.numbers(1, 3), "jobs")
    assert waiting(bench, "jobs") == ["1", "2", "3"]
    spark_sql.conf.set(CATALOG, "builtin")
    assert texts(sql("SELECT text FROM t")) == ["1", "2", "3"]
    assert sql("SELECT * FROM t JOIN accounts USING (text)").count() == 1
    sql(
        "MERGE INTO accounts a USING t ON a.text = t.text WHEN MATCHED THEN UPDATE SET n = 1 "
        "WHEN NOT MATCHED THEN INSERT (text, n) VALUES (t.text, 2)"
    )
    sql(f"INSERT INTO t {at(bench, 'jobs')} (text) SELECT text FROM accounts WHERE n = 2")
    assert waiting(bench, "jobs") == ["1", "2", "2", "3", "3"]
    spark_sql.conf.set(CATALOG, delta)
    assert sorted(map(tuple, sql("SELECT * FROM accounts").collect())) == [("1", 1), ("2", 2), ("3", 2)]
