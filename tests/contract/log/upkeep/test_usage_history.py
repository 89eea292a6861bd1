"""The usage history: what passed through destinations in each minute, and what they held (T3)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from spark_jms.admin.services import Rounds
from spark_jms.claims.servers import stores
from spark_jms.claims.upkeep import usage_history as upkeep
from spark_jms.claims.upkeep.usage_history import UsageHistory, UsageSink
from spark_jms.claims.upkeep.views import drop_subscription, subscriptions
from spark_jms.cli.__main__ import cli
from spark_jms.client.context.context import Context
from spark_jms.client.sending import producer as producers
from spark_jms.core.changes.change import ENDINGS, MESSAGES, NOTHING_READ
from spark_jms.core.changes.usage_fold import HOUR_MS, UnreadSpan, UsageBatch, UsageFold, UsagePosition
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.limits.usage_history import KEPT_MS, WINDOW_MS, UsageWindow
from spark_jms.errors import (
    StaleCheckpointError,
    UnreadableTableError,
    UsageRunReplacedError,
)
from spark_jms.log.changes.feed import ChangeFeed
from spark_jms.log.changes.plan import plan
from spark_jms.log.changes.positions import FeedTables
from spark_jms.log.changes.rows import changes_of
from spark_jms.log.destinations.declarations import create_table
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.data_files import FileWriter
from spark_jms.log.sending.send import number
from spark_jms.log.tables.commit import Decision, commit
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep import usage_history
from spark_jms.log.upkeep.compaction import compact
from spark_jms.log.upkeep.usage_history import EARLIER_HISTORY, MOST_FILES, USAGE_HISTORY, UsageHistoryTable
from spark_jms.store import StoreBusyError
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.domains.commands import Jmsq
from tests.harness.domains.quotas import receive
from tests.harness.domains.usage import NAMES, drop, expire, usage_domain


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    with usage_domain(tmp_path) as made:
        yield made


def record(context: Context, *names: str) -> tuple[int, dict[str, Exception]]:
    """By a process that begins."""
    return UsageHistory(Domain(context.root), records_of(context)).record(names or NAMES)


def windows(context: Context, *names: str) -> list[UsageWindow]:
    return UsageHistoryTable(Domain(context.root)).read(names or NAMES)


def sums(context: Context, name: str) -> dict[str, int]:
    rows = windows(context, name)
    return {what: sum(getattr(row, what) for row in rows) for what in ("sent", "finished", "expired", "dropped")}


def used(context: Context, name: str) -> int:
    """As the history has it last."""
    return [row.used.messages for row in windows(context, name) if row.used][-1]


def passed(rows: list[UsageWindow]) -> list[tuple[int, ...]]:
    """Without what counts in the minute of a round: expirations, and sends of messages that were purged before it."""
    counts = [(row.start_ms, row.finished, row.dropped) for row in rows]
    return [row for row in counts if any(row[1:])]


def recount(context: Context) -> None:
    """A minute later."""
    domain_of(context).storage.delete_all(USAGE_HISTORY)
    history = UsageHistory(Domain(context.root), records_of(context), lambda: now_ms() + WINDOW_MS)
    assert history.record(NAMES)[1] == {}


def files_of(context: Context) -> list[str]:
    """The data files in the table's folder."""
    names = (file.path.rpartition("/")[2] for file in domain_of(context).storage.list(USAGE_HISTORY))
    return [name for name in names if name.startswith("m")]


def sent_at(context: Context, monkeypatch: pytest.MonkeyPatch, at_ms: int, count: int = 1) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(producers, "now_ms", lambda: at_ms)
        context.producer("orders").send_many({"text": f"{n}"} for n in range(count))


def test_history_counts_each_message_once_and_equals_a_recount(context: Context) -> None:
    """T3: sent, finished, expired and dropped messages, recorded in several rounds by processes that begin, in the windows of a
    later recount from the tables; what is used is that of `jmsq stat`."""
    for turn in range(3):
        context.producer("orders").send_many({"text": f"{n}"} for n in range(10))
        record(context)
        receive(context, 6)
        expire(context, "orders", turn)
        record(context)
    assert drop(context, "orders") == 12
    context.producer("orders").send(text="last")
    assert record(context)[1] == {}
    assert sums(context, "orders") == {"sent": 34, "finished": 18, "expired": 3, "dropped": 12}
    assert used(context, "orders") == 1
    known = passed(windows(context, "orders"))
    recount(context)
    assert passed(windows(context, "orders")) == known
    assert sums(context, "orders") == {"sent": 34, "finished": 18, "expired": 3, "dropped": 12}


