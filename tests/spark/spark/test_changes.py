"""The view `changes` in Spark: streaming and batch, over failures, restarts and changes of destinations (C1, M12)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.query import StreamingQueryException

from spark_jms import connect
from spark_jms.admin.backup import back_up, restore
from spark_jms.admin.destinations import drop_destination
from spark_jms.claims.servers.stores import open_stores
from spark_jms.core.destinations.destination import Destination
from spark_jms.log.changes.feed import ChangeFeed
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.upkeep.compaction import compact
from tests.harness.messages.shorthands import texts_now
from tests.harness.processes.sessions import TABLES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

    from tests.spark.conftest import Bench

COLUMNS = ("kind", "destination", "member", "first", "last", "ranges", "messages", "consumer", "position", "quota")


def changes(bench: Bench, destination: str = "*", **options: object) -> DataFrame:
    return bench.stream(destination, view="changes", **options)


def run(bench: Bench, frame: DataFrame, name: str) -> StreamingQuery:
    """Everything that there is now, into the table of that name."""
    writer = frame.writeStream.format(TABLES).option("checkpointLocation", str(bench.path / f"{name}-checkpoint"))
    query = writer.trigger(availableNow=True).start(str(bench.path / name))
    query.awaitTermination()
    return query


def sums(frame: DataFrame) -> dict[tuple[str, str], int | None]:
    rows = frame.groupBy("destination", "kind").agg({"messages": "sum"}).collect()
    return {(row.destination, row.kind): row["sum(messages)"] for row in rows}


def work(bench: Bench, destination: str, first: int, last: int, finished: int) -> None:
    bench.send(bench.numbers(first, last), destination)
    with connect(bench.root, housekeeping=False) as context, context.consumer(destination) as consumer:
        assert None not in texts_now(consumer, finished)


def test_stream_has_each_change_once_over_restarts(bench: Bench) -> None:
    """M12: of all destinations; a batch read and the plain client have the same rows; nothing is consumed."""
    work(bench, "jobs", 1, 30, 10)
    work(bench, "orders", 1, 100, 40)
    run(bench, changes(bench), "feed")
    for name in ("jobs", "orders"):
        compact(bench.domain.log(name))
    work(bench, "jobs", 31, 40, 30)
    query = run(bench, changes(bench, maxMessagesPerTrigger=20), "feed")
    assert len(query.recentProgress) > 1
    found = bench.output("feed")
    assert sums(found) == {
        ("jobs", "sent"): 40,
        ("jobs", "finished"): 40,
        ("orders", "sent"): 100,
        ("orders", "finished"): 40,
    }
    whole = bench.browse("*", view="changes")
    assert sums(whole) == sums(found)
    plain = [tuple(getattr(one, name) for name in COLUMNS) for one in ChangeFeed(bench.domain)]
    assert Counter(map(tuple, whole.select(*COLUMNS).collect())) == Counter(plain)
    assert whole.where("kind = 'sent' and (minute is null or at < minute or read < at)").count() == 0
    assert bench.browse("jobs").count() == 0
    assert bench.browse("orders").count() == 60


def test_failed_batch_is_repeated_with_the_same_rows(bench: Bench) -> None:
    """M12: with what was sent since in a later one."""
    work(bench, "jobs", 1, 9, 4)
    seen: list[list[Any]] = []

    def fail_once(frame: DataFrame, number: int) -> None:
        seen.append(sorted(map(tuple, frame.drop("bytes").collect()), key=str))
        if len(seen) == 1:
            raise RuntimeError("the sink is away")

    def query() -> StreamingQuery:
        writer = changes(bench, "jobs").writeStream.foreachBatch(fail_once)
        started = writer.option("checkpointLocation", str(bench.path / "checkpoint")).trigger(availableNow=True).start()
        started.awaitTermination()
        return started

    with pytest.raises(StreamingQueryException, match="the sink is away"):
        query()
    work(bench, "jobs", 10, 12, 1)
    compact(bench.domain.log("jobs"))
    query()
    assert seen[0] == seen[1]
    assert [sum(row[11] for row in rows if row[0] == "sent") for rows in seen] == [9, 9, 3]


def test_latest_begins_with_what_happens_from_now_on(bench: Bench) -> None:
    """M12: earlier changes are in no batch; `latest`, or a position of another reader."""
    work(bench, "jobs", 1, 5, 5)
    query = run(bench, changes(bench, "jobs", startingPosition="latest"), "feed")
    assert [one["numInputRows"] for one in query.recentProgress] == [0]
    position = ChangeFeed(bench.domain, "jobs", "latest").position
    work(bench, "jobs", 6, 8, 3)
    run(bench, changes(bench, "jobs", startingPosition=position), "later")
    assert sums(bench.output("later")) == {("jobs", "sent"): 3, ("jobs", "finished"): 3}


def test_latest_is_when_the_query_began(bench: Bench) -> None:
    """M12: not when its first batch, which failed, is repeated; and a position does not continue in another destination."""
    attempts: list[int] = []

    def fail_once(frame: DataFrame, number: int) -> None:
        attempts.append(sum(row.messages for row in frame.collect()))
        if len(attempts) == 1:
            raise RuntimeError("the sink is away")

    def query(destination: str) -> None:
        frame = changes(bench, destination, startingPosition="latest")
        writer = frame.writeStream.foreachBatch(fail_once).option("checkpointLocation", str(bench.path / "latest"))
        writer.trigger(availableNow=True).start().awaitTermination()

    work(bench, "jobs", 1, 5, 5)
    with pytest.raises(StreamingQueryException, match="the sink is away"):
        query("jobs")
    work(bench, "jobs", 6, 8, 0)
    query("jobs")
    query("jobs")
    assert sum(attempts) == 3
    with pytest.raises(StreamingQueryException, match="cannot continue at a position of jobs"):
        query("orders")


def test_aggregation_by_minute_drops_nothing(bench: Bench) -> None:
    """M12, T3: a watermark on `read`; senders' clocks may be wrong."""
    work(bench, "jobs", 1, 20, 20)
    frame = changes(bench).withWatermark("read", "2 hours").groupBy("read", "destination", "minute", "kind")
    writer = frame.agg({"messages": "sum"}).writeStream.outputMode("update").format("memory").queryName("by_minute")
    query = writer.option("checkpointLocation", str(bench.path / "c")).trigger(availableNow=True).start()
    query.awaitTermination()
    operators = [one for progress in query.recentProgress for one in progress["stateOperators"]]
    assert {one["operatorName"] for one in operators} == {"stateStoreSave"}
    assert max(one["numRowsTotal"] for one in operators) > 0
    assert sum(one["numRowsDroppedByWatermark"] for one in operators) == 0
    rows = bench.spark.table("by_minute").groupBy("kind").agg({"sum(messages)": "sum"}).collect()
    assert {row.kind: row[1] for row in rows} == {"sent": 20, "finished": 20}


