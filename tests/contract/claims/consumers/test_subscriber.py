"""A consumer refuses a damaged domain before it does harm (C5, C16)."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jms import connect
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.servers.stores import store_of
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.errors import ConsumerClosedException, RecordSetError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.checkpoints import commit_path
from spark_jms.store import MemoryStore
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of, records_of


def test_table_behind_its_store_is_refused() -> None:
    """C5, C16: if the store knows more messages than the table, new messages would count as done without being read."""
    with memory_domain("file", orders="queue") as root, connect(root) as context:
        producer = context.producer("orders")
        for n in range(3):
            producer.send(text=str(n))
        with context.consumer("orders", prefetch=10) as consumer:
            last = [consumer.receive(timeout=10) for _ in range(3)][-1]
            assert last is not None
            last.acknowledge()
        log = domain_of(context).log("orders")
        version = log.refresh().version
        Path(log.storage.uri, commit_path(version)).unlink()
        fresh = Domain(domain_of(context).root)
        subscriber = Subscriber(fresh, records_of(context), "orders", "-", "q", ConsumerSettings())
        with pytest.raises(RecordSetError, match=r"the store knows message 3 of orders/-/0, but the table ends at 2"):
            subscriber.next_batch(Batch("q"), Limits())
        subscriber.close()


def test_fenced_consumer_stays_closed() -> None:
    """C9: the background thread may find out first that the session ended; the next batch raises the same error."""
    with memory_domain(orders="queue") as root, connect(root) as context:
        for n in range(3):
            context.producer("orders").send(text=str(n))
        subscriber = Subscriber(domain_of(context), records_of(context), "orders", "-", "q", ConsumerSettings())
        assert subscriber.next_batch(Batch("q"), Limits(max_messages=1)) is not None
        store = store_of(records_of(context), HOME)
        assert isinstance(store, MemoryStore)
        store.crash(subscriber.members.session)
        with pytest.raises(ConsumerClosedException):
            subscriber.members.commit({m: h.state.attach("q", "new") for m, h in subscriber.members.held.items()})
        with pytest.raises(ConsumerClosedException):
            subscriber.next_batch(Batch("q"), Limits())
        with pytest.raises(ConsumerClosedException):
            subscriber.members.open(0)
        subscriber.close()
