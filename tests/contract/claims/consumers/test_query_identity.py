"""One checkpoint, one running query: a copied checkpoint, a restarted driver, a driver that slept (C9, C18)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spark_jms import connect
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.records import members
from spark_jms.claims.servers.stores import open_stores, store_of
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.records.batch import Batch, Limits, QueryProgress, claim_number
from spark_jms.errors import (
    ConsumerClosedException,
    DestinationReplacedError,
    FormatVersionError,
    QueryRunningError,
    RecordSetError,
)
from spark_jms.log.destinations.domain import Domain
from spark_jms.store import MemoryStore, Store
from spark_jms.testing import memory_domain
from spark_jms.testing.domain import wait_until
from spark_jms.testing.inside import members_of, records_of
from tests.harness.domains.servers import Away, applied, next_batch, queue_on


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "OPEN_TIMEOUT_S", 0.0)


def query(root: str, store: Store, consumer: str = "q") -> Subscriber:
    return Subscriber(Domain(root), store, "orders", "-", consumer, ConsumerSettings())


def two_members(root: str) -> None:
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send_many({"text": str(n)} for n in range(40))


ORDERS: dict[str, Any] = {"kind": "distributed-queue", "members": 2}


def test_copied_checkpoint_claims_nothing_while_its_original_runs() -> None:
    """C9: the copy started in mid-batch, with two members. The original keeps its members, its claims and its numbers."""
    with memory_domain(orders=ORDERS) as root, connect(root, housekeeping=False) as context:
        two_members(root)
        original, copy = query(root, records_of(context)), query(root, records_of(context))
        first = original.next_batch(Batch("q"), Limits(max_messages=4))
        assert first is not None
        for start in (Batch("q"), first):
            with pytest.raises(QueryRunningError, match="another instance of query q of orders is running"):
                copy.next_batch(start, Limits(max_messages=4))
        with pytest.raises(QueryRunningError):
            copy.resume(first)
        copy.close()
        second = original.next_batch(first, Limits(max_messages=4))
        assert second is not None
        assert [claim_number(first.claim), claim_number(second.claim)] == [1, 2]
        original.close()


def test_copy_and_original_never_claim_on_different_servers(tmp_path: Path) -> None:
    """C9, D4: servers were away, and each of the two has met another one first. Both would give their next batches the same number,
    with messages of their own server, and the sink would drop one of them."""
    root = applied(tmp_path, queue_on("a", "b"))
    domain = Domain(root)
    with open_stores(domain) as store:
        original, copy = (Subscriber(domain, store, "orders", "-", "q", ConsumerSettings()) for _ in range(2))
        start = Batch("q", table=original.table_id)
        for one, server in ((original, "b"), (copy, "a")):
            with Away(root, server):
                assert one.next_batch(start, Limits()) is None
        for one, server in ((original, "b"), (copy, "a")):

            def is_found_out(one: Subscriber = one, server: str = server) -> bool:
                return one.next_batch(start, Limits()) is None and "QueryRunning" in one.away().get(server, "")

            wait_until(is_found_out)
        with connect(root, housekeeping=False) as context:
            for server in ("a", "b"):
                context.producer(f"{server}@orders").send(text=server)
        for one in (original, copy):
            assert one.next_batch(start, Limits()) is None
            assert one.waits_for({0: 1, 1: 1}, 0), "Trigger.AvailableNow does not end while the other may end"
        copy.close()
        assert next_batch(original, start).delivered.keys() == {0, 1}
        original.close()


def test_next_instance_continues_and_never_repeats_a_number() -> None:
    """C9, C5: after the original has ended, the copy may continue, but a claim that Spark never logged keeps its number."""
    with memory_domain(orders=ORDERS) as root, connect(root, housekeeping=False) as context:
        two_members(root)
        original = query(root, records_of(context))
        first = original.next_batch(Batch("q"), Limits(max_messages=4))
        assert first is not None
        original.next_batch(first, Limits(max_messages=4))  # claim 2, which Spark does not log
        original.close()
        copy = query(root, records_of(context))
        third = copy.next_batch(first, Limits(max_messages=4))
        assert third is not None
        assert claim_number(third.claim) == 3
        copy.close()


def test_driver_that_slept_can_commit_nothing() -> None:
    """C9: its session ended and another instance holds the query: neither a claim nor an acknowledgement gets through, on
    any member, also one whose record nobody else has opened."""
    with memory_domain(orders=ORDERS) as root, connect(root, housekeeping=False) as context:
        two_members(root)
        store = store_of(records_of(context), HOME)
        assert isinstance(store, MemoryStore)
        sleeper = query(root, records_of(context))
        first = sleeper.next_batch(Batch("q"), Limits(max_messages=4))
        assert first is not None
        store.crash(members_of(sleeper).session)
        other = query(root, records_of(context))
        assert not other.resume(first)
        for call in (lambda: sleeper.next_batch(first, Limits()), lambda: sleeper.resume(first)):
            with pytest.raises(ConsumerClosedException):
                call()
        assert other.next_batch(first, Limits(max_messages=4)) is not None
        other.close()


def test_offset_of_another_table_is_refused() -> None:
    """C18: a checkpoint of a destination that was dropped and created again names another table."""
    with memory_domain(orders=ORDERS) as root, connect(root, housekeeping=False) as context:
        two_members(root)
        consumer = query(root, records_of(context))
        with pytest.raises(DestinationReplacedError, match="fresh checkpointLocation"):
            consumer.next_batch(Batch("q", "7-abc", {}, "another-table"), Limits())
        with pytest.raises(DestinationReplacedError):
            consumer.resume(Batch("q", "7-abc", {}, "another-table"))
        assert consumer.next_batch(Batch("q", table=consumer.table_id), Limits()) is not None
        consumer.close()


def test_progress_round_trips_and_names_damage() -> None:
    """C16: as every stored value."""
    known = QueryProgress(7, "6-abc")
    assert QueryProgress.from_bytes(known.to_bytes(), "q") == known
    assert QueryProgress.from_bytes(None, "q") == QueryProgress()
    assert known.with_acknowledged("5-old") is known
    assert known.is_behind("5-old")
    assert known.is_behind("")
    assert not known.is_behind("0123456789abcdef")  # of a version without numbers
    for bad in (b"", b"{}", b"[]", b'{"v":2}', b"\xff"):
        with pytest.raises(RecordSetError, match="progress of q"):
            QueryProgress.from_bytes(bad, "q")
    with pytest.raises(FormatVersionError, match="version 9"):
        QueryProgress.from_bytes(b'{"v":9}', "q")
