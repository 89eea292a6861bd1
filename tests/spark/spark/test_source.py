"""Receiving in Spark (C1, C4, C5, C6, C7, C8, C9, C10)."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.harness.processes.sessions import TABLES

if TYPE_CHECKING:
    from tests.spark.conftest import Bench

LOG = {"delta": "_delta_log", "parquet": "_spark_metadata"}[TABLES]  # of what a query writes


def wait(what: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.1)


def batches(query: Any) -> list[int]:
    return [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]


def test_query_receives_each_message_once_in_order(bench: Bench) -> None:
    """C1, C4, C5: each message arrives once, in its member's order, and leaves the queue empty; a second run of the query
    receives only new messages, in one task when they are few."""
    bench.send(bench.numbers(1, 1000, partitions=1), "orders")
    query = bench.drain("orders", "ck", maxMessagesPerTrigger=300)
    assert batches(query) == [300, 300, 300, 100]
    assert bench.texts("out-ck") == list(range(1, 1001))
    assert bench.browse("orders").count() == 0
    rows = bench.output("out-ck").select("member", "sequence", "text").collect()
    for member in range(4):
        mine = [int(r.text) for r in sorted(rows, key=lambda r: r.sequence) if r.member == member]
        assert mine == sorted(mine)
    bench.send(bench.numbers(1001, 1010), "orders")
    files = len(bench.output("out-ck").inputFiles())
    assert batches(bench.drain("orders", "ck", smallBatchMessages=10)) == [10]
    assert bench.texts("out-ck") == list(range(1, 1011))
    assert len(bench.output("out-ck").inputFiles()) == files + 1


def test_columns_option_selects_columns(bench: Bench) -> None:
    """C6: `columns` reads only the named columns, in their order."""
    bench.send(bench.numbers(1, 10), "orders")
    frame = bench.browse("orders", columns="sequence, text")
    assert frame.columns == ["sequence", "text"]
    assert frame.count() == 10
    query = bench.drain("orders", "ck", columns="text,JMSXDeliveryCount")
    assert query.exception() is None
    assert bench.output("out-ck").columns == ["text", "JMSXDeliveryCount"]


def test_max_bytes_per_trigger_bounds_a_batch(bench: Bench) -> None:
    """C6: maxBytesPerTrigger bounds a batch and never blocks on one big message."""
    bench.send(bench.spark.range(0, 200, 1, 1).selectExpr("cast(repeat('x', 1000) as binary) body"), "jobs")
    sizes = batches(bench.drain("jobs", "ck", maxBytesPerTrigger=2000))
    assert sum(sizes) == 200
    assert len(sizes) > 1


def test_batch_waits_for_min_messages_per_trigger(bench: Bench) -> None:
    """C6: a batch waits for minMessagesPerTrigger, at most for maxTriggerDelay."""
    sink = bench.stream("jobs", minMessagesPerTrigger=50, maxTriggerDelay="1 h").writeStream.format("noop")
    query = sink.option("checkpointLocation", str(bench.path / "ck")).start()
    bench.send(bench.numbers(1, 30), "jobs")
    wait(
        lambda: (
            query.lastProgress is not None
            and (query.lastProgress["sources"][0]["latestOffset"] or "").find('"backlog": 30') >= 0
        )
    )
    assert batches(query) == []
    bench.send(bench.numbers(31, 60), "jobs")
    wait(lambda: batches(query) == [60])
    query.stop()


def test_progress_reports_the_backlog(bench: Bench) -> None:
    """C6: each progress reports the backlog."""
    bench.send(bench.numbers(1, 100), "orders")
    query = bench.drain("orders", "ck", maxMessagesPerTrigger=60)
    lags = [json.loads(p["sources"][0]["latestOffset"])["backlog"] for p in query.recentProgress if p["numInputRows"]]
    assert lags[0] > lags[-1] >= 0


def test_topic_subscriptions_are_independent(bench: Bench) -> None:
    """C10: each durable subscription receives every message sent since its creation, whenever its query runs."""
    bench.send(bench.numbers(1, 5), "prices")
    bench.drain("prices", "early", subscription="early", startingPosition="earliest")
    bench.drain("prices", "late", subscription="late")
    bench.send(bench.numbers(6, 9), "prices")
    for name in ("early", "late"):
        bench.drain("prices", name, subscription=name)
    assert bench.texts("out-early") == list(range(1, 10))
    assert bench.texts("out-late") == list(range(6, 10))
    assert bench.browse("prices", subscription="late").count() == 0
    assert bench.browse("prices").count() == 9


@pytest.mark.parametrize(
    ("position", "first"),
    [
        ('{"sequence": 4}', 4),
        ('{"sequence": {"0": 7}}', 7),
        ("earliest", 1),
        ('{"time": "2020-01-01T00:00:00Z"}', 1),
        ('{"time": 99999999999999}', 11),
    ],
)
def test_subscription_starts_at_its_starting_position(bench: Bench, position: str, first: int) -> None:
    """C6: a new subscription starts at a sequence, a time, or the earliest message."""
    bench.send(bench.numbers(1, 10, partitions=1), "prices")
    bench.drain("prices", "ck", subscription="s", startingPosition=position)
    bench.send(bench.numbers(11, 12, partitions=1), "prices")
    bench.drain("prices", "ck", subscription="s")
    assert bench.texts("out-ck") == list(range(first, 13))


def test_selector_leaves_other_messages_of_a_queue(bench: Bench) -> None:
    """C7: messages that do not match stay in a queue for others; a topic's subscription skips them."""
    frame = bench.numbers(1, 100).selectExpr(
        "text", "named_struct('color', if(text % 2 = 0, 'red', 'blue')) properties"
    )
    for destination in ("orders", "prices"):
        if destination == "prices":
            bench.drain("prices", "first", subscription="reds", selector="color = 'red'")
        bench.send(frame, destination)
    bench.drain("orders", "reds", selector="color = 'red'")
    assert bench.texts("out-reds") == list(range(2, 101, 2))
    assert bench.browse("orders").count() == 50
    assert bench.browse("orders", selector="color = 'blue'").count() == 50
    bench.drain("orders", "rest")
    assert bench.texts("out-rest") == list(range(1, 101, 2))
    bench.drain("prices", "first", subscription="reds", selector="color = 'red'")
    assert bench.texts("out-first") == list(range(2, 101, 2))
    assert bench.browse("prices", subscription="reds").count() == 0