def test_finished_messages_of_a_topic_are_those_of_all_subscriptions(context: Context) -> None:
    """T3, T4: two subscriptions that finish one message count two; the limit of a subscription drops; a message is used once."""
    consumers = [context.consumer("news", subscription=name) for name in ("a", "b")]
    context.producer("news").send(text="x")
    for consumer in consumers:
        message = consumer.receive(timeout=10)
        assert message is not None
        record(context)
        message.acknowledge()
        consumer.close()
    record(context)
    assert sums(context, "news") == {"sent": 1, "finished": 2, "expired": 0, "dropped": 0}
    assert [row.used and row.used.messages for row in windows(context, "news")][-1] == 0
    context.consumer("limited", subscription="a").close()
    context.producer("limited").send_many({"text": f"{n}"} for n in range(5))
    with context.consumer("limited", subscription="a") as consumer:
        message = consumer.receive(timeout=10)
        assert message is not None
        message.acknowledge()
    record(context)
    assert sums(context, "limited") == {"sent": 5, "finished": 1, "expired": 0, "dropped": 3}
    assert used(context, "limited") == 1


def test_subscription_that_is_created_again_counts_again(context: Context) -> None:
    """T3: its record sets begin with nothing expired."""
    for count in (3, 2):
        context.consumer("news", subscription="a").close()
        expire(context, "news", count)
        record(context)
        drop_subscription(
            domain_of(context), records_of(context), subscriptions(domain_of(context), records_of(context), "news"), 1
        )
    assert sums(context, "news") == {"sent": 5, "finished": 0, "expired": 5, "dropped": 0}
    assert used(context, "news") == 0


def test_round_without_news_writes_nothing(context: Context) -> None:
    """T3: no version, no file; an idle destination costs a look."""
    context.producer("orders").send(text="x")
    history = UsageHistory(domain_of(context), records_of(context))
    assert history.record(NAMES)[0] >= 1
    table = UsageHistoryTable(domain_of(context))
    before = table.log.refresh().version
    assert history.record(NAMES) == record(context) == (0, {})
    assert table.log.refresh().version == before


@pytest.mark.parametrize("committed", [False, True])
def test_round_that_is_killed_at_its_commit_is_repeated_without_a_difference(
    context: Context, monkeypatch: pytest.MonkeyPatch, *, committed: bool
) -> None:
    """T3: before the commit nothing is in the history, and behind it everything, with the positions."""
    context.producer("orders").send_many({"text": f"{n}"} for n in range(4))
    UsageHistoryTable(domain_of(context)).create()
    append, begun = DeltaLog.append, list[bool]()

    def killed(log: DeltaLog, *arguments: Any) -> bool:
        if committed or not begun:
            append(log, *arguments)
        begun.append(True)
        if len(begun) == 1:  # the run owns the history
            return True
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DeltaLog, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            record(context)
    assert (record(context)[0] == 0) == committed
    assert sums(context, "orders")["sent"] == 4


