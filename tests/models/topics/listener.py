"""A plain client's consumer of a subscription that is not durable: it receives, acknowledges, gives back, closes and dies."""

from __future__ import annotations

import random
from itertools import count

from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber, open_subscriber
from spark_jms.claims.records.subscriptions import SubscriptionRequest
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.errors import ConsumerClosedException, MemberUnavailableError
from spark_jms.log.destinations.domain import Domain
from spark_jms.store import StoreError
from spark_jms.store.kinds.routed import RoutedStore
from tests.models.topics.crash import crash
from tests.models.topics.life import Life, deliveries
from tests.models.topics.lives import Lives
from tests.models.topics.query import TOPIC

_numbers = count(1)


class Listener:
    """`shared`: the name of a subscription that it shares with others; None: it has its own. `server`: it names one."""

    def __init__(
        self,
        shared: str | None,
        server: str | None,
        lives: Lives,
        domain: Domain,
        store: RoutedStore,
        chance: random.Random,
    ) -> None:
        self._request = SubscriptionRequest(shared, False, server=server)
        self._lives, self._domain, self._store, self._chance = lives, domain, store, chance
        self.subscriber: Subscriber | None = None
        self.life: Life | None = None
        self._pending: dict[str, dict[int, Ranges]] = {}  # claim -> what is delivered and not acknowledged
        self.acts = False  # it is within a step

    def step(self) -> None:
        self.acts = True
        try:
            if self.subscriber is None:
                self._open()
                return
            acts = [self.receive, self.acknowledge, self._give_back, self.close, self.crash]
            (act,) = self._chance.choices(acts, [50, 38, 6, 3, 3])
            act()
        except ConsumerClosedException:
            self.close()
        except (MemberUnavailableError, StoreError):
            pass
        finally:
            self.acts = False

    def drain(self) -> None:
        """A step at the end, when nothing fails any more."""
        self.acts = True
        try:
            self.acknowledge()
            self.receive()
        except ConsumerClosedException:
            self.close()
        finally:
            self.acts = False

    def _open(self) -> None:
        name = f"client-{next(_numbers)}"
        opened = open_subscriber(
            self._domain, self._store, TOPIC, self._request, name, ConsumerSettings(replayable=False)
        )
        assert isinstance(opened, Subscriber)
        self.subscriber, self.life = opened, self._lives.joined(opened.subscription, name)

    def receive(self) -> None:
        assert self.subscriber is not None
        assert self.life is not None
        limits = Limits(max_messages=self._chance.choice([1, 3, 10]))
        batch = self.subscriber.next_batch(Batch(self.subscriber.consumer), limits)
        if batch:
            self.life.got += deliveries(batch.members)
            self._pending[batch.claim] = {member: pick.picks for member, pick in batch.members.items()}

    def acknowledge(self) -> None:
        if self.subscriber is not None and self._pending:
            self._pending = self.subscriber.acknowledge(self._pending)

    def _give_back(self) -> None:
        if self.subscriber is not None and self._pending:
            claim = self._chance.choice([*self._pending])
            if self.subscriber.release(claim, self._pending[claim], delivered=True, delay_ms=0):
                del self._pending[claim]

    def close(self) -> None:
        if self.subscriber is not None:
            self.subscriber.close()
        self._leave()

    def crash(self) -> None:
        if self.subscriber is not None:
            crash(self._store, self.subscriber)
        self._leave()

    def _leave(self) -> None:
        if self.life is not None and self.subscriber is not None:
            self._lives.left(self.life, self.subscriber.consumer)
        self.subscriber, self.life, self._pending = None, None, {}