def test_two_queries_share_a_queue(bench: Bench) -> None:
    """C9: two queries on one queue divide its members; together they get each message once."""
    queries = []
    for name in ("a", "b"):
        writer = bench.stream("orders", maxMessagesPerTrigger=100).writeStream.format(TABLES)
        queries.append(
            writer.option("checkpointLocation", str(bench.path / name)).start(str(bench.path / f"out-{name}"))
        )
    sent = 0
    while sent < 800 or (sent < 5000 and not all((bench.path / f"out-{name}" / LOG).exists() for name in "ab")):
        bench.send(bench.numbers(sent, sent + 99), "orders")  # until both have begun: a slow start is not a failure
        sent += 100
    wait(lambda: bench.browse("orders").count() == 0)
    for query in queries:
        query.stop()
        assert query.exception() is None
    both = [bench.texts(f"out-{name}") if (bench.path / f"out-{name}").exists() else [] for name in ("a", "b")]
    assert sorted(both[0] + both[1]) == list(range(sent))
    assert both[0]
    assert both[1]


def test_available_now_skips_messages_claimed_by_others(bench: Bench) -> None:
    """C6, C9: after a bounded wait the query ends and leaves the messages of another consumer's open claim."""
    from spark_jms.claims.batches.batch import ConsumerSettings
    from spark_jms.claims.consumers.subscriber import Subscriber
    from spark_jms.core.records.batch import Batch, Limits
    from spark_jms.store import open_store

    bench.send(bench.numbers(1, 100, partitions=1), "orders")  # 25 for each member, wherever the round robin begins
    with open_store(bench.domain.store_uri) as store:
        other = Subscriber(bench.domain, store, "orders", "-", "other", ConsumerSettings(replayable=False))
        claimed = other.next_batch(Batch("other"), Limits(max_messages=8))
        assert claimed is not None
        assert {m: pick.picks.count for m, pick in claimed.members.items()} == dict.fromkeys(range(4), 2)
        bench.drain("orders", "ck")
        got = bench.texts("out-ck")
        assert len(got) == 4 * 23  # no claimed message
        assert bench.browse("orders").count() == 100 - len(got)
        other.close()
    bench.drain("orders", "ck")
    assert bench.texts("out-ck") == list(range(1, 101))
    rows = bench.output("out-ck").where("JMSRedelivered").select("JMSXDeliveryCount").collect()
    assert [r.JMSXDeliveryCount for r in rows] == [2] * 8


