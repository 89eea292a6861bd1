"""The life-cycle log of messages, as people read it (T6)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from spark_jms import connect
from spark_jms.admin import backup
from spark_jms.admin.backup import restore
from spark_jms.admin.destinations import drop_destination, rename_destination
from spark_jms.admin.purge import drop_backlog, purge_files
from spark_jms.admin.transfer import MoveOrder, move
from spark_jms.claims.records.life_cycle import LifeCycleTable
from spark_jms.claims.upkeep import life_cycle_view, views
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.claims.upkeep.life_cycle_view import EventRow, events, newest_events
from spark_jms.cli.__main__ import cli
from spark_jms.client.context.context import Context
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.compaction import compact
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import domain_of, members_of, records_of
from tests.harness.messages.clocked_consumer import ClockedConsumer

ON = {"message_logging_enabled": True}
DESTINATIONS: dict[str, Any] = {
    "orders": {"kind": "queue", **ON},
    "spread": {"kind": "distributed-queue", "members": 2, **ON},
    "limited": {"kind": "queue", "redelivery_limit": 0, "error_destination": "failed", **ON},
    "drops": {"kind": "queue", "redelivery_limit": 0, **ON},
    "prices": {"kind": "topic", **ON},
    "failed": {"kind": "queue", **ON},
    "plain": "queue",
}


@pytest.fixture
def context() -> Iterator[Context]:
    with memory_domain(**DESTINATIONS) as root, connect(root, housekeeping=False) as made:
        yield made


class Clocked(ClockedConsumer):
    """A consumer without background threads, whose time the test sets."""

    def take(self, count: int | None = None) -> Batch:
        batch = self.subscriber.next_batch(self.start, Limits(max_messages=count))
        assert batch is not None
        return batch

    def acknowledge(self, batch: Batch) -> None:
        assert not self.subscriber.acknowledge({batch.claim: {m: pick.picks for m, pick in batch.members.items()}})

    def release(self, batch: Batch) -> None:
        parts = {m: pick.picks for m, pick in batch.members.items()}
        assert self.subscriber.release(batch.claim, parts, delivered=True)


def send(context: Context, destination: str, count: int, **how: Any) -> None:
    context.producer(destination).send_many({"text": str(n), **how} for n in range(count))


def rows(context: Context, destination: str, subscription: str | None = None) -> list[EventRow]:
    found = events(domain_of(context), records_of(context), destination, subscription)
    assert len({row.key for row in found}) == len(found)
    return found


def told(context: Context, destination: str) -> list[tuple[str, str]]:
    return [(row.event, row.ranges) for row in rows(context, destination)]


def in_table(domain: Domain, destination: str) -> list[dict[str, Any]]:
    """As any Delta reader finds them."""
    table = domain.life_cycle(destination)
    assert table is not None
    paths = [f"{table.storage.uri}/{path}" for path in table.refresh().files]
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def test_life_of_messages_is_told_in_order(context: Context) -> None:
    """T6: sent, claimed, acknowledged, released and claimed again; by whom, in which claim and when."""
    send(context, "orders", 4)
    one = Clocked(context, "orders")
    first = one.take(2)
    one.acknowledge(first)
    one.now_ms += 1_000
    second = one.take()
    one.now_ms += 1_000
    one.release(second)
    found = rows(context, "orders")
    assert [(r.event, r.subscription, r.ranges, r.consumer, r.claim) for r in found] == [
        ("sent", "", "1-4", "", ""),
        ("claimed", "-", "1-2", "q", first.claim),
        ("acknowledged", "-", "1-2", "q", first.claim),
        ("claimed", "-", "3-4", "q", second.claim),
        ("released", "-", "3-4", "q", second.claim),
    ]
    assert found[-1].happened == views.moment(one.now_ms)
    assert (found[0].messages, found[0].first, found[0].last) == (4, 1, 4)
    one.subscriber.close()


def test_reading_changes_nothing_and_table_gets_each_event_once(context: Context) -> None:
    """T6: before the background has written the table, and after."""
    send(context, "orders", 3)
    one = Clocked(context, "orders")
    one.acknowledge(one.take())
    before = rows(context, "orders")
    assert in_table(domain_of(context), "orders") == []
    housekeeper = Housekeeper(domain_of(context), records_of(context), "orders")
    for _ in range(2):
        one.subscriber.flush_life_cycle()
        assert housekeeper.run()
        assert rows(context, "orders") == before
        assert sorted(row["key"] for row in in_table(domain_of(context), "orders")) == sorted(r.key for r in before)
    housekeeper.close()
    one.subscriber.close()


@pytest.mark.parametrize("noted", [True, False])
def test_killed_consumer_neither_misses_nor_repeats_events(context: Context, noted: bool) -> None:
    """T6: it dies before it wrote the table, or after that and before it noted it in the store; the next one writes."""
    send(context, "orders", 2)
    killed = Clocked(context, "orders", "killed")
    batch = killed.take()
    if not noted:
        table = domain_of(context).life_cycle("orders")
        assert table is not None
        waiting = {m: known.state.life.waiting for m, known in members_of(killed.subscriber).known.items()}
        assert LifeCycleTable(table, killed.subscriber.table_id).write("-", waiting) == {0: 1}
    killed.subscriber.close()
    other = Clocked(context, "orders", "other")
    again = other.take()
    other.acknowledge(again)
    other.subscriber.flush_life_cycle()
    other.subscriber.close()
    written = sorted(in_table(domain_of(context), "orders"), key=lambda row: int(row["key"].rsplit("/", 1)[1]))
    assert [(row["event"], row["consumer"], row["claim"]) for row in written] == [
        ("claimed", "killed", batch.claim),
        ("released", "killed", batch.claim),
        ("claimed", "other", again.claim),
        ("acknowledged", "other", again.claim),
    ]


def test_expired_and_refused_messages_are_logged(context: Context) -> None:
    """T6, C12: expired ones in a queue; in a topic also those that the subscription's selector refuses."""
    send(context, "orders", 2, time_to_live=0.5)
    send(context, "orders", 1)
    one = Clocked(context, "orders")
    one.acknowledge(one.take())
    one.subscriber.close()
    assert ("expired", "1-2") in told(context, "orders")
    with context.consumer("prices", subscription="s", selector="JMSPriority > 5") as consumer:
        context.producer("prices").send(text="low", priority=1)
        context.producer("prices").send(text="high", priority=9)
        message = consumer.receive(5)
        assert message is not None
        message.acknowledge()
    found = [(row.event, row.ranges, row.subscription) for row in rows(context, "prices", "s")]
    assert ("refused", "1", "s") in found
    assert ("acknowledged", "2", "s") in found
    assert ("sent", "1", "") in found


