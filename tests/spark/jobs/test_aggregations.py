"""Quotas' usage and expiration as streaming aggregations over the change feed (T3, T6, M12)."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import duckdb
import pyarrow as pa
from pyspark.sql import functions as f

from spark_jms import connect
from spark_jms.admin.services import EXPIRATION, USAGE, ServiceRunner
from spark_jms.admin.statistics import collect
from spark_jms.claims.failures.due_expiration import EmbeddedExpiration, ExpirationProblems
from spark_jms.claims.upkeep.usage_history import UsageHistory, UsageSink
from spark_jms.claims.upkeep.views import opened_store
from spark_jms.core.changes.change import MESSAGES, SENT, FeedPosition
from spark_jms.core.changes.usage_fold import MinuteUsage, UsageBatch, UsageFold
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.jobs.expiration import DUE, start_expiration
from spark_jms.jobs.services import DomainQueries, ServiceQueries, query_session, reason
from spark_jms.jobs.usage import RUN_FILE, batch_of, start_usage, usage_by_minute
from spark_jms.log.changes.feed import ChangeFeed
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.usage_history import UsageHistoryTable
from spark_jms.testing import wait_until

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

    from tests.spark.conftest import Bench

LIMIT_S = 60


def plan_of(query: StreamingQuery) -> str:
    with redirect_stdout(io.StringIO()) as text:
        query.explain()
    return text.getvalue()


def check_source(bench: Bench, query: StreamingQuery) -> None:
    """It is one, of Python, and its offsets are positions of the change feed in the tables of this domain."""
    assert "rate" not in plan_of(query).lower().replace("separate", "")
    (source,) = query.recentProgress[-1].sources
    assert "PythonMicroBatchStream" in source.description
    tables = FeedPosition.from_text(source.endOffset).tables
    assert bench.domain.log("orders").refresh().table_id in tables


@contextmanager
def usage_query(bench: Bench, checkpoint: str = "usage") -> Iterator[StreamingQuery]:
    with opened_store(bench.domain) as store:
        sink = UsageSink(Domain(bench.root), store)
        query = start_usage(query_session(bench.spark), bench.domain, sink, str(bench.path / checkpoint), 0.2)
        try:
            yield query
        finally:
            query.stop()


@contextmanager
def expiration_query(bench: Bench, checkpoint: str = "expiration") -> Iterator[StreamingQuery]:
    query = start_expiration(query_session(bench.spark), bench.root, str(bench.path / checkpoint), 0.5)
    try:
        yield query
    finally:
        query.stop()


def act(bench: Bench, each: int) -> None:
    """Something of what happens to messages: sent in several minutes, acknowledged by a client, expired, left."""
    with connect(bench.root, housekeeping=False) as context:
        context.producer("orders").send_many({"text": f"{n}"} for n in range(3 * each))
        with context.consumer("orders") as consumer:
            for _ in range(each):
                message = consumer.receive(timeout=10)
                assert message is not None
                message.acknowledge()
        for name in ("a", "b"):
            context.consumer("prices", subscription=name).close()
        context.producer("prices").send_many({"text": f"{n}"} for n in range(each))
        with context.consumer("prices", subscription="a") as consumer:
            message = consumer.receive(timeout=10)
            assert message is not None
            message.acknowledge()


def recount(bench: Bench, name: str) -> tuple[int, int]:
    """Messages and acknowledgements of a destination, straight from its files."""
    tables = (bench.domain.log(name), bench.domain.acknowledgements(name))
    found = []
    for log, what in zip(tables, ("count(*)", "coalesce(sum(messages), 0)"), strict=True):
        files = [f"{log.storage.uri}/{path}" for path in log.refresh().files]
        row = duckdb.execute(f"SELECT {what} FROM read_parquet({files})").fetchone() if files else (0,)
        assert row is not None
        found.append(int(row[0]))
    return found[0], found[1]


def recorded(bench: Bench, name: str) -> tuple[int, int]:
    rows = UsageHistoryTable(Domain(bench.root)).read([name])
    return sum(row.sent for row in rows), sum(row.finished for row in rows)


def test_usage_is_the_state_of_an_aggregation_over_the_tables(bench: Bench) -> None:
    """T3, M12: the source is jmsq, the operator a stateful aggregate; its sums equal a recount from the files, before and after a
    restart, a batch that is repeated, and a lost checkpoint; no row is dropped by the watermark."""
    act(bench, 4)

    def equal() -> bool:
        return all(recorded(bench, name) == recount(bench, name) for name in ("orders", "prices"))

    with usage_query(bench) as query:
        wait_until(equal, LIMIT_S, lambda: f"{recorded(bench, 'orders')} {recount(bench, 'orders')} {reason(query)}")
        plan = plan_of(query)
        assert "StateStoreSave" in plan
        assert "HashAggregate" in plan
        wait_until(lambda: any(one.numInputRows for one in query.recentProgress), LIMIT_S)
        progress = [one for one in query.recentProgress if one.numInputRows]
        check_source(bench, query)
        (operator,) = progress[-1].stateOperators
        assert operator.operatorName == "stateStoreSave"
        assert operator.numRowsTotal > 0
        assert sum(one.stateOperators[0].numRowsDroppedByWatermark for one in query.recentProgress) == 0
        owner = UsageHistoryTable(bench.domain).known().owner
        act(bench, 2)
        wait_until(equal, LIMIT_S, lambda: f"{recorded(bench, 'orders')} {recount(bench, 'orders')} {reason(query)}")
    commits = sorted((bench.path / "usage" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()  # as if it was killed between the sink and its commit
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    act(bench, 1)
    with usage_query(bench) as query:
        wait_until(equal, LIMIT_S, lambda: f"{recorded(bench, 'orders')} {recount(bench, 'orders')} {reason(query)}")
    assert UsageHistoryTable(bench.domain).known().owner == owner
    act(bench, 1)
    with usage_query(bench, "another checkpoint") as query:
        wait_until(equal, LIMIT_S, lambda: f"{recorded(bench, 'orders')} {recount(bench, 'orders')} {reason(query)}")
    assert UsageHistoryTable(bench.domain).known().owner != owner
    act(bench, 1)
    with usage_query(bench) as older:
        wait_until(lambda: older.exception() is not None, LIMIT_S)
        assert reason(older).startswith("UsageRunReplacedError: ")
    assert recorded(bench, "orders")[0] == recount(bench, "orders")[0] - 3, "the older run ends by name"


def test_checkpoint_that_lacks_its_run_begins_again(bench: Bench) -> None:
    """T3: the file was torn by a kill, or lost, and the state would be another run's: nothing is counted twice."""
    act(bench, 3)
    owners, file = [], bench.path / "usage" / RUN_FILE
    for damage in ("", "torn", "lost"):
        if damage == "torn":
            file.write_bytes(b'{"v": 1, "ru')
        elif damage == "lost":
            file.unlink()
        with usage_query(bench) as query:
            wait_until(lambda: recorded(bench, "orders") == recount(bench, "orders"), LIMIT_S, lambda: reason(query))
            act(bench, 1)
            wait_until(lambda: recorded(bench, "orders") == recount(bench, "orders"), LIMIT_S, lambda: reason(query))
        owners.append(UsageHistoryTable(bench.domain).known().owner)
    assert len({*owners}) == 3


