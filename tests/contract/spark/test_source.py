"""The Spark source, driven by hand as Spark drives it: no session, no JVM (C5, C9, C10)."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_jms import apply, connect
from spark_jms.claims.batches import planner
from spark_jms.claims.records import members
from spark_jms.claims.upkeep import views
from spark_jms.core.records.batch import Batch
from spark_jms.errors import (
    DataLossError,
    InvalidClientIDException,
    InvalidDestinationError,
    OffsetError,
    OptionError,
    StaleCheckpointError,
    SubscriptionInUseError,
    TriggerError,
)
from spark_jms.log.destinations.declarations import drop_subscription
from spark_jms.log.destinations.domain import Domain
from spark_jms.settings.types import Use
from spark_jms.spark import source as source_module
from spark_jms.spark.browser import JmsqReader
from spark_jms.spark.options import check_streaming, parse_options
from spark_jms.spark.source import JmsqStreamReader
from spark_jms.spark.tasks import MemberPartition, SmallBatchPartition, read_partition
from spark_jms.testing import memory_domain, wait_until

LIMIT = ReadMaxRows(1000)
ONE = {"maxMessagesPerTrigger": "1"}
Offset = dict[str, Any]


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain("file", orders="queue", prices="topic") as where:
        yield where


def reader(root: str, destination: str = "orders", **options: str) -> JmsqStreamReader:
    return JmsqStreamReader(parse_options({"root": root, "destination": destination, **options}))


def send(root: str, *texts: str, to: str = "orders") -> None:
    with connect(root, housekeeping=False) as context:
        context.producer(to).send_many({"text": text} for text in texts)


def rows(source: JmsqStreamReader, start: Offset, end: Offset) -> list[tuple[str, int]]:
    """Text and delivery count of every message that the tasks of this batch read."""
    out = []
    for partition in source.partitions(start, end):
        for batch in read_partition(partition):  # type: ignore[arg-type]
            out += [(r["text"], r["JMSXDeliveryCount"]) for r in batch.to_pylist()]
    return out


def first_batch(source: JmsqStreamReader) -> Offset:
    """The initial offset, as Spark logs it with the first batch."""
    start = source.initialOffset()
    assert source.latestOffset(start, LIMIT) == start
    assert rows(source, start, start) == []
    return start


# -- tasks ---------------------------------------------------------------------------------------------------------------
def test_small_files_are_delivered_in_one_batch(root: str) -> None:
    """C5: a task gets one batch, in order, for any number of sends; large files have batches of their own."""
    with connect(root, housekeeping=False) as context:
        producer = context.producer("orders")
        for number in range(20):
            producer.send(text=str(number))
        producer.send(text="x" * (3 << 19))
        producer.send(text="y" * (3 << 19))
        producer.send(text="last")
    source = reader(root)
    start = first_batch(source)
    (partition,) = source.partitions(start, source.latestOffset(start, LIMIT))
    batches = list(read_partition(partition))  # type: ignore[arg-type]
    assert [batch.num_rows for batch in batches] == [21, 1, 1]
    assert [row["sequence"] for batch in batches for row in batch.to_pylist()] == list(range(1, 24))
    assert [row["text"] for row in batches[0].to_pylist()[:20]] == [str(number) for number in range(20)]
    source.stop()


@pytest.mark.parametrize(("messages", "tasks"), [(100, 1), (101, 3)])
def test_a_hundred_messages_are_one_task_by_default(messages: int, tasks: int) -> None:
    """C4: more have a task for each member."""
    with memory_domain("file", orders={"kind": "distributed-queue", "members": 3}) as root:
        source = reader(root)
        start = first_batch(source)
        send(root, *map(str, range(messages)))
        assert len(source.partitions(start, source.latestOffset(start, LIMIT))) == tasks
        source.stop()


def test_commit_of_this_host_ends_the_wait_for_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C6: the source waits for the news of the log, not for the next of many looks."""
    root = str(tmp_path)
    apply(root, {"destinations": {"orders": {"kind": "queue"}}})
    source = reader(root)
    start = first_batch(source)
    assert source.latestOffset(start, LIMIT) == start  # opened, and nothing there
    monkeypatch.setattr(source_module, "_POLL_S", 100.0)
    monkeypatch.setattr(source_module, "IDLE_WAIT_S", 100.0)
    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(source.latestOffset, start, LIMIT)
        send(root, "a")
        assert rows(source, start, end.result(50)) == [("a", 1)]  # before the next look
    source.stop()


