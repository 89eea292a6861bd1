"""A consumer refuses a damaged domain before it does harm (C5, C16)."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jms import connect
from spark_jms.claims.batches import ConsumerSettings
from spark_jms.claims.subscriber import Subscriber
from spark_jms.core.batch import Batch, Limits
from spark_jms.errors import RecordSetError
from spark_jms.log.delta_log import commit_path
from spark_jms.log.domain import Domain
from spark_jms.testing import memory_domain


def test_table_behind_its_store_is_refused() -> None:
    """C5, C16: if the store knows more messages than the table, new messages would count as done without being read."""
    with memory_domain("file", orders="queue") as root, connect(root) as context:
        producer = context.producer("orders")
        for n in range(3):
            producer.send(text=str(n))
        with context.consumer("orders", prefetch=10) as consumer:
            last = [consumer.receive(timeout_s=10) for _ in range(3)][-1]
            assert last is not None
            last.acknowledge()
        log = context.domain.log("orders")
        version = log.refresh().version
        Path(log.storage.uri, commit_path(version)).unlink()
        fresh = Domain(context.domain.root)
        subscriber = Subscriber(fresh, context.store, "orders", "-", "q", ConsumerSettings())
        with pytest.raises(RecordSetError, match=r"the store knows message 3 of orders/-/0, but the table ends at 2"):
            subscriber.next_batch(Batch("q"), Limits())
        subscriber.close()