def test_transferred_and_removed_messages_are_logged(context: Context) -> None:
    """T6, C8, C18: what the redelivery limit and administrators do, as one event each, with the target and the reason."""
    for name in ("limited", "drops"):
        send(context, name, 1)
        one = Clocked(context, name)
        one.release(one.take())
        assert one.subscriber.next_batch(one.start, Limits()) is None
        one.subscriber.close()
    last = rows(context, "limited")[-1]
    assert (last.event, last.ranges, last.consumer) == ("transferred", "1", "redelivery limit")
    assert last.detail.startswith("failed: limited/-/0: delivered more often")
    assert [event for event, _ in told(context, "limited")] == ["sent", "claimed", "released", "transferred"]
    assert [event for event, _ in told(context, "drops")] == ["sent", "claimed", "released", "removed"]
    assert told(context, "failed") == [("sent", "1")]
    send(context, "orders", 3)
    move(domain_of(context), records_of(context), MoveOrder("orders", "plain", limit=2), 5)
    drop_backlog(domain_of(context), records_of(context), "orders", None, [0], 5)
    found = [(row.event, row.ranges, row.consumer) for row in rows(context, "orders")]
    assert found == [("sent", "1-3", ""), ("transferred", "1-2", "jmsq move"), ("removed", "3", "jmsq purge")]


def test_switched_off_nothing_is_made_or_written(context: Context) -> None:
    """T6: no table, no objects in the store; a send is one commit either way."""
    versions = {}
    for name in ("plain", "orders"):
        before = domain_of(context).log(name).refresh().version
        send(context, name, 2)
        versions[name] = domain_of(context).log(name).refresh().version - before
        one = Clocked(context, name)
        one.acknowledge(one.take())
        objects = records_of(context).peek(members_of(one.subscriber).record(0))
        logs = name == "orders"
        assert bool([key for key in objects if key.startswith("event/")]) == logs
        assert (b"life" in objects["head"]) == logs
        one.subscriber.flush_life_cycle()
        one.subscriber.close()
    assert versions == {"plain": 1, "orders": 1}
    assert domain_of(context).life_cycle("plain") is None
    assert rows(context, "plain") == []


def declare(context: Context, **changes: Any) -> None:
    apply_destinations(domain_of(context), [Destination("plain", "queue", **changes)], lambda name, member: False)


