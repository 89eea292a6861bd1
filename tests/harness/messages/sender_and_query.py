"""A program that sends to `orders`, and a query that receives from it, in one thread: each step is a send and a batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import spark_jms
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber, open_subscriber
from spark_jms.claims.servers.stores import open_stores
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.log.destinations.domain import Domain
from spark_jms.testing.domain import wait_until

LIMIT_S = 90.0


class SenderAndQuery:
    """One program that sends, and one query that receives."""

    def __init__(self, root: str) -> None:
        self.table = Domain(root).log("orders")
        self.domain = Domain(root)
        self.stores = open_stores(self.domain)
        subscriber = open_subscriber(self.domain, self.stores, "orders", None, "q", ConsumerSettings())
        assert isinstance(subscriber, Subscriber)
        self.subscriber, self._last = subscriber, Batch("q", table=subscriber.table_id)
        self._context = spark_jms.connect(root, housekeeping=False)
        self._producer = self._context.producer("orders")
        self.sent: Counter[int] = Counter()
        self.received: Counter[int] = Counter()

    def step(self) -> None:
        self.sent[self._producer.send(text="x").member] += 1
        batch = self.subscriber.next_batch(self._last, Limits())
        if batch is None:
            return
        assert not self.subscriber.resume(batch)
        self.received.update({member: pick.picks.count for member, pick in batch.delivered.items()})
        self._last = batch

    def until(self, done: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            self.step()
            return done()

        wait_until(look, LIMIT_S, what)

    def down(self) -> set[str]:
        return set(self.table.refresh().destination.down)

    def close(self) -> None:
        self._context.close()
        self.subscriber.close()
        self.stores.close()
