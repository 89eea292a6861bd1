"""The change feed: every change once, whatever happens to tables and files meanwhile (M12)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_jms import apply, connect
from spark_jms.admin.backup import back_up, restore
from spark_jms.admin.destinations import drop_destination, rename_destination
from spark_jms.admin.purge import drop_backlog, purge_files
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.client import Context
from spark_jms.core.changes.change import MINUTE_MS, FeedPosition, MessageChange
from spark_jms.core.messages.ranges import Ranges
from spark_jms.errors import ForeignCheckpointError, InvalidDestinationError, OffsetError, OptionError, StaleDomainError
from spark_jms.log.changes import plan as plans
from spark_jms.log.changes.feed import ChangeFeed
from spark_jms.log.changes.positions import FeedTables
from spark_jms.log.changes.rows import FEED_SCHEMA, batches_of, changes_of
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.clean_up import CleanUp, checkpoint
from spark_jms.log.upkeep.compaction import compact
from spark_jms.log.upkeep.purge import purge_acknowledgements
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.messages.shorthands import send_texts, texts_now

QUEUE: dict[str, Any] = {"kind": "queue", "file_grace_ms": 0}
DESTINATIONS: dict[str, Any] = {
    "orders": QUEUE,
    "spread": {"kind": "distributed-queue", "members": 3},
    "prices": "topic",
}


@pytest.fixture
def context() -> Iterator[Context]:
    with memory_domain("file", **DESTINATIONS) as root, connect(root, housekeeping=False) as made:
        yield made


def finish(context: Context, destination: str, count: int) -> None:
    with context.consumer(destination) as consumer:
        assert None not in texts_now(consumer, count)


def counts(changes: list[MessageChange]) -> dict[tuple[str, str], int | None]:
    found: Counter[tuple[str, str]] = Counter()
    for one in changes:
        found[one.destination, one.kind] += one.messages or 0
    return dict(found)


def numbers(changes: list[MessageChange], kind: str, member: int = 0) -> Ranges:
    """Each of them once."""
    parts = [
        Ranges.from_json(json.loads(one.ranges or "[]")) for one in changes if (one.kind, one.member) == (kind, member)
    ]
    whole = Ranges.of(*(pair for part in parts for pair in part))
    assert whole.count == sum(part.count for part in parts)
    return whole


def purge(context: Context, destination: str) -> None:
    """What is finished leaves the table, and its files leave the disk."""
    assert purge_files(domain_of(context), records_of(context), destination).purged_files
    CleanUp(domain_of(context).log(destination)).run()


# -- what it tells -----------------------------------------------------------------------------------------------------
def test_feed_tells_what_was_sent_and_how_it_ended(context: Context) -> None:
    """M12: of all destinations, or of one; it consumes nothing and begins where it ended."""
    send_texts(context, "a", "b", "c")
    context.producer("orders").send(text="d", time_to_live="90 s")
    send_texts(context, "e", to="spread")
    feed, own = context.changes(), context.changes("orders")
    assert counts(list(feed)) == {("orders", "sent"): 4, ("spread", "sent"): 1}
    finish(context, "orders", 2)
    found = list(own)
    assert counts(found) == {("orders", "sent"): 4, ("orders", "finished"): 2}
    sent = [one for one in found if one.kind == "sent"]
    assert {one.due_ms is None for one in sent} == {True, False}
    assert numbers(found, "sent") == Ranges.of((1, 4))
    assert numbers(found, "finished") == Ranges.of((1, 2))
    for one in sent:
        assert one.at_ms == one.minute_ms
        assert one.minute_ms is not None
        assert now_ms() - 2 * MINUTE_MS < one.minute_ms <= now_ms()
        assert one.bytes
    due = next(one.due_ms for one in sent if one.due_ms is not None)
    assert due % MINUTE_MS == 0
    assert 90_000 < due - sent[0].read_ms + 1_000 <= 90_000 + MINUTE_MS + 2_000
    ends = [one for one in found if one.kind == "finished"]
    assert [one.position for one in ends] == list(range(1, len(ends) + 1))
    assert all(one.subscription == "-" and one.consumer and one.claim and one.detail is None for one in ends)
    assert list(own) == []
    assert counts(list(feed)) == {("orders", "finished"): 2}
    with context.consumer("orders") as consumer:
        assert texts_now(consumer, 3) == ["c", "d", None]


def test_position_continues_in_another_process(context: Context) -> None:
    """M12: `since` is earliest, latest, or a position; an iteration that did not end moves nothing."""
    send_texts(context, "a", "b")
    latest = context.changes("orders", "latest")
    feed = context.changes("orders")
    next(iter(feed))
    assert counts(list(feed)) == {("orders", "sent"): 2}
    send_texts(context, "c")
    again = ChangeFeed(Domain(context.root), "orders", feed.position)
    assert counts(list(again)) == counts(list(latest)) == {("orders", "sent"): 1}
    with pytest.raises(ForeignCheckpointError, match="of spread cannot continue at a position of orders"):
        list(context.changes("spread", feed.position))
    with pytest.raises(ForeignCheckpointError, match=r"of \* cannot continue at a position of orders"):
        list(context.changes(None, feed.position))
    with pytest.raises(ForeignCheckpointError):
        list(context.changes("orders", context.changes(None, "latest").position))
    for wrong in (
        "yesterday",
        "{}",
        '{"v":1,"life":"x","at":"y","d":"","t":{}}',
        "7",
        '{"v":1,"life":"","at":1,"d":"","t":{"i":{}}}',
    ):
        with pytest.raises(OffsetError, match="a position of the change feed cannot be read"):
            context.changes("orders", wrong)
    with pytest.raises(InvalidDestinationError, match="there is no destination 'nowhere'"):
        context.changes("nowhere")
    with pytest.raises(OptionError, match="leave the server out"):
        context.changes("east@orders")


def test_messages_of_many_minutes_are_rows_by_minute(context: Context) -> None:
    """M12: in one file or in several, merged or not, the rows are the same but for the bytes."""
    log = domain_of(context).log("orders")
    for _ in range(4):
        context.producer("orders").send_many(
            {"text": str(n), "time_to_live": None if n % 3 == 0 else f"{60 * (n % 3)} s"} for n in range(30)
        )
    before = list(context.changes("orders"))
    assert counts(before) == {("orders", "sent"): 120}
    assert {one.messages for one in before if one.due_ms is None} == {40}
    assert [one.bytes for one in before] == [None] * len(before)
    compact(log)
    assert len(log.refresh().files) < 4
    after = list(context.changes("orders"))
    assert [(one.ranges, one.at_ms, one.due_ms) for one in after] == [
        (one.ranges, one.at_ms, one.due_ms) for one in before
    ]


def test_bytes_are_those_that_senders_wrote(context: Context) -> None:
    """M12: of whole files; unknown once they were merged."""
    log = domain_of(context).log("orders")
    for text in "12345678":
        send_texts(context, text)
    size = sum(file.bytes for file in log.refresh().files.values())
    assert sum(one.bytes or 0 for one in context.changes("orders")) == size
    compact(log)
    assert len(log.refresh().files) == 1
    assert [one.bytes for one in context.changes("orders")] == [None]


# -- what happens to tables meanwhile ----------------------------------------------------------------------------------
def test_log_clean_up_compaction_and_rename_change_nothing(context: Context) -> None:
    """M12: positions are numbers by the id of the table, not versions of its log."""
    domain, feed, found = domain_of(context), context.changes("orders"), list[MessageChange]()
    for _ in range(3):
        for text in "abcdefgh":
            send_texts(context, text)
        finish(context, "orders", 4)
        found += feed
        housekeeper = Housekeeper(domain, records_of(context), "orders")
        for kind in ("messages", "acknowledgements"):
            compact(housekeeper.rounds.logs[kind])
            checkpoint(housekeeper.rounds.logs[kind])
            CleanUp(housekeeper.rounds.logs[kind]).run()
        housekeeper.close()
    rename_destination(domain, records_of(context), "orders", "sales")
    send_texts(context, "x", to="sales")
    finish(context, "sales", 1)
    found += feed
    assert numbers(found, "sent") == Ranges.of((1, 25))
    assert numbers(found, "finished") == Ranges.of((1, 13))
    assert {one.destination for one in found} == {"orders", "sales"}
    send_texts(context, "y", to="sales")
    (renamed,) = context.changes("sales", feed.position)
    assert (renamed.destination, renamed.first) == ("sales", 26)
    assert {one.table for one in found} == {domain.log("sales").refresh().table_id}


def test_late_reader_is_told_what_is_gone(context: Context) -> None:
    """M12: messages that were purged before, by their number; rows that are older than acknowledgementRetention."""
    send_texts(context, "a", "b", "c")
    finish(context, "orders", 3)
    send_texts(context, "d")
    feed = context.changes("orders", "latest")
    purge(context, "orders")
    found = list(context.changes("orders"))
    gone = [(one.detail, one.first, one.last, one.messages, one.at_ms) for one in found if one.kind == "gone"]
    assert gone == [("sent", 1, 3, 3, None)]
    assert counts(found) == {("orders", "sent"): 1, ("orders", "finished"): 3, ("orders", "gone"): 3}
    assert list(feed) == []
    table = domain_of(context).acknowledgements("orders")
    rows = table.refresh().last_sequence(0)
    assert purge_acknowledgements(table, 0, now=now_ms() + 1_000)
    late = list(context.changes("orders"))
    gone = [(one.detail, one.first, one.last, one.messages, one.at_ms) for one in late if one.kind == "gone"]
    assert gone == [("sent", 1, 3, 3, None), ("ended", 1, rows, None, None)]


def test_destination_that_is_created_again_begins_anew(context: Context) -> None:
    """M12: the old table's rest is named, and the new one's numbers begin at 1."""
    domain, store = domain_of(context), records_of(context)
    send_texts(context, "a", "b")
    feed, everything = context.changes("orders"), context.changes()
    old = domain.log("orders").refresh().table_id
    assert len(list(feed)) == 1
    list(everything)
    drop_destination(domain, store, "orders", force=True)
    (one,) = feed
    assert (one.kind, one.detail, one.table, one.first, one.last, one.messages) == (
        "gone",
        "dropped",
        old,
        3,
        None,
        None,
    )
    assert list(feed) == []
    apply(context.root, {"destinations": {"orders": {"kind": "queue"}}})
    with connect(context.root, housekeeping=False) as later:
        send_texts(later, "c")
    (new,) = feed
    assert (new.kind, new.first, new.last) == ("sent", 1, 1)
    assert new.table != old
    assert [(one.kind, one.table) for one in everything] == [("gone", old), ("sent", new.table)]


def test_table_that_was_deleted_by_hand_is_no_drop(context: Context) -> None:
    """M12: the reader is told, and continues when it is restored."""
    send_texts(context, "a")
    feed = ChangeFeed(Domain(context.root), "orders")
    assert len(list(feed)) == 1
    table = Path(domain_of(context).acknowledgements("orders").storage.uri)
    table.rename(table.with_name("elsewhere"))
    with pytest.raises(InvalidDestinationError):
        list(ChangeFeed(Domain(context.root), "orders", feed.position))
    table.with_name("elsewhere").rename(table)
    send_texts(context, "b")
    assert [one.kind for one in feed] == ["sent"]


def test_restored_domain_is_named(tmp_path: Any) -> None:
    """M12, D2: also when it has sent as many messages again; and another domain's position is refused."""
    copy, here = str(tmp_path / "copy"), str(tmp_path / "here")
    with memory_domain("file", orders="queue") as root:
        with connect(root, housekeeping=False) as context:
            send_texts(context, "a")
            back_up(domain_of(context), records_of(context), copy)
            send_texts(context, "b")
            feed = context.changes()
            assert counts(list(feed)) == {("orders", "sent"): 2}
        restore(copy, root, force=True)
        with connect(root, housekeeping=False) as context:
            send_texts(context, "another b", "c")
            with pytest.raises(StaleDomainError, match="an older copy of the domain was restored"):
                list(ChangeFeed(Domain(root), since=feed.position))
            with pytest.raises(StaleDomainError):
                list(feed)
            assert counts(list(context.changes())) == {("orders", "sent"): 3}
        apply(here, {"destinations": {"orders": {"kind": "queue"}}})
        with connect(here) as other, pytest.raises(StaleDomainError):
            list(other.changes(since=feed.position))