def test_log_is_switched_while_consumers_run(context: Context) -> None:
    """T6: it names what happens from the switch on; off, it keeps what it has; on again, it continues."""
    send(context, "plain", 2)
    one = Clocked(context, "plain")
    one.acknowledge(one.take(1))
    declare(context, **ON)
    one.acknowledge(one.take(1))
    send(context, "plain", 1)
    on = [("claimed", "2"), ("acknowledged", "2"), ("sent", "3")]
    assert sorted(told(context, "plain")) == sorted(on)
    housekeeper = Housekeeper(domain_of(context), records_of(context), "plain")
    housekeeper.run()
    declare(context)
    send(context, "plain", 1)
    one.acknowledge(one.take())
    housekeeper.run()
    assert sorted(told(context, "plain")) == sorted(on)
    declare(context, **ON)
    send(context, "plain", 1)
    one.acknowledge(one.take())
    housekeeper.run()
    assert sorted(told(context, "plain")) == sorted([*on, ("sent", "5"), ("claimed", "5"), ("acknowledged", "5")])
    housekeeper.close()
    one.subscriber.close()


def test_table_of_a_destination_that_logs_has_a_format_version_of_its_own(context: Context) -> None:
    """T6, C16: an earlier version would forget the positions of record sets, so it refuses the table, also when the log is off
    again."""

    def version() -> str:
        return str(domain_of(context).log("plain").refresh().metadata["configuration"]["jmsq.formatVersion"])

    assert version() == "1"
    declare(context, **ON)
    assert version() == "5"
    for _ in range(2):
        declare(context, redelivery_delay_ms=1_000)
        declare(context)
        assert version() == "5"


