"""Consumers of one queue in one thread, driven by a seed: Spark queries with an emulated checkpoint, and plain clients.

Only the schedule is random, and it comes from the seed: time is a number, a crash is `store.crash`, and between any two
steps anything may happen to any consumer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_jms.claims.batches import ConsumerSettings
from spark_jms.claims.fetch import fetch
from spark_jms.claims.subscriber import Subscriber
from spark_jms.core.batch import Batch, Limits
from spark_jms.core.ranges import EMPTY, Ranges
from spark_jms.core.selector import Selector
from spark_jms.errors import ConsumerClosedException, MemberUnavailableError, QueryRunningError, StaleCheckpointError
from spark_jms.log.domain import Domain

if TYPE_CHECKING:
    from spark_jms.store import MemoryStore

DESTINATION = "orders"


@dataclass
class Clock:
    """Replaces the clocks of all processes, and the module `time` where the code waits."""

    now_ms: int
    while_waiting: Callable[[], None] = lambda: None

    def ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def sleep(self, seconds: float) -> None:
        self.now_ms += max(int(seconds * 1000), 1)
        self.while_waiting()


@dataclass(frozen=True)
class DeliveredRow:
    """One message as an application has received it, or a sink after its commit."""

    text: str
    member: int
    sequence: int
    count: int
    claim: str
    consumer: str


@dataclass
class ConsumerProcess:
    """A process with one subscriber, or without one while it is down."""

    name: str
    root: str
    store: MemoryStore
    clock: Clock
    selector: str | None = None
    limit: int = 20
    retired: bool = False  # another driver uses its checkpoint now: once down, it stays down
    subscriber: Subscriber | None = None
    planned: Callable[[str, Batch], None] = lambda consumer, batch: None
    delivered: list[DeliveredRow] = field(default_factory=list)

    def _subscribe(self, consumer: str, *, replayable: bool) -> Subscriber:
        self.domain = Domain(self.root)
        settings = ConsumerSettings(Selector.parse(self.selector), replayable)
        subscriber = Subscriber(self.domain, self.store, DESTINATION, "-", consumer, settings, self.clock.ms)
        subscriber.members._monotonic_s = self.clock.monotonic
        return subscriber

    @property
    def up(self) -> bool:
        return self.subscriber is not None

    def crash(self) -> None:
        assert self.subscriber is not None
        self.store.crash(self.subscriber.members.session)
        self.subscriber = None

    def stall(self) -> None:
        assert self.subscriber is not None
        self.store.freeze(self.subscriber.members.session)

    def wake(self) -> None:
        assert self.subscriber is not None
        self.store.thaw(self.subscriber.members.session)

    def close(self) -> None:
        assert self.subscriber is not None
        self.subscriber.close()
        self.subscriber = None

    def attempt(self, what: Callable[[], Any]) -> None:
        """The errors that end a consumer end it; any other error is a defect."""
        try:
            what()
        except (ConsumerClosedException, MemberUnavailableError, QueryRunningError, StaleCheckpointError):
            if self.subscriber is not None:
                self.close()

    def read(self, batch: Batch, withheld: dict[int, Ranges]) -> Iterator[DeliveredRow]:
        table = self.domain.log(DESTINATION)
        for member, pick in sorted(batch.members.items()):
            picks = pick.picks - withheld.get(member, EMPTY)
            last = 0
            for rows in fetch(table, DESTINATION, member, picks, pick.redelivered) if picks else ():
                for row in rows.select(["text", "sequence", "JMSXDeliveryCount"]).to_pylist():
                    assert row["sequence"] > last, "the rows of a member are out of order within a batch"
                    last = row["sequence"]
                    yield DeliveredRow(row["text"], member, last, row["JMSXDeliveryCount"], batch.claim, batch.consumer)


@dataclass
class QueryCheckpoint:
    """What survives a query: the two logs of its Spark checkpoint, and the sink, which takes each batch number once."""

    offsets: list[dict[str, Any]] = field(default_factory=list)
    commits: int = 0  # batches 0..commits-1 are in the commit log
    sink: dict[int, list[DeliveredRow]] = field(default_factory=dict)


class ConcurrentQuery(ConsumerClosedException):
    """Spark raises it: another driver has written this batch into the logs of the Spark checkpoint."""


class Query(ConsumerProcess):
    """MicroBatchExecution in small: latestOffset -> offset log -> partitions, tasks -> sink -> commit log -> again."""

    checkpoint: QueryCheckpoint
    lives = 0

    def start(self) -> None:
        """Starts as Spark does: it runs the last logged batch again unless the commit log has it."""
        offsets, commits = self.checkpoint.offsets, self.checkpoint.commits
        self.batch_id = commits
        self.lives += 1
        known = (
            offsets[0]["consumer"] if offsets else f"{self.name}-{self.lives}"
        )  # a name that was not logged is forgotten
        self.subscriber = self._subscribe(known, replayable=True)
        self.start_offset = offsets[commits - 1] if commits else Batch(known).to_json()
        self.end_offset: dict[str, Any] | None = None
        self.rows: list[DeliveredRow] = []
        self.step = self.ask
        if len(offsets) > commits:
            self.end_offset, self.step = offsets[commits], self.run
        elif not offsets:  # the first batch names the consumer and has no claim
            self.end_offset, self.step = self.start_offset, self.log

    def ask(self) -> None:
        assert self.subscriber is not None
        batch = self.subscriber.next_batch(Batch.from_json(self.start_offset), Limits(max_messages=self.limit))
        if batch is not None:
            self.planned(self.name, batch)
            self.end_offset, self.step = batch.to_json(), self.log

    def log(self) -> None:
        assert self.end_offset is not None
        if len(self.checkpoint.offsets) != self.batch_id:
            raise ConcurrentQuery
        self.checkpoint.offsets.append(self.end_offset)
        self.step = self.run

    def run(self) -> None:
        assert self.subscriber is not None
        assert self.end_offset is not None
        batch = Batch.from_json(self.end_offset)
        self.rows = list(self.read(batch, self.subscriber.resume(batch)))
        self.step = self.write

    def write(self) -> None:
        if self.batch_id not in self.checkpoint.sink:  # an idempotent sink: (query, batch) once
            self.checkpoint.sink[self.batch_id] = self.rows
            self.delivered += self.rows
        self.step = self.commit

    def commit(self) -> None:
        assert self.end_offset is not None
        if self.checkpoint.commits != self.batch_id:
            raise ConcurrentQuery
        self.checkpoint.commits += 1
        self.start_offset, self.end_offset, self.batch_id, self.step = (
            self.end_offset,
            None,
            self.batch_id + 1,
            self.ask,
        )


class Client(ConsumerProcess):
    """Receives a few messages at a time, acknowledges some or all, and releases some; each life has a new name."""

    lives = 0

    def start(self) -> None:
        self.lives += 1
        self.life = f"{self.name}-{self.lives}"
        self.subscriber = self._subscribe(self.life, replayable=False)
        self.mine: list[DeliveredRow] = []

    def receive(self) -> None:
        assert self.subscriber is not None
        batch = self.subscriber.next_batch(Batch(self.life), Limits(max_messages=self.limit))
        if batch is not None:
            self.planned(self.life, batch)
            rows = list(self.read(batch, {}))
            self.mine += rows
            self.delivered += rows

    def acknowledge(self, count: int) -> None:
        assert self.subscriber is not None
        chosen = self.mine[:count]
        left = self.subscriber.acknowledge(parts(chosen))
        waiting = {(c, m, s) for c, members in left.items() for m, r in members.items() for s in r.numbers().tolist()}
        self.mine = [d for d in chosen if (d.claim, d.member, d.sequence) in waiting] + self.mine[count:]

    def release(self, count: int) -> None:
        assert self.subscriber is not None
        for claim, members in parts(self.mine[:count]).items():
            if self.subscriber.release(claim, members, delivered=True):
                self.mine = [d for d in self.mine if d.claim != claim or d.sequence not in members.get(d.member, EMPTY)]


def parts(rows: list[DeliveredRow]) -> dict[str, dict[int, Ranges]]:
    out: dict[str, dict[int, list[int]]] = {}
    for d in rows:
        out.setdefault(d.claim, {}).setdefault(d.member, []).append(d.sequence)
    return {claim: {m: Ranges.from_numbers(n) for m, n in members.items()} for claim, members in out.items()}
