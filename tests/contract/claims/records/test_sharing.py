"""Two consumers of one queue converge on fair shares (C9)."""

from __future__ import annotations

from spark_jms import connect
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.log.destinations.domain import Domain
from spark_jms.store import open_store
from spark_jms.testing import memory_domain


def test_late_consumer_gets_and_keeps_its_share() -> None:
    """C9: the first consumer has claims on all members; after a few batches each consumer takes of two members, and keeps to them."""
    with (
        memory_domain(orders={"kind": "distributed-queue", "members": 4}) as root,
        connect(root, housekeeping=False) as c,
    ):
        c.producer("orders").send_many([{"text": str(n)} for n in range(4000)])
        domain = Domain(root)
        store = open_store(domain.store_uri)
        first = Subscriber(domain, store, "orders", "-", "first", ConsumerSettings())
        second = Subscriber(Domain(root), store, "orders", "-", "second", ConsumerSettings())
        at = {first: Batch("first"), second: Batch("second")}
        spans = []
        for turn in range(24):
            for subscriber in (first, second) if turn > 2 else (first,):
                batch = subscriber.next_batch(at[subscriber], Limits(max_messages=20))
                if batch is not None:
                    at[subscriber] = batch
                    spans.append((turn, subscriber.consumer, sorted(batch.members)))
        final = {who: members for turn, who, members in spans if turn >= 18}
        assert sorted(len(members) for members in final.values()) == [2, 2]
        assert sorted(m for members in final.values() for m in members) == [0, 1, 2, 3]
        assert all(members == final[who] for turn, who, members in spans if turn >= 18)
        first.close()
        second.close()
        store.close()