class Clock:
    """Time that passes where the test or a sleep of the source lets it."""

    def __init__(self) -> None:
        self.now_s, self.slept_s = 1000.0, 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.slept_s += seconds


@pytest.mark.parametrize(
    ("options", "took_s", "rest_s"),
    [
        ({}, 0.1, 0.15),
        ({}, 0.2, 0.05),
        ({}, 3.0, 0.0),
        ({"batchPace": "1 s"}, 0.2, 0.8),
        ({"batchPace": "0"}, 0.1, 0.0),
        ({"maxMessagesPerTrigger": "3"}, 0.1, 0.15),
        ({"maxMessagesPerTrigger": "2"}, 0.1, 0.0),
        ({"maxBytesPerTrigger": "1000000"}, 0.1, 0.0),
        ({"minMessagesPerTrigger": "1"}, 0.1, 0.0),
        ({"maxTriggerDelay": "1 s"}, 0.1, 0.0),
    ],
)
def test_query_rests_after_a_batch(
    root: str, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], took_s: float, rest_s: float
) -> None:
    """T13, C6: until batchPace has passed since its claim; not where the query says when batches are made, and not while a limit
    leaves messages."""
    clock = Clock()
    monkeypatch.setattr(source_module, "time", clock)
    source = reader(root, **options)
    start = first_batch(source)
    send(root, "a", "b")
    first = source.latestOffset(start, LIMIT)
    assert clock.slept_s == 0  # the first batch
    clock.now_s += took_s
    send(root, "c", "d")
    second = source.latestOffset(first, LIMIT)
    assert clock.slept_s == pytest.approx(rest_s)
    assert [text for text, _ in rows(source, first, second)] == ["c", "d"]
    source.stop()


@settings(max_examples=20)
@given(st.floats(0, 10), st.integers(0, 10_000))
def test_query_claims_at_most_once_in_its_pace(took_s: float, pace_ms: int) -> None:
    """T13: a rest ends with the pace, and a slower batch has none."""
    clock = Clock()
    with memory_domain("file", orders={"kind": "queue"}) as root, pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_module, "time", clock)
        source = reader(root, batchPace=f"{pace_ms} ms")
        start = first_batch(source)
        send(root, "a")
        first = source.latestOffset(start, LIMIT)
        clock.now_s += took_s
        send(root, "b")
        assert source.latestOffset(first, LIMIT) != first
        assert clock.slept_s >= 0
        assert took_s + clock.slept_s == pytest.approx(max(took_s, pace_ms / 1000))
        source.stop()


def after_a_batch(root: str, monkeypatch: pytest.MonkeyPatch) -> tuple[JmsqStreamReader, Clock, Offset]:
    """A query that claimed a message 0.1 s ago, and its offset."""
    clock = Clock()
    monkeypatch.setattr(source_module, "time", clock)
    source = reader(root)
    start = first_batch(source)
    send(root, "a")
    first = source.latestOffset(start, LIMIT)
    clock.now_s += 0.1
    return source, clock, first


@pytest.mark.parametrize(("preference", "rest_s"), [(0, 0.0), (25, 0.15), (50, 0.0)])
def test_query_keeps_its_pace_with_one_preference(
    monkeypatch: pytest.MonkeyPatch, preference: int, rest_s: float
) -> None:
    """T13: the other preferences say themselves how long a message waits."""
    with memory_domain("file", orders={"kind": "queue", "messaging_performance_preference": preference}) as root:
        source, clock, first = after_a_batch(root, monkeypatch)
        send(root, "b")
        assert source.latestOffset(first, LIMIT) != first
        assert clock.slept_s == pytest.approx(rest_s)
        source.stop()