def test_both_engines_have_the_same_totals(bench: Bench) -> None:
    """T3, M12: the aggregation in SQL and the fold of the embedded engine, over the same feed."""
    act(bench, 5)
    fold = UsageFold().batch(ChangeFeed(bench.domain))
    times = {name: f.unix_millis(name) for name in ("read_hour", "minute")}
    rows = usage_by_minute(bench.browse("*", view="changes")).withColumns(times).collect()
    batch = batch_of(row.asDict() for row in rows)

    def whole(of: UsageBatch) -> dict[tuple[object, ...], MinuteUsage]:
        """Whatever hour it was read in."""
        return {key[1:]: usage for key, usage in of.totals.items()}

    assert whole(batch) == whole(fold)
    assert batch.end == fold.end
    assert len(batch.totals) >= 2


def send_over(bench: Bench, name: str, count: int, over_ms: int = 90_000) -> None:
    """Messages whose time was over so long ago."""
    with connect(bench.root, housekeeping=False) as context:
        over = pa.repeat(pa.scalar(now_ms() - over_ms, pa.int64()), count)
        context.producer(name).send_table(pa.table({"text": ["x"] * count, "JMSExpiration": over}))


def expired(bench: Bench, name: str) -> int:
    with opened_store(bench.domain) as store:
        return collect(bench.domain, store, name).expired


