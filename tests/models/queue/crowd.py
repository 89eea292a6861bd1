"""All consumers of the model's queue."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from spark_jms.core.records.batch import Batch
from spark_jms.errors import SessionEndedException
from spark_jms.store import MemoryStore
from tests.models.queue.clock import Clock
from tests.models.queue.consumers import Client, ConsumerProcess, Query, QueryCheckpoint
from tests.models.queue.rules import Rules
from tests.models.queue.tables import ModelDestination

_STEPS_OF_A_BATCH = 6  # and the question for the next one, which acknowledges it
SESSION_ENDED = SessionEndedException.__name__
Killable = Callable[[Callable[[], object]], bool]


@dataclass
class Crowd:
    orders: ModelDestination
    store: MemoryStore
    clock: Clock
    random: random.Random
    killable: Killable
    planned: Callable[[ConsumerProcess, Batch], None]
    consumers: list[ConsumerProcess]
    rules: Rules
    stalled: list[ConsumerProcess] = field(default_factory=list)
    lapsed: set[str] = field(default_factory=set)  # sessions that ended while their processes slept
    trace: Callable[[str], object] = lambda line: None

    def __post_init__(self) -> None:
        self.size = self.random.randint(1, 4)
        for i in range(self.size):
            self.add(Query if i == 0 or self.random.random() < 0.6 else Client, i > 0)

    def add(self, kind: type[Query] | type[Client], may_select: bool = False) -> ConsumerProcess:
        selector = "JMSPriority > 6" if may_select and self.random.random() < 0.2 else None
        pinned = self.rules.forwards and self.random.random() < 0.6  # so that other members have no consumers
        limit = self.random.choice([1, 3, 10, 1000])
        name = f"{kind.__name__.lower()}{len(self.consumers)}"
        members = frozenset({0}) if pinned else None
        return self._enter(kind(name, self.orders, self.store, self.clock, selector, limit, members))

    def _enter(self, consumer: ConsumerProcess, checkpoint: QueryCheckpoint | None = None) -> ConsumerProcess:
        consumer.planned = self.planned
        if isinstance(consumer, Query):
            consumer.checkpoint = checkpoint or QueryCheckpoint()
        self.consumers.append(consumer)
        return consumer

    def one(self, *, up: bool) -> ConsumerProcess | None:
        awake = [c for c in self.consumers if c.up is up and c not in self.stalled and (up or not c.retired)]
        return self.random.choice(awake) if awake else None

    def work_beside(self, session: str) -> None:
        """Another consumer than that of the session, whose process is in the middle of something."""
        awake = [c for c in self.consumers if c.up and c not in self.stalled and not c.is_of(session)]
        if awake:
            self._work(self.random.choice(awake))

    def lives(self, session: str) -> bool:
        awake = (c for c in self.consumers if c not in self.stalled)
        return session not in self.lapsed and any(c.is_of(session) for c in awake)

    # -- what may happen ------------------------------------------------------------------------------------------
    def work(self) -> None:
        self._work(self.one(up=True))

    def _work(self, consumer: ConsumerProcess | None) -> None:
        if isinstance(consumer, Query):
            self._perhaps_killed(consumer, consumer.step)
        elif isinstance(consumer, Client):
            choice, count = self.random.random(), self.random.randint(1, 8)
            if choice < 0.5 and len(consumer.mine) < 40:
                self._perhaps_killed(consumer, consumer.receive)
            elif choice < 0.78:
                self.attempt(consumer, lambda: consumer.acknowledge(count))
            elif choice < 0.95:
                self.attempt(consumer, lambda: consumer.release(count))
            else:
                consumer.find_bad()
                if not self.killable(lambda: consumer.attempt(consumer.set_aside)):
                    consumer.crash()

    def _perhaps_killed(self, consumer: ConsumerProcess, what: Callable[[], object]) -> None:
        """Sometimes the process dies at one of its writes: between those of a plan that moves messages, too."""
        if self.random.random() < 0.9:
            self.attempt(consumer, what)
        elif not self.killable(lambda: self.attempt(consumer, what)):
            consumer.crash()

    def attempt(self, consumer: ConsumerProcess, what: Callable[[], object]) -> None:
        """A consumer that a replaced table has ended is followed by another one, as the error asks for."""
        was_retired, errors, session = consumer.retired, Counter(consumer.errors), consumer.session
        consumer.attempt(what)
        if consumer.errors[SESSION_ENDED] > errors[SESSION_ENDED]:
            assert session in self.lapsed, f"the session of {consumer.name}, which lives, has ended"
        self.trace(f"      {consumer.name} {getattr(what, '__name__', '')} {dict(consumer.errors - errors) or ''}")
        if consumer.retired and not was_retired and len(self.consumers) < 12:
            self.add(type(consumer))  # type: ignore[arg-type]

    def tick(self) -> None:
        if consumer := self.one(up=True):
            self.attempt(consumer, consumer.subscriber.flush_outbox)  # type: ignore[union-attr]

    def crash(self) -> None:
        if consumer := self.one(up=True):
            consumer.crash()

    def close(self) -> None:
        if consumer := self.one(up=True):
            consumer.close()

    def start(self) -> None:
        if consumer := self.one(up=False):
            self.attempt(consumer, consumer.start)

    def stall(self) -> None:
        if consumer := self.one(up=True):
            consumer.stall()
            self.stalled.append(consumer)

    def wake(self) -> None:
        """A consumer that slept for too long may find that its session has ended."""
        if self.stalled:
            woken = self.stalled.pop(0)
            woken.wake()
            if woken.up and woken.session not in self.store.sessions():
                self.lapsed.add(woken.session)

    def zombie(self) -> None:
        """The cluster starts a query again while its old driver still runs. The old one fails at its next write to the Spark
        checkpoint."""
        replaced = {id(c.checkpoint) for c in self._queries() if c.up and c.retired}
        queries = [c for c in self._queries() if c.up and id(c.checkpoint) not in replaced]
        if queries:
            old = self.random.choice(queries)
            old.retired = True  # at most two drivers at a time: nothing is promised for three
            self.attempt(self._again(old, f"{old.name}'", old.checkpoint), lambda: None)
            self.attempt(self.consumers[-1], self.consumers[-1].start)

    def copy(self) -> None:
        """The Spark checkpoint is copied, as it is now or was a while ago, and a query is started with the copy."""
        queries = [c for c in self._queries() if c.checkpoint.offsets and not c.retired]
        if queries and len(self.consumers) < 12:
            original = self.random.choice(queries)
            known = original.checkpoint
            commits = max(0, known.commits - self.random.choice([0, 0, 1, 2, 5]))
            offsets = min(len(known.offsets), max(1, commits + self.random.choice([0, 1])))
            copy = self._again(original, f"{original.name}-copy", known.copy(commits, offsets))
            assert isinstance(copy, Query)
            original.is_copied = copy.is_copied = True
            self.attempt(copy, copy.start)

    def _again(self, old: Query, name: str, checkpoint: QueryCheckpoint) -> ConsumerProcess:
        new = Query(name, old.orders, old.store, old.clock, old.selector, old.limit, old.members)
        new.is_copied = old.is_copied
        return self._enter(new, checkpoint)

    def _queries(self) -> list[Query]:
        return [c for c in self.consumers if isinstance(c, Query)]

    # -- the end --------------------------------------------------------------------------------------------------
    def end_faults(self) -> None:
        """Everything that sleeps wakes up. Of several drivers of one query, one stays. A new client makes sure that all
        messages find a consumer."""
        while self.stalled:
            self.wake()
        families: dict[int, list[Query]] = {}
        for query in self._queries():
            families.setdefault(id(query.checkpoint.sink), []).append(query)
        for family in families.values():
            left = [query for query in family if not query.retired]
            stays = next((query for query in left if query.up), left[-1] if left else None)
            for query in family:
                if query is not stays:
                    query.retired = True
                    query.crash()
        self.add(Client).members = None
        for consumer in self.consumers:
            consumer.limit = 1000

    def work_off(self) -> None:
        """Every living consumer works off a batch."""
        for consumer in [c for c in self.consumers if not c.retired]:
            if not consumer.up:
                self.attempt(consumer, consumer.start)
            if isinstance(consumer, Query):
                step: Callable[[], None] | None = None
                for _ in range(_STEPS_OF_A_BATCH):
                    if consumer.up and not (step == consumer.ask == consumer.step):  # else there is no batch
                        step = consumer.step
                        self.attempt(consumer, step)
            elif isinstance(consumer, Client):
                acknowledge = partial(consumer.acknowledge, 10_000)
                for act in (acknowledge, consumer.receive, consumer.set_aside, acknowledge):
                    if consumer.up:
                        self.attempt(consumer, act)
            self.clock.now_ms += 60