def test_query_does_not_rest_after_a_time_without_messages(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T13: the first message after an idle time is not held up."""
    monkeypatch.setattr(source_module, "IDLE_WAIT_S", 0.0)
    source, clock, first = after_a_batch(root, monkeypatch)
    assert source.latestOffset(first, LIMIT) == first
    assert clock.slept_s == pytest.approx(0.15)  # Spark's last batch ended just now
    clock.now_s += 0.1
    send(root, "b")
    assert source.latestOffset(first, LIMIT) != first
    assert clock.slept_s == pytest.approx(0.15)
    source.stop()


def test_small_batch_is_one_task() -> None:
    """C4, C5: with smallBatchMessages, up to so many messages are one partition, which has the members one after the other."""
    with memory_domain("file", orders={"kind": "distributed-queue", "members": 3}) as root:
        source = reader(root, smallBatchMessages="6")
        start = first_batch(source)
        for texts, tasks in ((("1", "2", "3", "4", "5", "6"), 1), (tuple("abcdefg"), 3), (("last",), 1)):
            send(root, *texts)
            end = source.latestOffset(start, LIMIT)
            partitions = pickle.loads(pickle.dumps(source.partitions(start, end)))
            assert len(partitions) == tasks
            assert [type(partition) for partition in partitions] == [
                SmallBatchPartition if len(texts) == 6 else MemberPartition
            ] * tasks
            read = [row for part in partitions for batch in source.read(part) for row in batch.to_pylist()]
            assert sorted(row["text"] for row in read) == sorted(texts)
            places = [(row["member"], row["sequence"]) for row in read]
            assert places == sorted(places)
            start = end
        source.stop()


def test_loaded_modules_are_frozen_after_each_task(root: str) -> None:
    """C5: PySpark's daemon collects garbage after each task; it does not scan the modules that are loaded for good."""
    send(root, "a")
    program = (
        "import gc, sys\n"
        "start = gc.get_freeze_count()\n"  # 0, but not in every Python
        "from spark_jms.spark.browser import JmsqReader\n"
        "from spark_jms.spark.options import parse_options\n"
        "reader = JmsqReader(parse_options({'root': sys.argv[1], 'destination': 'orders'}))\n"
        "before = gc.get_freeze_count()\n"
        "for partition in reader.partitions():\n"
        "    assert sum(batch.num_rows for batch in reader.read(partition)) == 1\n"
        "    print(before == start, gc.get_freeze_count() - start > 10_000)\n"
        "kept = gc.get_freeze_count()\n"
        "for partition in reader.partitions():\n"
        "    list(reader.read(partition))\n"
        "print(gc.get_freeze_count() <= kept)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, root], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["True"] * 3, done.stdout + done.stderr


# -- the first offset ----------------------------------------------------------------------------------------------------
def test_first_batch_claims_nothing(root: str) -> None:
    """C5, C9: a query that dies before Spark logs its first offset leaves no claim in doubt; the next one gets all
    messages, unflagged."""
    send(root, "a", "b")
    ghost = reader(root)
    ghost.latestOffset(ghost.initialOffset(), LIMIT)
    ghost.stop()  # Spark never logged its offset
    domain = Domain(root)
    with views.opened_store(domain) as store:
        assert views.claims(domain, store, "orders") == []
    source = reader(root)
    start = first_batch(source)
    end = source.latestOffset(start, LIMIT)
    assert rows(source, start, end) == [("a", 1), ("b", 1)]
    source.stop()


def test_unlogged_first_claim_is_made_again(root: str) -> None:
    """C5, C9: a restarted query drops the claim that Spark did not log and makes it again: at once and unflagged."""
    send(root, "a")
    dying = reader(root)
    start = first_batch(dying)
    claimed = dying.latestOffset(start, LIMIT)
    dying.stop()
    again = reader(root)
    end = again.latestOffset(start, LIMIT)
    assert Batch.from_json(end).consumer == Batch.from_json(claimed).consumer
    assert end["claim"] != claimed["claim"]
    assert rows(again, start, end) == [("a", 1)]
    again.stop()


# -- restored checkpoints ------------------------------------------------------------------------------------------------
def test_stale_checkpoint_is_refused(root: str) -> None:
    """C5, C9: an idempotent sink would drop the next batches as duplicates, so the source delivers none."""
    send(root, *"abcdef")
    source = reader(root, **ONE)
    offsets = [first_batch(source)]
    for _ in range(4):
        end = source.latestOffset(offsets[-1], LIMIT)
        assert len(rows(source, offsets[-1], end)) == 1
        offsets.append(end)
    source.stop()  # the last batch is in the commit log, but not acknowledged yet
    for old in offsets[:3]:
        restored = reader(root, **ONE)
        with pytest.raises(StaleCheckpointError, match="has acknowledged claim 3-"):
            restored.latestOffset(old, LIMIT)
        restored.stop()
    for expected in "de":  # Spark may begin after its last committed batch, acknowledged or not
        again = reader(root, **ONE)
        end = again.latestOffset(offsets[-1] if expected == "e" else offsets[3], LIMIT)
        assert rows(again, offsets[3], end) == [(expected, 1)]
        if expected == "d":
            offsets[-1] = end
        again.stop()


def test_checkpoint_without_claim_numbers_is_accepted(root: str) -> None:
    """C16: checkpoints of old versions name claims without numbers."""
    send(root, *"ab")
    source = reader(root, **ONE)
    start = first_batch(source)
    first = source.latestOffset(start, LIMIT)
    source.latestOffset(first, LIMIT)
    source.stop()
    again = reader(root, **ONE)
    assert again.latestOffset({**first, "claim": "0123456789abcdef"}, LIMIT)["claim"].startswith(
        "3-"
    )  # never used before
    again.stop()


def test_asynchronous_progress_is_refused() -> None:
    """C5: the source refuses the sink's option asyncProgressTrackingEnabled, and ignores related options while it is off."""
    given = {"root": "/", "destination": "orders", "asyncProgressTrackingCheckpointIntervalMs": "5"}
    assert parse_options({**given, "asyncProgressTrackingEnabled": "false"}).destination == "orders"
    with pytest.raises(TriggerError, match="asyncProgressTrackingEnabled"):
        parse_options({**given, "asyncProgressTrackingEnabled": "true"})


# -- damaged checkpoints -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("damage", "kind", "said"),
    [
        (lambda text: '{"orders": {"0": 17}}', OffsetError, "is not one of spark-jms"),
        (lambda text: "null", OffsetError, "is not one of spark-jms"),
        (lambda text: text.replace('"consumer"', '"consumr"'), OffsetError, "is not one of spark-jms"),
        (lambda text: text.replace('"members": {', '"members": {"x": 1'), OffsetError, "is damaged"),
        (lambda text: text[: len(text) // 2], json.JSONDecodeError, "line 1 column"),
        (lambda text: "%PDF-1.4", json.JSONDecodeError, "line 1 column"),
    ],
    ids=["another source", "null", "another key", "another value", "truncated", "not JSON"],
)
def test_damaged_offset_of_a_checkpoint(
    root: str, damage: Callable[[str], str], kind: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5: JSON that is not our offset is OffsetError. PySpark's worker parses it before it asks the source, so what is not
    JSON is PySpark's error: docs/OPERATING.md names it."""
    from pyspark.serializers import write_with_length
    from pyspark.sql.streaming import python_streaming_source_runner as runner

    source = reader(root)
    text = json.dumps(first_batch(source))
    asked: list[object] = []
    latest_offset = source.latestOffset
    monkeypatch.setattr(source, "latestOffset", lambda *given: asked.append(given) or latest_offset(*given))
    request = io.BytesIO()
    for part in (damage(text), json.dumps({"_type": "ReadMaxRows", "max_rows": 10})):
        write_with_length(part.encode(), request)
    request.seek(0)
    with pytest.raises(kind, match=said):
        runner.latest_offset_admission_control_func(source, request, io.BytesIO())
    assert bool(asked) == (kind is OffsetError)
    source.stop()


# -- options that do not apply -------------------------------------------------------------------------------------------
def test_subscription_of_a_queue_is_refused(root: str) -> None:
    """C10: for a new query and for one that continues from its checkpoint; nothing is consumed."""
    send(root, "a")
    source = reader(root)
    start = first_batch(source)
    source.stop()
    with pytest.raises(InvalidDestinationError, match="orders is a queue and has no subscription 's': leave"):
        reader(root, subscription="s").initialOffset()
    with pytest.raises(InvalidDestinationError, match="orders is a queue and has no subscription 's'"):
        reader(root, subscription="s").latestOffset(start, LIMIT)
    with connect(root, housekeeping=False) as context:
        assert [message.text for message in context.browser("orders")] == ["a"]


@pytest.mark.parametrize("view", ["messages", "claims", "acknowledgements", "subscriptions"])
def test_views_refuse_the_subscription_of_a_queue(root: str, view: str) -> None:
    """C10, C13, C16: instead of showing what all consumers share."""
    options = parse_options({"root": root, "destination": "orders", "view": view, "subscription": "s"})
    with pytest.raises(InvalidDestinationError, match="orders is a queue and has no subscription 's'"):
        JmsqReader(options).partitions()


@pytest.mark.parametrize(
    ("view", "option", "value"),
    [("all", "subscription", "s")]
    + [
        (view, *option)
        for view in ("claims", "subscriptions", "acknowledgements")
        for option in (("selector", "a = 1"), ("columns", "text"))
    ],
)
def test_views_refuse_options_they_do_not_use(root: str, view: str, option: str, value: str) -> None:
    """C1, C13, C16"""
    options = parse_options({"root": root, "destination": "prices", "view": view, option: value})
    with pytest.raises(OptionError, match=f"option {option} is '{value}', but the view '{view}' does not use it"):
        JmsqReader(options)


def test_streams_refuse_views(root: str) -> None:
    """C1, C13: a stream consumes, a view only shows."""
    with pytest.raises(OptionError, match=r"option view is 'all', which a streaming read does not have"):
        check_streaming(parse_options({"root": root, "destination": "prices", "view": "all"}, Use.READ_STREAM))


# -- dropped subscriptions -----------------------------------------------------------------------------------------------
def test_dropped_subscription_is_a_data_loss(root: str) -> None:
    """C10, C13: a query that continues from its checkpoint raises DataLossError; with failOnDataLoss=false it continues with
    a new subscription."""
    options = {"subscription": "s", "startingPosition": "earliest"}
    source = reader(root, "prices", **options)
    start = first_batch(source)
    send(root, "a", to="prices")
    end = source.latestOffset(start, LIMIT)
    assert rows(source, start, end) == [("a", 1)]
    source.stop()
    table = Domain(root).log("prices")
    assert drop_subscription(table, "s")
    send(root, "b", to="prices")
    for offset in (start, end):
        with pytest.raises(DataLossError, match="subscription 's' of topic prices was dropped"):
            reader(root, "prices", **options).latestOffset(offset, LIMIT)
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        reader(root, "prices", **options).partitions(start, end)
    assert table.refresh().destination.subscriptions == {}
    again = reader(root, "prices", **options, failOnDataLoss="false")
    assert rows(again, end, again.latestOffset(end, LIMIT))[-1] == ("b", 1)
    again.stop()


def test_replayed_batch_of_a_dropped_subscription_says_why_it_is_empty(
    root: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C9, C10: with failOnDataLoss=false the query continues, and the warning names the cause."""
    options = {"subscription": "s", "startingPosition": "earliest", "failOnDataLoss": "false"}
    source = reader(root, "prices", **options)
    start = first_batch(source)
    send(root, "a", to="prices")
    end = source.latestOffset(start, LIMIT)
    source.stop()
    with connect(root, housekeeping=False) as context:
        context.unsubscribe("prices", "s")
    again = reader(root, "prices", **options)
    assert again.partitions(start, end) == []
    assert any("left out" in line and "the subscription was dropped" in line for line in caplog.messages)
    again.stop()


# -- Trigger.AvailableNow ------------------------------------------------------------------------------------------------
def test_available_now_searches_the_whole_backlog(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C6, C7: Trigger.AvailableNow continues when a plan stops at its bound."""
    monkeypatch.setattr(planner, "MAX_ROWS_READ", 5)
    for n in range(8):
        send(root, *(f"{n}-{i}" for i in range(4)))
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send(text="it", properties={"wanted": True})
        source = reader(root, selector="wanted")
        start = first_batch(source)
        source.prepareForTriggerAvailableNow()
        context.producer("orders").send(text="later", properties={"wanted": True})
        end = source.latestOffset(start, LIMIT)
        assert rows(source, start, end) == [("it", 1)]
        assert source.latestOffset(end, LIMIT) == end
        source.stop()


# -- subscriptions -------------------------------------------------------------------------------------------------------
def test_exclusive_query_excludes_others(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C10: subscriptionSharing; an ended query frees the subscription, and a waiting one gets it."""
    monkeypatch.setattr(members, "OPEN_TIMEOUT_S", 0.0)
    prices = {"destination": "prices", "subscription": "s"}
    first, second = reader(root, **prices, subscriptionSharing="Exclusive"), reader(root, **prices)
    first.latestOffset(first_batch(first), LIMIT)
    start = first_batch(second)
    with pytest.raises(SubscriptionInUseError, match="an exclusive consumer already"):
        second.latestOffset(start, LIMIT)
    with connect(root, housekeeping=False) as context, pytest.raises(SubscriptionInUseError):
        context.consumer("prices", subscription="s")
    first.stop()
    send(root, "x", to="prices")
    assert rows(second, start, second.latestOffset(start, LIMIT)) == [("x", 1)]
    second.stop()
    with pytest.raises(OptionError, match="subscriptionSharing and clientId are for a topic's subscription"):
        reader(root, subscriptionSharing="exclusive").initialOffset()


def test_query_has_a_client_id(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C10: a restricted one is its own while it lives; the subscription belongs to it and its policy."""
    monkeypatch.setattr(members, "OPEN_TIMEOUT_S", 0.0)
    named = {"destination": "prices", "subscription": "s", "clientId": "app"}
    first, second = reader(root, **named), reader(root, **named)
    first.latestOffset(first_batch(first), LIMIT)
    start = first_batch(second)
    with pytest.raises(InvalidClientIDException, match="'app' is in use"):
        second.latestOffset(start, LIMIT)
    many = [reader(root, **named, clientIdPolicy="unrestricted") for _ in range(2)]
    for one in many:
        one.latestOffset(first_batch(one), LIMIT)
    assert sorted(Domain(root).log("prices").refresh().destination.subscriptions) == ["app::s", "app:s"]
    send(root, "x", to="prices")
    browsed = JmsqReader(parse_options({"root": root, **named, "columns": "text"}))
    assert len(browsed.partitions()) == 1
    for one in (first, second, *many):
        one.stop()
    with pytest.raises(OptionError, match="clientId"):
        reader(root, clientId="app").initialOffset()
    with pytest.raises(OptionError, match="subscription"):
        reader(root, destination="prices", subscription="app:s").initialOffset()


# -- progress ------------------------------------------------------------------------------------------------------------
def test_lag_of_a_selector_counts_what_is_for_it(root: str) -> None:
    """C6, C7: a query with a selector that has taken all it wants is not behind; what it refuses stands apart."""
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send_many({"text": str(n), "properties": {"n": n}} for n in range(10))
    source = reader(root, selector="n < 3")
    start = first_batch(source)
    end = source.latestOffset(start, LIMIT)
    assert len(rows(source, start, end)) == 3
    assert source.reportLatestOffset() == {"backlog": 3, "refused": 7, "members": {"0": 3}}
    assert source.latestOffset(end, LIMIT) == end
    assert source.reportLatestOffset() == {"backlog": 0, "refused": 7, "members": {"0": 0}}
    with connect(root, housekeeping=False) as context, context.consumer("orders") as consumer:
        wait_until(lambda: (message := consumer.receive(0.1)) is not None and not message.acknowledge())
    assert source.reportLatestOffset() == {"backlog": 0, "refused": 6, "members": {"0": 0}}
    source.stop()