def test_messages_that_fall_due_are_the_state_of_an_operator(bench: Bench) -> None:
    """T6, M12: three policies, of queues and of both subscriptions of a topic; timers that were due while no query ran fire without
    news; each message expires once, also when the checkpoint is lost."""
    policies = {"orders": "Discard", "prices": "Redirect", "small": "Log"}
    declared = [bench.domain.log(name).refresh().destination for name in policies]
    changed = [attrs.evolve(one, expiration_policy=policies[one.name], error_destination="jobs") for one in declared]
    apply_destinations(bench.domain, changed, lambda name, member: False)
    with connect(bench.root, housekeeping=False) as context:
        for name in ("a", "b"):
            context.consumer("prices", subscription=name).close()
        context.producer("orders").send(text="stays")
        context.producer("orders").send(text="stays for now", time_to_live="1 h")
    for name, count in (("orders", 3), ("prices", 2), ("small", 1)):
        send_over(bench, name, count)

    def every() -> tuple[int, ...]:
        return tuple(expired(bench, name) for name in policies)

    with expiration_query(bench) as query:
        wait_until(lambda: every() == (3, 4, 1), LIMIT_S, lambda: f"{every()} {reason(query)}")
        plan = plan_of(query)
        assert "TransformWithState" in plan
        wait_until(lambda: len(query.recentProgress) >= 2, LIMIT_S)
        progress = query.recentProgress
        check_source(bench, query)
        operators = [one.stateOperators[0] for one in progress]
        assert {one.operatorName for one in operators} == {"transformWithStateInPandasExec"}
        assert operators[-1].numRowsTotal > 0
        assert sum(one.customMetrics["numRegisteredTimers"] for one in operators) > 0
        # Spark 4.2 deletes a timer that has fired, and counts that; `numExpiredTimers` is counted by its Scala operator alone
        assert sum(one.customMetrics["numDeletedTimers"] for one in operators) > 0
        assert sum(one.numRowsDroppedByWatermark for one in operators) == 0
        assert sum(one.observedMetrics[DUE].messages or 0 for one in progress) >= 6, "what timers have handed over"
    send_over(bench, "orders", 4)
    with expiration_query(bench) as query:
        wait_until(lambda: every() == (7, 4, 1), LIMIT_S, lambda: f"{every()} {reason(query)}")
    send_over(bench, "orders", 1)
    with expiration_query(bench, "another checkpoint") as query:
        wait_until(lambda: every() == (8, 4, 1), LIMIT_S, lambda: f"{every()} {reason(query)}")
        assert query.exception() is None
    with opened_store(bench.domain) as store:
        assert collect(bench.domain, store, "orders").backlog == 2
        assert collect(bench.domain, store, "jobs").backlog == 4