def test_lost_messages_raise_data_loss_error_or_are_skipped(bench: Bench) -> None:
    """C5, C13: unread messages that were deleted raise a DataLossError, or are skipped if failOnDataLoss is false."""
    from spark_jms.log.upkeep.purge import purge

    for first in (1, 11, 21):
        bench.send(bench.numbers(first, first + 9, partitions=1), "jobs")
    log = bench.domain.log("jobs")
    purge(log, lambda subscription, member, sequences: sequences.last <= 10)
    with pytest.raises(StreamingQueryException, match="(?s)DataLossError: jobs/-/0: 10 message.*failOnDataLoss"):
        bench.drain("jobs", "ck")
    log.storage.delete(log.refresh().member_files(0).files[0].path)
    bench.drain("jobs", "ck", failOnDataLoss="false")
    assert bench.texts("out-ck") == list(range(21, 31))


def test_trigger_once_is_refused(bench: Bench) -> None:
    """C5: Trigger.Once would leave its last batch unacknowledged, so the error names the trigger to use."""
    writer = bench.stream("jobs").writeStream.format("noop").option("checkpointLocation", str(bench.path / "ck"))
    with pytest.raises(StreamingQueryException, match="(?s)TriggerError.*AvailableNow"):
        writer.trigger(once=True).start().awaitTermination()


def corrupt_last(folder: Path, text: str) -> None:
    last = max((p for p in folder.iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    lines = last.read_text().splitlines()
    last.write_text("\n".join([*lines[:-1], text]))
    (folder / f".{last.name}.crc").unlink(missing_ok=True)


def test_corrupt_offset_raises_offset_error(bench: Bench) -> None:
    """C5: a damaged offset in the Spark checkpoint is an OffsetError that says what to do."""
    bench.send(bench.numbers(1, 10), "jobs")
    bench.drain("jobs", "ck")
    corrupt_last(bench.path / "ck" / "offsets", '{"v":1,"consumer":5}')
    with pytest.raises(StreamingQueryException, match="(?s)OffsetError.*checkpoint"):
        bench.drain("jobs", "ck")


@pytest.mark.parametrize(
    ("destination", "options", "error"),
    [
        ("jobs", {"maxMessagesPerTrigger": "0"}, "OptionError: option maxMessagesPerTrigger is '0'"),
        ("jobs", {"columns": "text,nope"}, "OptionError: option columns is 'text,nope'"),
        ("jobs", {"selector": "color ="}, "InvalidSelectorError"),
        ("jobs", {"startingPosition": "latest"}, "OptionError: .*jobs is a queue"),
        ("prices", {}, "OptionError: prices is a topic: a consumer needs `subscription`"),
        ("prices", {"subscription": "s", "startingPosition": "noon"}, "OptionError: the starting position of prices"),
        ("jobs", {"maxTriggerDelay": "soon"}, "OptionError: option maxTriggerDelay is 'soon', but must be a duration"),
        ("missing", {}, "InvalidDestinationError: there is no destination 'missing'"),
    ],
)
def test_bad_option_raises_a_named_error(bench: Bench, destination: str, options: dict[str, str], error: str) -> None:
    """C6: a wrong option or destination fails the query at once with a named error."""
    with pytest.raises(Exception, match=f"(?s){error}"):
        bench.drain(destination, "ck", **options)


def test_task_finds_messages_that_compaction_moved(bench: Bench) -> None:
    """C13: a task whose files were replaced and deleted after planning reads the new files."""
    from spark_jms.log.upkeep.compaction import compact
    from spark_jms.spark.tasks import MemberPartition, read_partition

    for i in range(10):
        bench.send(bench.numbers(i, i, partitions=1), "jobs")
    from spark_jms.core.messages.ranges import Ranges

    log = bench.domain.log("jobs")
    files = [f.hint for f in log.refresh().member_files(0).files]
    compact(log)
    for file in files:
        log.storage.delete(file.path)
    partition = MemberPartition(bench.root, "jobs", 0, ("text",), Ranges.of((1, 10)), {}, files, True)
    texts = [t for b in read_partition(partition) for t in b.column("text").to_pylist()]
    assert texts == [str(i) for i in range(10)]


def test_query_without_its_checkpoint_is_a_new_consumer(bench: Bench) -> None:
    """C9: a query that lost its checkpoint is a new consumer, which receives the messages not yet acknowledged."""
    bench.send(bench.numbers(1, 10), "orders")
    bench.drain("orders", "ck")
    shutil.rmtree(bench.path / "ck")
    bench.send(bench.numbers(11, 12), "orders")
    bench.drain("orders", "ck", out="out2")
    assert bench.texts("out2") == [11, 12]