def test_housekeeping_looks_for_no_table_where_the_log_was_never_on(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T6, C13: switched off it costs no access to a file."""
    asked: list[str] = []
    original = Domain.life_cycle
    monkeypatch.setattr(Domain, "life_cycle", lambda domain, name: asked.append(name) or original(domain, name))
    for name in ("plain", "orders"):
        housekeeper = Housekeeper(domain_of(context), records_of(context), name)
        assert housekeeper.run()
        housekeeper.close()
    assert asked == ["orders"]


def test_sent_messages_are_named_although_their_files_were_purged(context: Context) -> None:
    """T6: numbers are dense, so a purge before the first round of housekeeping hides no message."""
    send(context, "orders", 2)
    drop_backlog(domain_of(context), records_of(context), "orders", None, [0], 5)
    purge_files(domain_of(context), records_of(context), "orders")
    assert not domain_of(context).log("orders").refresh().files
    send(context, "orders", 1)
    sent = [(row.ranges, row.detail) for row in rows(context, "orders") if row.event == "sent"]
    assert sorted(sent) == [("1-2", "purged already"), ("3", "")]


def test_rows_are_compacted_and_go_with_their_retention() -> None:
    """T6, C13: as those of the acknowledgement table; also once the log is switched off."""
    with (
        memory_domain(plain={"kind": "queue", "acknowledgement_retention_ms": 0, **ON}) as root,
        connect(root, housekeeping=False) as context,
    ):
        for _ in range(8):
            send(context, "plain", 1)
            one = Clocked(context, "plain")
            one.acknowledge(one.take())
            one.subscriber.flush_life_cycle()
            one.subscriber.close()
        table = domain_of(context).life_cycle("plain")
        assert table is not None
        before = in_table(domain_of(context), "plain")
        assert compact(table).compacted_files == 8
        assert sorted(row["key"] for row in in_table(domain_of(context), "plain")) == sorted(
            row["key"] for row in before
        )
        newest = max(file.modified_ms for file in table.snapshot.files.values())
        wait_until(lambda: now_ms() > newest)
        declare(context, acknowledgement_retention_ms=0)
        housekeeper = Housekeeper(domain_of(context), records_of(context), "plain")
        assert housekeeper.run()
        housekeeper.close()
        assert in_table(domain_of(context), "plain") == []


def test_failing_table_stops_no_consumer(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T6, C20: the events wait in the store, and are written when the table can be."""

    def fail(*_: Any) -> None:
        raise OSError("the disk is full")

    send(context, "orders", 3)
    with monkeypatch.context() as patched:
        patched.setattr(LifeCycleTable, "write", fail)
        with context.consumer("orders", acknowledge="auto") as consumer:
            assert consumer.receive(5) is not None
            wait_until(lambda: any("life-cycle log" in failure.what for failure in context.statistics().failures))
            assert consumer.receive(5) is not None
    with context.consumer("orders") as consumer:
        assert consumer.receive(5) is not None
        wait_until(
            lambda: {row["event"] for row in in_table(domain_of(context), "orders")} >= {"claimed", "acknowledged"}
        )


def test_log_follows_a_rename_and_ends_with_a_drop(context: Context) -> None:
    """T6, C18"""
    send(context, "orders", 1)
    rename_destination(domain_of(context), records_of(context), "orders", "renamed")
    assert told(context, "renamed") == [("sent", "1")]
    entry = domain_of(context).register.entry("renamed")
    assert entry is not None
    drop_destination(domain_of(context), records_of(context), "renamed", force=True)
    assert not list(domain_of(context).storage.list(entry.life_cycle))


def test_restored_domain_continues_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T6, C19: a backup has read the store before the table got more events; those after the restore are not taken for them."""
    with memory_domain("file", orders={"kind": "queue", **ON}) as root, connect(root, housekeeping=False) as context:
        send(context, "orders", 3)
        one = Clocked(context, "orders")
        one.acknowledge(one.take(1))
        read = backup.stored_records

        def then_work(store: Any, server: str) -> Any:
            records = read(store, server)
            one.acknowledge(one.take(1))
            one.subscriber.flush_life_cycle()
            return records

        monkeypatch.setattr(backup, "stored_records", then_work)
        backup.back_up(domain_of(context), records_of(context), str(tmp_path / "backup"))
        one.subscriber.close()
        copied = in_table(domain_of(context), "orders")
    restore(str(tmp_path / "backup"), str(tmp_path / "restored"), "file")
    with connect(str(tmp_path / "restored"), housekeeping=False) as context:
        assert in_table(domain_of(context), "orders") == copied
        one = Clocked(context, "orders")
        one.acknowledge(one.take())
        one.subscriber.flush_life_cycle()
        one.subscriber.close()
        after = [row for row in in_table(domain_of(context), "orders") if row not in copied]
        assert [(row["event"], row["ranges"]) for row in after] == [
            ("claimed", json.dumps([[2, 3]])),
            ("acknowledged", json.dumps([[2, 3]])),
        ]


def test_events_command(context: Context) -> None:
    """T6, C14: `jmsq events`, by message and by event."""
    send(context, "orders", 3)
    one = Clocked(context, "orders")
    one.acknowledge(one.take(2))
    one.subscriber.close()

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(cli, ["events", *arguments, "--root", domain_of(context).root])
        assert result.exit_code == 0, result.output
        return result.stdout

    found = json.loads(run("orders", "--json", "--sequence", "2"))
    assert found["on"]
    assert [row["event"] for row in found["events"]] == ["sent", "claimed", "acknowledged"]
    assert [row["event"] for row in json.loads(run("orders", "--json", "--sequence", "3"))["events"]] == ["sent"]
    assert "acknowledged" in run("orders", "--event", "acknowledged")
    assert "messageLoggingEnabled is off" in run("plain")


def write_events(context: Context, destination: str) -> None:
    table = domain_of(context).life_cycle(destination)
    assert table is not None
    log = domain_of(context).log(destination).refresh()
    LifeCycleTable(table, log.table_id).write_sent(log)


@pytest.mark.parametrize("limit", [1, 5, 1000])
def test_newest_events_are_the_end_of_all(context: Context, limit: int) -> None:
    """T6: also of those of one kind, and of what is not in the table yet."""
    domain, store = domain_of(context), records_of(context)
    for number in range(6):
        context.producer("spread").send(text=str(number))
        write_events(context, "spread")
    with context.consumer("spread", acknowledge="auto") as consumer:
        for _ in range(4):
            assert consumer.receive(timeout=10) is not None
    everything = events(domain, store, "spread")
    assert newest_events(domain, store, "spread", limit, lambda row: True) == everything[-limit:]
    sent = [row for row in everything if row.event == "sent"]
    assert newest_events(domain, store, "spread", limit, lambda row: row.event == "sent") == sent[-limit:]


def test_newest_events_read_the_newest_files(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T6: a long life-cycle log costs `jmsq events` no more than a short one."""
    for number in range(8):
        context.producer("orders").send(text=str(number))
        write_events(context, "orders")
    table = domain_of(context).life_cycle("orders")
    assert table is not None
    assert len(table.refresh().members[0].files) >= 4
    monkeypatch.setattr(life_cycle_view, "_CLOCKS_DIFFER_MS", -10_000)  # as if the files were minutes apart
    read: list[str] = []
    original = life_cycle_view.rows_of

    def noted(log: Any, file: Any, *more: Any) -> Any:
        read.append(file.path)
        return original(log, file, *more)

    monkeypatch.setattr(life_cycle_view, "rows_of", noted)
    (newest,) = newest_events(domain_of(context), records_of(context), "orders", 1, lambda row: True)
    assert newest.last == 8
    assert len(read) == 1