def test_both_engines_end_the_same_messages(bench: Bench) -> None:
    """T3, T6: on two copies of one domain, with Spark and without: the same messages end, by member, subscription and detail, and the
    usage histories have the same sums and positions."""
    policies = {"orders": "Discard", "prices": "Redirect", "small": "Log"}
    declared = [bench.domain.log(name).refresh().destination for name in policies]
    changed = [attrs.evolve(one, expiration_policy=policies[one.name], error_destination="jobs") for one in declared]
    apply_destinations(bench.domain, changed, lambda name, member: False)
    with connect(bench.root, housekeeping=False) as context:
        context.consumer("prices", subscription="a").close()
        context.consumer("prices", subscription="red", selector="color = 'red'").close()
    for turn in range(3):
        for name in policies:
            over = [now_ms() + ms for ms in (-600_000, -90_000 - turn, 3_600_000)]
            with connect(bench.root, housekeeping=False) as context:
                context.producer(name).send_table(pa.table({"text": ["x"] * 3, "JMSExpiration": over}))
                context.producer(name).send(text="stays", properties={"color": "red"})
    copy = str(bench.path / "copy")
    shutil.copytree(bench.root, copy)
    with opened_store(Domain(copy)) as store:
        assert EmbeddedExpiration(Domain(copy), store).run() == (18, {})
        assert UsageHistory(Domain(copy), store).record(Domain(copy).destinations())[1] == {}
    with expiration_query(bench) as query:
        wait_until(
            lambda: ended(bench.root) == ended(copy),
            LIMIT_S,
            lambda: f"{ended(bench.root)} {ended(copy)} {reason(query)}",
        )
    with usage_query(bench) as query:
        wait_until(
            lambda: history(bench.root) == history(copy), LIMIT_S, lambda: f"{history(bench.root)} {reason(query)}"
        )
    assert sum(count for count, _ in ended(copy).values()) == 18


def ended(root: str) -> dict[tuple[object, ...], tuple[int, str]]:
    """How many messages have ended in each way, and which."""
    found: dict[tuple[object, ...], tuple[int, Ranges]] = {}
    for one in ChangeFeed(Domain(root)):
        if one.kind != SENT:
            key = (one.kind, one.destination, one.member, one.subscription, one.consumer, one.detail)
            count, picks = found.get(key, (0, EMPTY))
            found[key] = (count + (one.messages or 0), picks | Ranges.from_json(json.loads(one.ranges or "[]")))
    return {key: (count, str(picks)) for key, (count, picks) in found.items()}


def history(root: str) -> tuple[object, object]:
    """How many messages of each member it has, and its sums by destination without the minutes."""
    table, found = UsageHistoryTable(Domain(root)), dict[str, list[int]]()
    for row in table.read(Domain(root).destinations()):
        counts = (row.sent, row.finished, row.expired, row.dropped)
        found[row.destination] = [a + b for a, b in zip(found.get(row.destination, [0] * 4), counts, strict=True)]
    return {place: to for place, to in table.known().positions.items() if to and place.what == MESSAGES}, found


def test_damaged_data_file_stops_no_other(bench: Bench) -> None:
    """C13, T3, T6: both queries run on and the same ones to the end; the destination is named while its files are damaged, and its
    messages count and expire once they are restored."""
    over = [now_ms() + ms for ms in (-600_000, -90_000, 3_600_000)]
    for name in ("jobs", "small"):
        with connect(bench.root, housekeeping=False) as context:
            context.producer(name).send_table(pa.table({"text": ["x"] * 3, "JMSExpiration": over}))
    log = bench.domain.log("jobs")
    file = Path(log.storage.uri, next(iter(log.refresh().files)))
    whole = file.read_bytes()
    file.write_bytes(b"torn")
    runner = ServiceRunner([], others=[EXPIRATION, USAGE])

    def failing() -> dict[str, str]:
        queries.start()
        return {one.service: one.error for one in runner.status() if one.failing_since}

    def done() -> tuple[tuple[int, int], ...]:
        failing()
        return tuple((recorded(bench, name)[0], expired(bench, name)) for name in ("jobs", "small"))

    def named() -> bool:
        found = failing()
        return all("jobs: UnreadableTableError: " in found.get(name, "") for name in (EXPIRATION, USAGE))

    with opened_store(bench.domain) as store:
        made = DomainQueries(bench.spark, Domain(bench.root), store, runner, shortest_s=0.3).made([EXPIRATION, USAGE])
        queries = ServiceQueries(made, str(bench.path / "services"))
        try:
            wait_until(lambda: done() == ((0, 0), (3, 2)), LIMIT_S, lambda: f"{done()} {failing()}")
            wait_until(named, LIMIT_S, lambda: str(failing()))
            running = [query.runId for query in queries.running.values()]
            file.write_bytes(whole)
            wait_until(lambda: done() == ((3, 2), (3, 2)), 3 * LIMIT_S, lambda: f"{done()} {failing()}")
            wait_until(lambda: not failing(), LIMIT_S, lambda: str(failing()))
            assert [query.runId for query in queries.running.values()] == running
        finally:
            queries.stop()


