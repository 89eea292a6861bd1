"""A batch that Spark asks for again although it is acknowledged: its commit log has lost the newest entry (C5, C9)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

import spark_jms
from spark_jms.admin.backup import back_up, restore
from spark_jms.admin.claims import find_claim, release_claim
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers import branches
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.servers.stores import open_stores, store_of
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.batch import PROGRESS, Batch, Limits, QueryProgress
from spark_jms.errors import MemberUnavailableError, StaleCheckpointError, StaleDomainError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.upkeep.purge import purge
from spark_jms.spark.options import parse_options
from spark_jms.spark.source import JmsqStreamReader
from spark_jms.spark.tasks import SmallBatchPartition
from spark_jms.store import Put
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import members_of
from tests.harness.domains.servers import Away, applied, next_batch, queue_on
from tests.harness.messages.poison_query import Query, Sink, numbers, send

LIMIT = ReadMaxRows(1000)
Instance = Callable[..., Subscriber]
Offset = dict[str, Any]
ON_A, ON_B = 0, 1


@pytest.fixture
def root() -> Iterator[str]:
    orders = {"kind": "distributed-queue", "members": 3, "error_destination": "failed"}
    with memory_domain("file", orders=orders, prices="topic", failed="queue") as where:
        yield where


def reader(root: str, destination: str = "orders", **options: str) -> JmsqStreamReader:
    return JmsqStreamReader(parse_options({"root": root, "destination": destination, **options}))


def rows(source: JmsqStreamReader, start: Offset, end: Offset) -> list[tuple[str, int]]:
    """Text and delivery count of what the batch delivers, as its tasks read it."""
    read = [row for part in source.partitions(start, end) for batch in source.read(part) for row in batch.to_pylist()]
    return [(row["text"], row["JMSXDeliveryCount"]) for row in read]


def acknowledged_batch(root: str, destination: str = "orders", **options: str) -> tuple[Offset, Offset]:
    """A batch of a, b and c, between two offsets. The query asked for more, so it was in Spark's commit log, and has ended."""
    source = reader(root, destination, **options)
    start = source.initialOffset()
    assert source.latestOffset(start, LIMIT) == start
    if destination == "prices":
        source.latestOffset(start, LIMIT)
    send(root, destination, "a", "b", "c")
    end = source.latestOffset(start, LIMIT)
    assert sorted(rows(source, start, end)) == [("a", 1), ("b", 1), ("c", 1)]
    assert source.latestOffset(end, LIMIT) == end
    source.stop()
    return start, end


@pytest.mark.parametrize(
    ("destination", "options"),
    [("orders", {}), ("orders", {"smallBatchMessages": "10"}), ("prices", {"subscription": "s"})],
)
def test_acknowledged_batch_is_delivered_again(root: str, destination: str, options: dict[str, str]) -> None:
    """C5, C9: a sink that replaces by batch id would lose the batch if it came empty. The query continues behind it."""
    start, end = acknowledged_batch(root, destination, **options)
    for _ in range(2):  # the replay may fail as well
        again = reader(root, destination, **options)
        assert sorted(rows(again, start, end)) == [("a", 1), ("b", 1), ("c", 1)]
        if "smallBatchMessages" in options:
            assert [type(part) for part in again.partitions(start, end)] == [SmallBatchPartition]
        again.stop()
    last = reader(root, destination, **options)
    assert rows(last, start, end)
    assert last.latestOffset(end, LIMIT) == end
    send(root, destination, "d")
    assert rows(last, end, last.latestOffset(end, LIMIT)) == [("d", 1)]
    last.stop()


def test_purged_batch_is_refused_by_name(root: str) -> None:
    """C5: the messages are gone, so neither the batch nor an empty one in its place is delivered."""
    start, end = acknowledged_batch(root)
    assert purge(Domain(root).log("orders"), lambda name, member, picks: member == 1).purged_files
    again = reader(root)
    with pytest.raises(StaleCheckpointError, match="is acknowledged.*1 of its messages were purged since"):
        again.partitions(start, end)
    again.stop()


