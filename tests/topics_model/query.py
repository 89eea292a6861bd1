"""A streaming query of a durable subscription: its offset log and commit log outlive a crash, and so does its sink."""

from __future__ import annotations

import random

from spark_jms.claims.batches import ConsumerSettings
from spark_jms.claims.distributed import DistributedSubscriber, open_subscriber
from spark_jms.claims.subscription_request import SubscriptionRequest
from spark_jms.core.batch import Batch, Limits
from spark_jms.errors import MemberUnavailableError
from spark_jms.log.domain import Domain
from spark_jms.store.routed import RoutedStore
from tests.topics_model.crash import crash
from tests.topics_model.life import Life

TOPIC = "prices"


class Query:
    def __init__(self, name: str, life: Life, domain: Domain, store: RoutedStore, chance: random.Random) -> None:
        self.name, self.life = name, life
        self._domain, self._store, self._chance = domain, store, chance
        self.offsets: list[Batch] = []
        self.committed = 0
        self._delivered: set[int] = set()  # the batches that the sink has
        self.subscriber: DistributedSubscriber | None = None

    @property
    def is_busy(self) -> bool:
        """Its newest batch is not committed yet."""
        return len(self.offsets) > self.committed

    def step(self) -> None:
        if self.subscriber is None:
            request = SubscriptionRequest(self.life.name)
            opened = open_subscriber(self._domain, self._store, TOPIC, request, self.name, ConsumerSettings())
            assert isinstance(opened, DistributedSubscriber)
            self.subscriber = opened
        if self.is_busy:
            self._run(self.committed, self.offsets[-1])
            return
        start = self.offsets[-1] if self.offsets else Batch(self.name, table=self.subscriber.table_id)
        batch = self.subscriber.next_batch(start, Limits(max_messages=self._chance.choice([1, 3, None])))
        if batch is not None and self._chance.random() > 0.1:  # or Spark dies before it logs the offset
            self.offsets.append(Batch.from_json(batch.to_json()))
        elif batch is not None:
            self.crash()

    def _run(self, number: int, batch: Batch) -> None:
        assert self.subscriber is not None
        try:
            withheld = self.subscriber.resume(batch)
        except MemberUnavailableError:
            return
        if self._chance.random() < 0.1:
            self.crash()  # before the sink has the batch
            return
        if number not in self._delivered:
            self._delivered.add(number)
            for member, pick in batch.delivered.items():
                picks = pick.picks - withheld[member] if member in withheld else pick.picks
                flagged = {(member, n) for some in pick.redelivered.values() for n in some.numbers().tolist()}
                self.life.receive([(member, n) for n in picks.numbers().tolist()], flagged)
        if self._chance.random() < 0.1:
            self.crash()  # before Spark notes that it is done
            return
        self.committed += 1

    def hand_over(self) -> None:
        if self.subscriber is not None:
            self.subscriber.hand_over()

    def crash(self) -> None:
        if self.subscriber is not None:
            crash(self._store, self.subscriber)
        self.subscriber = None