def test_destination_that_is_pulled_away_stops_no_other(bench: Bench) -> None:
    """C13, T3, T6: both queries run on, it is named while it is away, and counts and expires once it is back."""
    send_over(bench, "orders", 2)
    send_over(bench, "small", 2)
    runner = ServiceRunner([], others=[EXPIRATION, USAGE])
    table = Path(bench.domain.log("orders").storage.uri)

    def failing() -> dict[str, str]:
        queries.start()
        return {one.service: one.error for one in runner.status() if one.failing_since}

    def done() -> tuple[tuple[int, ...], tuple[int, ...]]:
        failing()
        names = ("orders", "small")
        return tuple(recorded(bench, name)[0] for name in names), tuple(expired(bench, name) for name in names)

    with opened_store(bench.domain) as store:
        domain = Domain(bench.root)  # as of a process of its own
        made = DomainQueries(bench.spark, domain, store, runner, shortest_s=0.3).made([EXPIRATION, USAGE])
        queries = ServiceQueries(made, str(bench.path / "services"))
        try:
            wait_until(lambda: done() == ((2, 2), (2, 2)), LIMIT_S, lambda: f"{done()} {failing()}")
            send_over(bench, "orders", 1)
            wait_until(lambda: done() == ((3, 2), (3, 2)), LIMIT_S, lambda: f"{done()} {failing()}")
            table.rename(table.with_name("elsewhere"))
            queries.stop()  # a process that begins meanwhile, with the checkpoints of before
            fresh = DomainQueries(bench.spark, Domain(bench.root), store, runner, shortest_s=0.3)
            queries = ServiceQueries(fresh.made([EXPIRATION, USAGE]), str(bench.path / "services"))
            send_over(bench, "small", 3)

            def others() -> bool:
                found = failing()
                named = all("orders: InvalidDestinationError: " in found.get(name, "") for name in (EXPIRATION, USAGE))
                return named and recorded(bench, "small")[0] == 5 and expired(bench, "small") == 5

            wait_until(others, 2 * LIMIT_S, lambda: f"{failing()} {recorded(bench, 'small')} {expired(bench, 'small')}")
            table.with_name("elsewhere").rename(table)
            send_over(bench, "orders", 4)
            wait_until(lambda: done() == ((7, 5), (7, 5)), 2 * LIMIT_S, lambda: f"{done()} {failing()}")
            wait_until(lambda: not failing(), LIMIT_S, lambda: str(failing()))
        finally:
            queries.stop()


def test_error_of_the_sink_reaches_the_driver(bench: Bench) -> None:
    """T6, C13: from a task through the commit of another process; it is over when the destination is back."""
    table = Path(bench.domain.log("orders").storage.uri)
    table_id = bench.domain.log("orders").refresh().table_id
    due = "table string, destination string, member int, ranges string"
    root = bench.path / "due"

    def known() -> dict[str, Any]:
        return ExpirationProblems(bench.domain, str(query.id)).known()

    def hand_over(name: str) -> None:
        row = [(table_id, "orders", 0, "[[1,1]]")]
        bench.spark.createDataFrame(row, due).coalesce(1).write.json(str(root / name))

    root.mkdir()
    table.rename(table.with_name("elsewhere"))
    hand_over("away")
    writer = bench.spark.readStream.schema(due).json(str(root / "*")).writeStream.format("jmsq").outputMode("append")
    writer = writer.option("root", bench.root).option("destination", "*").option("action", "expire")
    query = writer.option("checkpointLocation", str(bench.path / "sink")).start()
    try:
        wait_until(lambda: "orders" in known(), LIMIT_S, lambda: reason(query))
        assert known()["orders"].startswith("InvalidDestinationError: ")
        table.with_name("elsewhere").rename(table)
        hand_over("back")
        wait_until(lambda: not known(), LIMIT_S, lambda: f"{known()} {reason(query)}")
    finally:
        query.stop()