def test_replay_of_an_older_batch_is_refused_before_it_is_delivered(root: str) -> None:
    """C5, C9: the query has acknowledged a later batch, so the sink has both."""
    start, end = acknowledged_batch(root)
    source = reader(root)
    send(root, "orders", "d")
    later = source.latestOffset(end, LIMIT)
    source.latestOffset(later, LIMIT)
    source.stop()
    again = reader(root)
    with pytest.raises(StaleCheckpointError, match=f"has acknowledged claim {later['claim']}"):
        again.partitions(start, end)
    again.stop()


def test_revoked_messages_stay_out_of_the_replay(root: str) -> None:
    """C5, C8: another consumer has them. The batch was replayed without them before its acknowledgement, and is again after
    it, whatever the other consumer has done with them."""
    source = reader(root)
    start = source.initialOffset()
    source.latestOffset(start, LIMIT)
    send(root, "orders", "a", "b", "c")
    end = source.latestOffset(start, LIMIT)
    source.stop()
    domain = Domain(root)
    with open_stores(domain) as store:
        claimed = [row for row in find_claim(domain, store, ["orders"], end["claim"]) if row.member == 1]
        release_claim(domain, store, claimed, 5.0)
    replay = reader(root)
    left = rows(replay, start, end)
    assert len(left) == 2
    flagged = replay.latestOffset(end, LIMIT)  # acknowledges
    assert flagged["members"].keys() == {"1"}
    replay.stop()
    with open_stores(domain) as store:
        release_claim(domain, store, find_claim(domain, store, ["orders"], flagged["claim"]), 5.0)
    with spark_jms.connect(root, housekeeping=False) as context, context.consumer("orders") as consumer:
        again = reader(root)
        assert rows(again, start, end) == left
        again.stop()
        message = consumer.receive(30)
        assert message is not None
        assert message.redelivered
        message.acknowledge()
    last = reader(root)
    assert rows(last, start, end) == left
    last.stop()


def test_narrowed_batch_is_delivered_again_as_narrowed(root: str) -> None:
    """C5, M4: what a batch withheld came with later ones."""
    send(root, "orders", *numbers(1, 8))
    sink = Sink(bad={"3"})
    query = Query(root, "orders", sink)
    query.drain()
    number = len(query.offsets) - 1
    newest = sorted((row["text"], row["JMSXDeliveryCount"]) for row in sink.batches[number])
    again = reader(root, onPoison="isolate", idempotentSink="true")
    assert sorted(rows(again, query.offsets[-2], query.offsets[-1])) == newest
    again.stop()


def test_withheld_messages_of_an_acknowledged_batch_are_not_in_its_replay(root: str) -> None:
    """C5, M4: the driver dies before Spark logs the batch of the withheld messages; they have its claim."""
    send(root, "orders", *numbers(1, 8))
    sink = Sink(bad={"3"})
    query = Query(root, "orders", sink)
    while not sink.batches:
        query.unlogged = 2
        query.run()
    taken = sorted(row["text"] for row in sink.batches[1])
    assert 0 < len(taken) < 8
    again = reader(root, onPoison="isolate", idempotentSink="true")
    assert sorted(text for text, _ in rows(again, query.offsets[0], query.offsets[1])) == taken
    again.stop()
    query.drain()
    assert sorted(sink.texts) == sorted(set(numbers(1, 8)) - {"3"})


