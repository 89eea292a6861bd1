"""A streaming query of a durable subscription: its sink outlives a crash, as its logs do."""

from __future__ import annotations

import random

from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber, open_subscriber
from spark_jms.claims.records.subscriptions import SubscriptionRequest
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.batch import Batch
from spark_jms.log.destinations.domain import Domain
from spark_jms.store.kinds.routed import RoutedStore
from tests.models.topics.emulated_query import EmulatedQuery
from tests.models.topics.life import Life, deliveries

TOPIC = "prices"


class Query(EmulatedQuery):
    def __init__(self, name: str, life: Life, domain: Domain, store: RoutedStore, chance: random.Random) -> None:
        super().__init__(name, store, chance)
        self.life, self._domain = life, domain
        self._delivered: set[int] = set()  # the batches that the sink has

    def _opened(self) -> Subscriber:
        request = SubscriptionRequest(self.life.name)
        opened = open_subscriber(self._domain, self._store, TOPIC, request, self.name, ConsumerSettings())
        assert isinstance(opened, Subscriber)
        return opened

    def _cannot_resume(self) -> None:
        """Spark tries again."""

    def _run(self, number: int, batch: Batch, withheld: dict[int, Ranges]) -> None:
        if self._chance.random() < 0.1:
            self.crash()  # before the sink has the batch
            return
        if number not in self._delivered:
            self._delivered.add(number)
            self.life.got += deliveries(batch.delivered, withheld)
        if self._chance.random() < 0.1:
            self.crash()  # before Spark notes that it is done
            return
        self.committed += 1