def test_dropped_and_restored_tables_are_named(bench: Bench) -> None:
    """M12: a destination that is created again has a row of the kind gone; a restored domain refuses the checkpoint."""
    work(bench, "jobs", 1, 5, 2)
    run(bench, changes(bench), "feed")
    with open_stores(bench.domain) as store:
        drop_destination(bench.domain, store, "jobs", force=True)
    apply_destinations(bench.domain, [Destination("jobs", "queue")], lambda name, member: False)
    work(bench, "jobs", 1, 1, 1)
    run(bench, changes(bench), "feed")
    gone = bench.output("feed").where("kind = 'gone'").select("destination", "detail", "first", "messages").collect()
    assert [tuple(row) for row in gone] == [("jobs", "dropped", 6, None)]
    assert sums(bench.output("feed"))["jobs", "sent"] == 6
    copy = str(bench.path / "copy")
    with open_stores(bench.domain) as store:
        back_up(bench.domain, store, copy)
    restore(copy, bench.root, force=True)
    with pytest.raises(StreamingQueryException, match="StaleDomainError"):
        run(bench, changes(bench), "feed")


def test_options_that_the_feed_does_not_use_are_refused(bench: Bench) -> None:
    """M12, C6: before Spark logs anything; other views are not streamed."""

    def refused(what: str, destination: str = "jobs", **options: object) -> None:
        with pytest.raises(Exception, match=what):
            run(bench, bench.stream(destination, **options), "never")

    refused(
        "option selector is 'JMSPriority > 4', but the view 'changes' does not",
        view="changes",
        selector="JMSPriority > 4",
    )
    refused("option subscription is 's', but the view 'changes'", view="changes", subscription="s")
    refused("option columns is", view="changes", columns="text")
    refused("option view is 'claims', which a streaming read does not have", view="claims")
    refused("there is no destination 'nowhere'", "nowhere", view="changes")
    refused("a position of the change feed cannot be read", view="changes", startingPosition="yesterday")
    refused("leave the server out", "east@jobs", view="changes")
    with pytest.raises(Exception, match="read does not use option startingPosition"):
        bench.browse("jobs", view="changes", startingPosition="latest").collect()