def test_file_that_is_replaced_after_the_plan_is_looked_up_again(context: Context) -> None:
    """M12: merged, purged, or dropped with its table, between the plan and its tasks."""
    domain = domain_of(context)
    for n in range(8):
        context.producer("orders").send_many([{"text": f"{n}a"}, {"text": f"{n}b", "time_to_live": "90 s"}])
    finish(context, "orders", 4)
    tables = FeedTables(domain, "orders")
    start = FeedPosition()
    end = tables.newest(start)
    parts = plans.plan(domain.root, tables, start, end)
    first = [one for part in parts for one in changes_of(part)]
    compact(domain.log("orders"))
    CleanUp(domain.log("orders")).run()
    assert [one for part in parts for one in changes_of(part)] == first
    assert counts(first) == {("orders", "sent"): 16, ("orders", "finished"): 4}
    drop_backlog(domain, records_of(context), "orders", None, [0], 5)
    purge(context, "orders")
    purged = [one for part in parts for one in changes_of(part)]
    assert counts(purged) == {("orders", "gone"): 16, ("orders", "finished"): 4}
    drop_destination(domain, records_of(context), "orders", force=True)
    assert counts([one for part in parts for one in changes_of(part)]) == {("orders", "gone"): 16}


# -- batches -----------------------------------------------------------------------------------------------------------
def test_parts_have_each_change_once(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """M12: however many tasks there are; their columns are those of the schema."""
    domain = domain_of(context)
    for n in range(40):
        context.producer("spread").send_many({"text": str(n), "time_to_live": f"{m} h"} for m in range(1, 6))
    finish(context, "spread", 50)
    tables = FeedTables(domain, "*")
    start = FeedPosition()
    end = tables.newest(start)
    (whole,) = plans.plan(domain.root, tables, start, end)
    expected = list(changes_of(whole))
    monkeypatch.setattr(plans, "SMALL_WEIGHT", 10)
    monkeypatch.setattr(plans, "_PART_WEIGHT", 700)
    parts = plans.plan(domain.root, tables, start, end)
    assert 3 < len(parts) <= 16
    found = [one for part in parts for one in changes_of(part)]
    assert counts(found) == counts(expected) == {("spread", "sent"): 200, ("spread", "finished"): 50}
    for member in range(3):
        for kind in ("sent", "finished"):
            assert numbers(found, kind, member) == numbers(expected, kind, member)
    for batch in batches_of(whole):
        assert batch.schema == FEED_SCHEMA
        assert sum(batch["messages"].to_pylist()) == 250


def test_limited_batches_reach_everything(context: Context) -> None:
    """M12: about so many at a time, members in turn; a message ends in the batch in which it was sent, or later."""
    send_texts(context, *map(str, range(50)), to="spread")
    send_texts(context, *map(str, range(7)))
    finish(context, "spread", 20)
    tables = FeedTables(domain_of(context), "*")
    position, found, batches = FeedPosition(), list[MessageChange](), 0
    sent: dict[tuple[str, int], int] = {}
    while (end := position.towards(tables.newest(position), 10)).tables != position.tables:
        assert sum(span.size for span in position.spans(end)) <= 10
        rows = [one for part in plans.plan(context.root, tables, position, end) for one in changes_of(part)]
        for one in rows:
            if one.kind == "sent":
                sent[one.table, one.member] = one.last or 0
        for one in rows:
            if one.kind == "finished":
                assert one.last is not None
                assert one.last <= sent[one.table, one.member]
        found, position, batches = found + rows, FeedPosition.from_text(end.to_text()), batches + 1
    assert counts(found) == {("spread", "sent"): 50, ("orders", "sent"): 7, ("spread", "finished"): 20}
    assert batches >= 6
