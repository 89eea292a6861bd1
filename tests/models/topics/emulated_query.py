"""A streaming query whose offset log and commit log are emulated: they outlive a crash."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod

from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.errors import MemberUnavailableError
from spark_jms.store.kinds.routed import RoutedStore
from tests.models.topics.crash import crash


class EmulatedQuery(ABC):
    """A subclass opens its subscriber, and has the sink."""

    def __init__(self, name: str, store: RoutedStore, chance: random.Random) -> None:
        self.name = name
        self._store, self._chance = store, chance
        self.offsets: list[Batch] = []
        self.committed = 0
        self.subscriber: Subscriber | None = None
        self.acts = False  # it is within a step

    @property
    def is_busy(self) -> bool:
        """Its newest batch is not committed yet."""
        return len(self.offsets) > self.committed

    def step(self) -> None:
        self.acts = True
        try:
            self._step()
        finally:
            self.acts = False

    def _step(self) -> None:
        if self.subscriber is None:
            self.subscriber = self._opened()
        if self.is_busy:
            self._replay(self.subscriber, self.committed, self.offsets[-1])
            return
        start = self.offsets[-1] if self.offsets else Batch(self.name, table=self.subscriber.table_id)
        batch = self.subscriber.next_batch(start, Limits(max_messages=self._chance.choice([1, 3, None])))
        if batch is not None and self._chance.random() > 0.1:  # or Spark dies before it logs the offset
            self.offsets.append(Batch.from_json(batch.to_json()))
        elif batch is not None:
            self.crash()

    def _replay(self, subscriber: Subscriber, number: int, batch: Batch) -> None:
        try:
            withheld = subscriber.resume(batch)
        except MemberUnavailableError:
            self._cannot_resume()
            return
        self._run(number, batch, withheld)

    @abstractmethod
    def _opened(self) -> Subscriber: ...

    @abstractmethod
    def _run(self, number: int, batch: Batch, withheld: dict[int, Ranges]) -> None:
        """Into the sink without what is withheld, unless Spark dies before or after it."""

    @abstractmethod
    def _cannot_resume(self) -> None:
        """A server of the batch is away."""

    def crash(self) -> None:
        if self.subscriber is not None:
            crash(self._store, self.subscriber)
        self.subscriber = None