def test_member_that_is_not_acknowledged_yet_is_in_the_replay(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C5, C9: an administrator has its record open, so the claim is still there. What comes once is acknowledged once."""
    monkeypatch.setattr(branches, "RESUME_S", 0.0)
    domain = Domain(root)
    with open_stores(domain) as store:

        def instance(consumer: str, **settings: Any) -> Subscriber:
            return Subscriber(domain, store, "orders", "-", consumer, ConsumerSettings(**settings))

        query = instance("q")
        send(root, "orders", "a", "b", "c")
        batch = query.next_batch(Batch("q", table=query.table_id), Limits())
        assert batch is not None
        assert batch.members.keys() == {0, 1, 2}
        with store.connect("jmsq move") as administrator, administrator.open(members_of(query).record(1)):
            assert query.next_batch(batch, Limits()) is None
            assert query.is_unacknowledged(batch)
            query.close()
        restarted = instance("q")
        assert restarted.resume(batch) == {}
        assert restarted.next_batch(batch, Limits()) is None
        assert not restarted.is_unacknowledged(batch)
        assert restarted.resume(batch) == {}
        assert not any(restarted.backlog().values())
        restarted.close()


def test_progress_keeps_what_an_acknowledgement_left() -> None:
    """C16: as every stored value; without it the form is that of the releases before."""
    left = {0: Ranges.of((3, 4)), 2: Ranges.of((1, 1))}
    known = QueryProgress(6).with_acknowledged("6-abc", {**left, 1: Ranges.of((1, 9))})
    known = known.with_finished("6-abc", {1: Ranges.of((1, 9))})
    assert known == QueryProgress(6, "6-abc", left=left)
    assert QueryProgress.from_bytes(known.to_bytes(), "q") == known
    assert known.with_finished("5-old", left) is known
    whole = known.with_finished("6-abc", left)
    assert whole.to_bytes() == b'{"v":2,"claimed":6,"acknowledged":"6-abc"}'
    assert known.with_acknowledged("7-new") == QueryProgress(7, "7-new")


# -- servers -------------------------------------------------------------------------------------------------------------
@pytest.fixture
def on_servers(tmp_path: Path) -> str:
    where = applied(tmp_path, queue_on("a", "b", "c"))
    send_to(where, "a", "b", "c")
    return where


def send_to(root: str, *servers: str) -> None:
    with spark_jms.connect(root, housekeeping=False) as context:
        for server in servers:
            with context.producer(f"{server}@orders") as producer:
                producer.send(text=server)


@pytest.fixture
def instance(on_servers: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Instance]:
    """Makes instances of one query; the one before has died."""
    monkeypatch.setattr(branches, "RESUME_S", 0.2)
    domain = Domain(on_servers)
    opened: list[Subscriber] = []
    with open_stores(domain) as store:

        def made(**settings: Any) -> Subscriber:
            for old in opened:
                old.close()
            opened.append(Subscriber(domain, store, "orders", "-", "q", ConsumerSettings(**settings)))
            return opened[-1]

        yield made
        for one in opened:
            one.close()


def first_batch(query: Subscriber) -> Batch:
    batch = Batch.from_json(next_batch(query, Batch("q", table=query.table_id)).to_json())
    assert batch.delivered.keys() == {0, 1, 2}
    assert query.resume(batch) == {}
    return batch


@pytest.mark.parametrize("isolates", [False, True])
def test_acknowledged_batch_of_several_servers_is_delivered_again(instance: Instance, isolates: bool) -> None:
    """C5, M10: as on one."""
    query = instance(isolates_poison=isolates)
    batch = first_batch(query)
    assert query.next_batch(batch, Limits()) is None
    for _ in range(2):
        query = instance(isolates_poison=isolates)
        assert query.resume(batch) == {}
    assert query.next_batch(batch, Limits()) is None
    assert not any(query.backlog().values())


def test_batch_that_one_server_has_not_acknowledged_is_delivered_again(on_servers: str, instance: Instance) -> None:
    """C5, D8: it was away then. It comes with its claim, the others with what they have acknowledged."""
    query = instance()
    batch = first_batch(query)
    with Away(on_servers, "b"):
        assert query.next_batch(batch, Limits()) is None
    again = instance()
    assert again.resume(batch) == {}
    assert again.next_batch(batch, Limits()) is None
    assert not any(again.backlog().values())


def test_acknowledged_batch_waits_for_its_servers(on_servers: str, instance: Instance) -> None:
    """C5, D4: the away server may have acknowledged its messages, so they are not left out: they would never come."""
    query = instance()
    batch = first_batch(query)
    assert query.next_batch(batch, Limits()) is None
    with Away(on_servers, "b"), pytest.raises(MemberUnavailableError, match="server b, which is away"):
        instance().resume(batch)
    assert instance().resume(batch) == {}


def test_noted_acknowledgement_waits_for_its_servers(on_servers: str, instance: Instance) -> None:
    """C5, D4: only the root knows that the batch is acknowledged, because the servers that have written it are away."""
    query = instance()
    batch = first_batch(query)
    with Away(on_servers, "a"):
        assert query.next_batch(batch, Limits()) is None
    with Away(on_servers, "b"), Away(on_servers, "c"), pytest.raises(MemberUnavailableError, match="which is away"):
        instance().resume(batch)


def test_replay_behind_a_noted_acknowledgement_is_refused(on_servers: str, instance: Instance) -> None:
    """C5, C9: b and c, which have acknowledged a later batch, are away; the root knows it."""
    query = instance()
    batch = first_batch(query)
    with Away(on_servers, "a"):
        send_to(on_servers, "b")
        later = next_batch(query, batch)
        assert query.next_batch(later, Limits()) is None
    with Away(on_servers, "b"), Away(on_servers, "c"), pytest.raises(StaleCheckpointError, match=later.claim):
        instance().resume(batch)


def test_left_out_messages_are_in_no_replay_of_their_batch(on_servers: str, instance: Instance) -> None:
    """C5, D4: the batch was acknowledged without them, and they have come with a later one."""
    batch = first_batch(instance())
    restarted = instance()
    with Away(on_servers, "b"):
        assert restarted.resume(batch).keys() == {ON_B}
    flagged = next_batch(restarted, batch)
    assert flagged.delivered.keys() == {ON_B}
    assert instance().resume(batch).keys() == {ON_B}


def test_acknowledged_batch_of_a_removed_member_is_refused(on_servers: str) -> None:
    """C5, D1: its messages went with it."""
    domain = Domain(on_servers)
    with open_stores(domain) as store:
        query = Subscriber(domain, store, "orders", "-", "q", ConsumerSettings())
        batch = first_batch(query)
        assert query.next_batch(batch, Limits()) is None
        query.close()
        spark_jms.apply(on_servers, queue_on("a", "c"))
        restarted = Subscriber(domain, store, "orders", "-", "q", ConsumerSettings())
        with pytest.raises(StaleCheckpointError, match="member 1 was removed"):
            restarted.resume(batch)
        restarted.close()


# -- restored domains ----------------------------------------------------------------------------------------------------
def backed_up(root: str, to: Path) -> None:
    domain = Domain(root)
    with open_stores(domain) as store:
        back_up(domain, store, str(to))


@pytest.mark.parametrize("asks_first", [False, True])
def test_checkpoint_newer_than_a_restored_domain_is_refused(root: str, tmp_path: Path, asks_first: bool) -> None:
    """C19, C5: the backup has not seen the query's newest batches. Their messages would come again under numbers that the
    sink has not seen, or a batch empty under one that it has."""
    start, end = acknowledged_batch(root)
    backed_up(root, tmp_path / "backup")
    source = reader(root)
    send(root, "orders", "d")
    later = source.latestOffset(end, LIMIT)
    assert rows(source, end, later) == [("d", 1)]
    source.stop()
    restored = str(tmp_path / "restored")
    restore(str(tmp_path / "backup"), restored)
    query = reader(restored)
    asked = (lambda: query.latestOffset(later, LIMIT)) if asks_first else (lambda: query.partitions(end, later))
    with pytest.raises(StaleDomainError, match=r"ends with claim 2-.*up to number 1.*fresh checkpointLocation"):
        asked()
    query.stop()
    same = reader(restored)  # a checkpoint of the moment of the backup
    assert sorted(rows(same, start, end)) == [("a", 1), ("b", 1), ("c", 1)]
    assert same.latestOffset(end, LIMIT) == end
    same.stop()


def test_server_restored_from_an_older_copy_is_refused(on_servers: str, instance: Instance, tmp_path: Path) -> None:
    """C19, M10: the store of one server knows less than the checkpoint; the others, without messages of the batch, say nothing."""
    query = instance()
    batch = first_batch(query)
    send_to(on_servers, "a")
    domain = Domain(on_servers)
    later = next_batch(query, batch)
    assert later.delivered.keys() == {ON_A}
    query.close()
    with open_stores(domain) as store:
        record = f"consumers/{query.table_id}/-/q"
        with store_of(store, "a").connect("an older copy") as session, session.open(record) as handle:
            handle.commit([Put(PROGRESS, QueryProgress(1, batch.claim).to_bytes())])
    with pytest.raises(StaleDomainError, match=f"ends with claim {later.claim}"):
        instance().resume(later)
    with pytest.raises(StaleDomainError, match=f"ends with claim {later.claim}"):
        instance().next_batch(later, Limits())