def test_two_processes_record_the_same_news_once(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T3: the one whose commit comes second looks again, and finds nothing."""
    context.producer("orders").send_many({"text": f"{n}"} for n in range(4))
    record(context)
    context.producer("orders").send_many({"text": f"{n}"} for n in range(4))
    append, others = DeltaLog.append, list[tuple[int, dict[str, Exception]]]()

    def beaten(log: DeltaLog, *arguments: Any) -> bool:
        monkeypatch.setattr(DeltaLog, "append", append)
        away.clear()
        others.append(record(context))
        return log.append(*arguments)

    read, away = stores.state_of, [True]

    def sometimes(*given: Any) -> Any:
        if away:
            raise StoreBusyError("away")
        return read(*given)

    monkeypatch.setattr(upkeep, "state_of", sometimes)
    monkeypatch.setattr(DeltaLog, "append", beaten)
    assert record(context) == (0, {}), "the second look has no error"
    assert others[0][0] >= 1
    assert sums(context, "orders")["sent"] == 8
    assert len(files_of(context)) == 2, "what the first look has staged is deleted"


def test_window_is_that_of_the_sending_also_in_merged_files(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T3: messages of several minutes in one file; a time that no clock can have had counts in the hour of reading."""
    start = now_ms() // HOUR_MS * HOUR_MS - 10 * WINDOW_MS  # none of its minutes begins an hour
    for minute in range(3):
        for _ in range(minute + 4):
            sent_at(context, monkeypatch, start + minute * WINDOW_MS + 59_999)
    assert compact(domain_of(context).log("orders")).compacted_files == 15
    sent_at(context, monkeypatch, now_ms() + 10 * 3_600_000)
    record(context)
    found = {row.start_ms: row.sent for row in windows(context, "orders") if row.sent}
    expected = [(start, 4), (start + WINDOW_MS, 5), (start + 2 * WINDOW_MS, 6)]
    assert [(minute, found.pop(minute)) for minute, _ in expected] == expected
    assert [*found.values()] == [1]
    assert now_ms() - HOUR_MS - 60_000 <= min(found) <= now_ms(), "the hour of reading"
    context.producer("orders").send_many({"text": "x"} for _ in range(3))
    compact(domain_of(context).log("orders"))
    record(context)
    assert sums(context, "orders")["sent"] == 19


def test_purged_messages_are_counted_all_the_same(context: Context) -> None:
    """T3: their numbers are dense, so none is missed; the window is that of the round."""
    context.producer("orders").send_many({"text": f"{n}"} for n in range(4))
    receive(context, 4)
    rounds = Rounds(domain_of(context), records_of(context), clean_up=False)
    assert rounds.run(["orders"])[0].purged_messages == 4
    rounds.close()
    record(context)
    assert sums(context, "orders") == {"sent": 4, "finished": 4, "expired": 0, "dropped": 0}
    assert used(context, "orders") == 0, "also when it was so before"


def test_failure_of_one_destination_or_its_store_prevents_nothing_else(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T3: it is named; sums do not depend on the store, and what the destination holds comes with a later round."""
    context.producer("orders").send(text="x")
    expire(context, "orders", 2)
    context.producer("news").send(text="x")
    read = stores.state_of

    def away(store: Any, snapshot: Any, *rest: Any) -> Any:
        if snapshot.destination.name == "orders":
            raise StoreBusyError("away")
        return read(store, snapshot, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "state_of", away)
        history = UsageHistory(domain_of(context), records_of(context))
        _, errors = history.record(NAMES)
        assert {name: type(error) for name, error in errors.items()} == {"orders": StoreBusyError}
        assert sums(context, "orders") == {"sent": 3, "finished": 0, "expired": 2, "dropped": 0}
        assert sums(context, "news")["sent"] == 1
        assert not [row for row in windows(context, "orders") if row.used]
    assert history.record(["missing", *NAMES])[1].keys() == {"missing"}
    assert used(context, "orders") == 1


def test_hours_older_than_a_month_leave(context: Context) -> None:
    """T3: with the next change, whole hours at once."""
    context.producer("orders").send(text="x")
    record(context)
    later = now_ms() + KEPT_MS + 2 * 3_600_000
    context.producer("orders").send(text="y")
    UsageHistory(domain_of(context), records_of(context), lambda: later).record(NAMES)
    assert sums(context, "orders")["sent"] == 1


def test_history_that_is_deleted_begins_again(context: Context) -> None:
    """T3: under a service that runs, which counts again what the tables have; also when another process was first, and when
    that one was killed before its first commit."""
    running, other = (UsageHistory(Domain(context.root), records_of(context)) for _ in range(2))
    sent = 0
    for begins_again in (running, None, other):
        for _ in range(3):
            context.producer("orders").send(text="x")
            sent += 1
            assert running.record(["orders"])[1] == {}
        domain_of(context).storage.delete_all(USAGE_HISTORY)
        if begins_again is None:
            domain_of(context).storage.child(USAGE_HISTORY).put("_delta_log/.00000000000000000000.json.left", b"")
            assert windows(context, "orders") == []
        else:
            assert begins_again.record(["orders"])[1] == {}
        context.producer("orders").send(text="x")
        sent += 1
        assert (begins_again or running).record(["orders"])[1] == {}
        assert sums(context, "orders")["sent"] == sent
    assert running.record(["orders"]) == (0, {})


def test_newest_run_owns_the_history_and_an_older_one_stands_by(
    context: Context,
) -> None:
    """T3: it takes over once news stay unrecorded; what an old run brings is refused by name, and what is recorded is not recorded
    again."""
    clock, store = [0.0], records_of(context)
    older, newer = (UsageHistory(Domain(context.root), store, monotonic_s=lambda: clock[0]) for _ in range(2))

    def after(history: UsageHistory, pause_s: float) -> int:
        context.producer("orders").send(text="x")
        clock[0] += pause_s
        return history.record(["orders"])[0]

    assert [after(older, 10), after(newer, 10)] == [1, 1]
    refused = UsageHistoryTable(domain_of(context)).known().owner
    assert after(older, 10) == 0, "it was replaced"
    assert [after(older, 40), after(newer, 10), after(older, 50), after(older, 59)] == [0, 1, 0, 0]
    assert after(older, 10) == 1, "a minute after it saw that the newer one had recorded"
    assert sums(context, "orders")["sent"] == 8
    table = UsageHistoryTable(domain_of(context))
    with pytest.raises(UsageRunReplacedError):
        table.add(refused, 9, UsageBatch({}, {UsagePosition("t", 0, MESSAGES): 1}), {})
    files = files_of(context)
    with pytest.raises(StaleCheckpointError):
        table.add(
            table.known().owner, table.known().batch - 1, UsageBatch({}, {UsagePosition("t", 0, MESSAGES): 1}), {}
        )
    assert files_of(context) == files


def earlier_history(context: Context, recorded: int) -> None:
    """As the release before wrote it: it has recorded so many messages of orders, in two hours, of which half were finished."""
    domain, table = domain_of(context), domain_of(context).log("orders").refresh().table_id
    columns = ["sent", "finished", "expired", "dropped", "messages_used", "bytes_used"]
    schema = pa.schema(
        [
            ("ordinal", pa.int64()),
            ("destination", pa.string()),
            ("window_ms", pa.int64()),
            *((n, pa.int64()) for n in columns),
        ]
    )
    create_table(domain, EARLIER_HISTORY, schema, Destination("usage-history", "distributed-queue"))
    log, files = DeltaLog(domain.storage.child(EARLIER_HISTORY), "earlier"), []
    for hour, sent in ((now_ms() // HOUR_MS - 1, 1), (now_ms() // HOUR_MS, recorded - 1)):
        writer = FileWriter(log.storage, hour, schema)
        values = [[0], ["orders"], [hour * HOUR_MS], [sent], [sent // 2], [0], [0], [sent], [100]]
        writer.append(pa.RecordBatch.from_arrays([*map(pa.array, values)], schema=schema))
        files.append(writer.close())
    moved = [{"txn": {"appId": f"sent/{table}/0", "version": recorded, "lastUpdated": 0}}]
    commit(log, lambda snapshot: Decision("MERGE", [*number(snapshot, files, 0).actions, *moved]))


def test_history_of_the_release_before_is_read_and_continued(context: Context) -> None:
    """T3, C16: before any service of this release has run, and by the first run, which takes over its rows and positions."""
    context.producer("orders").send_many({"text": f"{n}"} for n in range(9))
    earlier_history(context, 9)
    before = windows(context, "orders")
    assert [(row.sent, row.finished, row.used and row.used.messages) for row in before] == [(1, 0, 1), (8, 4, 8)]
    assert record(context) == (0, {}), "there is no news"
    context.producer("orders").send(text="new")
    assert record(context)[1] == {}
    assert not [*domain_of(context).storage.list(EARLIER_HISTORY)]
    assert sums(context, "orders") == {"sent": 10, "finished": 4, "expired": 0, "dropped": 0}
    record(context)
    assert sums(context, "orders")["sent"] == 10


def test_damaged_file_of_the_release_before_stays(context: Context) -> None:
    """T3, C16: for an administrator; the rest is taken over."""
    context.producer("orders").send_many({"text": f"{n}"} for n in range(9))
    earlier_history(context, 9)
    folder = Path(context.root, EARLIER_HISTORY)
    file = min(folder.glob("m*.parquet"), key=lambda path: path.name)
    file.write_bytes(b"torn")
    with pytest.raises(UnreadableTableError, match=file.name):
        windows(context, "orders")
    context.producer("orders").send(text="new")
    assert record(context)[1] == {}
    assert file.exists()
    assert sums(context, "orders")["sent"] == 9
    record(context)
    assert sums(context, "orders")["sent"] == 9


def test_history_stays_small(context: Context) -> None:
    """T3: few files for each hour, Delta checkpoints, and no files that were replaced longer ago than the grace."""
    history = UsageHistory(domain_of(context), records_of(context))
    for _ in range(55):
        context.producer("orders").send(text="x")
        history.record(NAMES)
    snapshot = UsageHistoryTable(domain_of(context)).log.refresh()
    assert len(snapshot.files) <= MOST_FILES + 1
    assert snapshot.version <= 62
    assert any(
        "checkpoint.parquet" in file.path for file in domain_of(context).storage.list(f"{USAGE_HISTORY}/_delta_log")
    )
    table = UsageHistoryTable(domain_of(context))
    table._clean_up.run(now=now_ms() + 3_600_000)  # the files of the removed list
    assert len(files_of(context)) <= MOST_FILES + 1
    assert sums(context, "orders")["sent"] == 55


@pytest.mark.parametrize("damage", ["torn", "missing"])
def test_damaged_file_stops_no_recording(context: Context, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    """T3, C13: what follows is recorded beside it, the service names the file when files are merged, and once it is restored nothing
    is missing."""
    monkeypatch.setattr(usage_history, "MOST_FILES", 1)
    history = UsageHistory(domain_of(context), records_of(context), lambda: 1_000_000)
    context.producer("orders").send(text="a")
    history.record(NAMES)
    everything = domain_of(context).storage.list(USAGE_HISTORY)
    (info,) = [one for one in everything if one.path.rpartition("/")[2].startswith("m")]
    file = Path(context.root, info.path)
    whole = file.read_bytes()
    if damage == "torn":
        file.write_bytes(whole[:100])
    else:
        file.unlink()
    for _ in range(2):
        context.producer("orders").send(text="b")
        assert history.record(NAMES) == (1, {})
        (problem,) = history.damaged
        assert file.name in problem
    with pytest.raises((UnreadableTableError, FileNotFoundError), match=file.name):
        windows(context)
    file.write_bytes(whole)
    assert sums(context, "orders")["sent"] == 3
    context.producer("orders").send(text="c")
    history.record(NAMES)
    assert (history.damaged, sums(context, "orders")["sent"]) == ([], 4)


def test_numbers_that_could_not_be_read_are_counted_later(context: Context) -> None:
    """T3, C13: a damaged file of messages and one of acknowledgements; the history names the destination while it owes them, counts
    them once when the files are restored, whichever process reads them, and keeps its balance. What a restored copy of the table does
    not have is not owed."""
    over = [now_ms() + n * 3_600_000 for n in range(1, 5)]
    context.producer("orders").send_table(pa.table({"text": ["x"] * 4, "JMSExpiration": over}))
    receive(context, 1)
    domain = Domain(context.root)
    damaged = [
        Path(log.storage.uri, next(iter(log.refresh().files)))
        for log in (domain.log("orders"), domain.acknowledgements("orders"))
    ]
    whole = [file.read_bytes() for file in damaged]
    for file in damaged:
        file.write_bytes(b"torn")
    tables = FeedTables(domain, "*", isolates=True)

    def look() -> Any:
        return tables.newest(NOTHING_READ).tables

    sink, other = (UsageSink(Domain(context.root), records_of(context)) for _ in range(2))
    sink.table.create()
    run, _ = sink.table.begin()
    end = tables.newest(NOTHING_READ)
    changes = [change for part in plan(context.root, tables, NOTHING_READ, end) for change in changes_of(part)]
    sink.take(run, 0, UsageFold().batch(changes))
    table = domain.log("orders").refresh().table_id
    owed = {UnreadSpan(table, 0, MESSAGES, 1, 4), UnreadSpan(table, 0, ENDINGS, 1, 1)}
    assert sink.table.known().unread == owed
    assert sums(context, "orders") == {"sent": 0, "finished": 0, "expired": 0, "dropped": 0}
    other.follow(run)
    for one in (sink, other):
        (error,) = [type(problem) for name, problem in one.look_again(look).items() if name == "orders"]
        assert error is UnreadableTableError
    for file, data in zip(damaged, whole, strict=True):
        file.write_bytes(data)
    assert [one.look_again(look) for one in (other, sink, other)] == [{}, {}, {}]
    assert sink.table.known().unread == frozenset()
    assert sums(context, "orders") == {"sent": 4, "finished": 1, "expired": 0, "dropped": 0}
    assert sink.table.known().levels[table] == 3
    context.producer("orders").send(text="x")
    history = UsageHistory(domain_of(context), records_of(context))
    assert [history.record(["orders"])[1] for _ in range(3)] == [{}] * 3
    assert sums(context, "orders")["sent"] == 5


def test_lowered_position_owes_nothing_behind_it(context: Context) -> None:
    """T3: those numbers come again as news."""
    table = UsageHistoryTable(domain_of(context))
    table.create()
    run, _ = table.begin()
    place = UsagePosition("t", 0, MESSAGES)
    spans = {UnreadSpan("t", 0, MESSAGES, first, last) for first, last in ((1, 3), (5, 9), (20, 30))}
    assert table.add(run, 0, UsageBatch(end={place: 30}, unread=frozenset(spans)), {})
    table.note(run, {}, {}, {place: 7})
    assert {(one.first, one.last) for one in table.known().unread} == {(1, 3), (5, 7)}
    for one in table.known().unread:
        table.add_late(run, one, {})
    assert table.known().unread == frozenset()
    other, _ = table.begin()
    with pytest.raises(UsageRunReplacedError):
        table.add_late(run, next(iter(spans)), {})
    assert table.known().owner == other


@pytest.fixture
def jmsq(context: Context) -> Jmsq:
    def run(*arguments: str, code: int = 0, **_: Any) -> Any:
        result = CliRunner().invoke(cli, [*arguments, "--root", context.root])
        assert result.exit_code == code, result.output
        return result

    return run


def test_command_shows_the_history_of_a_quota_or_destination(context: Context, jmsq: Jmsq) -> None:
    """T3, C14: without a store; --since; a name that is neither is refused."""
    assert "does `jmsq services` run?" in jmsq("quota", "history", "small").output
    context.producer("orders").send_many({"text": f"{n}"} for n in range(3))
    context.producer("news").send(text="x")
    receive(context, 1)
    record(context)
    by_quota = json.loads(jmsq("quota", "history", "small", "--json").stdout)
    assert {row["destination"] for row in by_quota} == {"orders"}
    assert sum(row["sent"] for row in by_quota) == 3
    assert by_quota[-1]["messages_used"] == 2
    assert by_quota[-1]["bytes_used"] > 0
    assert "orders" in jmsq("quota", "history", "orders").stdout
    assert "news" in jmsq("quota", "history", "news", "--since", "1 h").stdout
    assert json.loads(jmsq("quota", "history", "small", "--json", "--since", "2100-01-01").stdout) == []
    assert "no quota 'none'" in jmsq("quota", "history", "none", code=1).output


def test_what_a_destination_holds_is_looked_at_again_without_news(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T3: as the query does between its batches; a run that was replaced leaves that to the newer one."""
    context.producer("orders").send(text="x")
    sink = UsageSink(domain_of(context), records_of(context))
    tables = FeedTables(domain_of(context), "orders")

    def look() -> Any:
        return tables.newest(NOTHING_READ).tables

    assert sink.look_again(look) == {}, "it has no run"
    sink.table.create()
    run, _ = sink.table.begin()
    batch = UsageFold().batch(ChangeFeed(domain_of(context), "orders"))
    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "state_of", lambda *_: (_ for _ in ()).throw(StoreBusyError("away")))
        assert sink.take(run, 0, batch)[1].keys() == {"orders"}
        assert sink.look_again(look).keys() == {"orders"}
        assert not [row for row in windows(context, "orders") if row.used]
    assert sink.look_again(look) == {}
    assert used(context, "orders") == 1
    version = sink.table.log.refresh().version
    assert sink.look_again(look) == {}
    assert sink.table.log.refresh().version == version
    sink.table.begin()
    assert sink.look_again(look) == {}


def test_older_run_takes_over_only_what_stays_unrecorded(context: Context) -> None:
    """T3: not because nothing happens for long."""
    now_s = [0.0]
    older, newer = (
        UsageHistory(Domain(context.root), records_of(context), monotonic_s=lambda: now_s[0]) for _ in range(2)
    )
    table = UsageHistoryTable(domain_of(context))

    def sent_by(history: UsageHistory) -> int:
        context.producer("orders").send(text="x")
        return history.record(["orders"])[0]

    assert sent_by(older)
    assert sent_by(newer)
    context.producer("orders").send(text="x")
    assert older.record(["orders"]) == (0, {}), "it is replaced"
    assert newer.record(["orders"])[0]
    owner = table.known().owner
    now_s[0] += 1000
    assert older.record(["orders"]) == (0, {})
    assert sent_by(older) == 0, "the newer one has had no time to record it"
    now_s[0] += upkeep.STAND_BY_S - 1
    assert older.record(["orders"])[0] == 0
    assert table.known().owner == owner
    now_s[0] += 1
    assert older.record(["orders"])[0]
    assert table.known().owner != owner
