"""Views and DataFrames over the backlog: what they show, which options they take, and threads (C1, C6)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame

from spark_jms.errors import IllegalStateException
from spark_jms.spark.fresh import fresh

if TYPE_CHECKING:
    from tests.spark.conftest import Bench


def view(bench: Bench, name: str, schema: str = "", **options: str) -> None:
    given = "".join(f", {key} '{value}'" for key, value in options.items())
    bench.spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW {name} {schema} USING jmsq OPTIONS (root '{bench.root}', destination 'jobs'{given})"
    )


def refused(act: Callable[[], object], what: str) -> None:
    with pytest.raises(Exception, match=f"(?s){what}"):
        act()


def test_fresh_view_and_dataframe_show_what_was_sent_since(bench: Bench) -> None:
    """C1: a view and a DataFrame stay as they were first read until `fresh`; then the same ones are current, all they are used
    in, and a query with a subquery."""
    view(bench, "backlog")
    frame = bench.browse("jobs", columns="sequence,text")
    joined = bench.spark.table("backlog").alias("a").join(frame.alias("b"), "sequence")
    nested = bench.spark.sql("SELECT (SELECT count(*) FROM backlog) n")

    def seen() -> list[int]:
        in_view = bench.spark.sql("SELECT * FROM backlog").count()
        return [in_view, bench.spark.table("backlog").count(), frame.count(), len(joined.collect())]

    assert seen() == [0, 0, 0, 0]
    bench.send(bench.numbers(1, 3), "jobs")
    assert seen() == [0, 0, 0, 0], "Spark plans again by itself: fresh() and its page can go"
    assert fresh(bench.spark.table("backlog")).count() == 3
    assert len(fresh(frame).collect()) == 3
    assert seen()[:3] == [3, 3, 3]
    assert len(fresh(joined).collect()) == 3
    bench.send(bench.numbers(4, 5), "jobs")
    assert [row.n for row in fresh(nested).collect()] == [5]
    with pytest.raises(IllegalStateException, match="CREATE OR REPLACE TEMPORARY VIEW"):
        fresh(object())  # type: ignore[arg-type]  # as Spark Connect's, it has no plan in this JVM


def test_fresh_refuses_what_spark_has_cached(bench: Bench) -> None:
    """C1: a cached DataFrame or table would show the old messages, silently. Where something else of the query is cached, it is
    current."""
    view(bench, "cached", columns="sequence,text")
    bench.spark.sql("CACHE TABLE cached")
    other = bench.numbers(1, 1).select("text").cache()
    joined = bench.browse("jobs").join(other, "text")
    assert [bench.spark.table("cached").count(), joined.count()] == [0, 0]
    bench.send(bench.numbers(1, 3), "jobs")
    for frame in (bench.spark.table("cached"), bench.spark.sql("SELECT (SELECT count(*) FROM cached) n")):
        with pytest.raises(IllegalStateException, match="is cached.*unpersist"):
            fresh(frame)
    assert fresh(joined).count() == 1
    bench.spark.sql("UNCACHE TABLE cached")
    other.unpersist()
    assert fresh(bench.spark.table("cached")).count() == 3


def test_options_that_do_not_apply_are_refused(bench: Bench) -> None:
    """C1, C6: by each use, with nothing sent; a view takes those of SELECT and those of INSERT, and `columns` for both."""
    one = bench.numbers(1, 1)
    refused(lambda: bench.send(one, "jobs", selector="a = 1"), "OptionError: write does not use option selector")
    refused(lambda: bench.browse("jobs", startingPosition="x").count(), "read does not use option startingPosition")
    rate = bench.spark.readStream.format("rate").load().selectExpr("cast(value AS string) text")
    writer = bench.options(rate.writeStream, "jobs", txnAppId="a", checkpointLocation=str(bench.path / "ck"))
    refused(lambda: writer.start().awaitTermination(), "writeStream does not use option txnAppId")
    view(bench, "narrow", columns="text,JMSType", sendTimeout="5 s")
    bench.spark.sql("INSERT INTO narrow VALUES ('a', 'b')")
    refused(lambda: bench.spark.table("narrow").count(), "read does not use option sendTimeout.*make two views")
    view(bench, "narrow", columns="text,JMSType")
    bench.spark.sql("INSERT INTO narrow VALUES ('c', 'd')")
    view(bench, "some", selector="JMSType IS NOT NULL")
    refused(lambda: bench.spark.sql("INSERT INTO some (text) VALUES ('e')"), "write does not use option selector")
    assert bench.spark.table("some").count() == 2
    assert bench.browse("jobs").count() == 2


def test_given_schema_is_refused_before_messages_are_claimed(bench: Bench) -> None:
    """C6: at planning, in a stream, a read and a view; a stored schema of ours passes."""
    bench.send(bench.numbers(1, 2), "jobs")
    reader = bench.options(bench.spark.readStream, "jobs").schema("text string").load()
    writer = reader.writeStream.format("noop").option("checkpointLocation", str(bench.path / "ck"))
    refused(
        lambda: writer.start().awaitTermination(),
        r"OptionError: a schema is given, \(text string\).*option\(\"columns\"",
    )
    assert bench.browse("jobs", view="claims").count() == 0
    view(bench, "given", "(text string)")
    refused(lambda: bench.spark.table("given").count(), "OptionError: a schema is given")
    for options in ({}, {"columns": "text,properties"}, {"view": "subscriptions"}):
        stored = bench.browse("jobs", **options).schema
        assert bench.options(bench.spark.read, "jobs", **options).schema(stored).load().count() > 0


def test_writes_in_other_threads(bench: Bench) -> None:
    """C1: a thread has no active session until Spark gets one, as by `createDataFrame`; a view needs none."""
    frame = bench.numbers(1, 1, partitions=1)
    view(bench, "backlog")
    view(bench, "outgoing", columns="text,JMSXGroupID")

    def active() -> None:
        bench.spark.createDataFrame([], "none int")

    def stream() -> None:
        rate = bench.spark.readStream.format("rate").load().selectExpr("cast(value AS string) text").limit(0)
        writer = bench.options(rate.writeStream, "jobs", checkpointLocation=str(bench.path / "ck"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def at_once(batch: DataFrame, number: int) -> None:
        with ThreadPoolExecutor(2, initializer=lambda: batch.sparkSession.createDataFrame([], "none int")) as pool:
            for done in [pool.submit(bench.send, batch, "jobs") for _ in range(2)]:
                done.result()

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
            pool.submit(bench.send, frame, "jobs").result()
        pool.submit(bench.spark.sql, "INSERT INTO backlog (text) VALUES ('a')").result()
        pool.submit(lambda: frame.writeTo("outgoing").append()).result()
    with ThreadPoolExecutor(1, initializer=active) as pool:
        pool.submit(bench.send, frame, "jobs").result()
        pool.submit(stream).result()
    source: Any = bench.spark.readStream.schema("text string").text(str(_lines(bench)))
    query = source.writeStream.foreachBatch(at_once).option("checkpointLocation", str(bench.path / "each"))
    query.trigger(availableNow=True).start().awaitTermination()
    assert bench.browse("jobs").count() == 5


def _lines(bench: Bench) -> Any:
    folder = bench.path / "lines"
    folder.mkdir()
    (folder / "one.txt").write_text("x\n")
    return folder
