"""Consumers of the model: Spark queries with an emulated checkpoint, and plain clients.

Only the schedule is random, and it comes from the seed: time is a number, a crash is `store.crash`, and between any two
steps anything may happen to any consumer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.messages.fetch import fetch
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.records.batch import PROGRESS, Batch, Limits, QueryProgress, claim_number
from spark_jms.core.records.stored_form import consumer_record
from spark_jms.core.selector import Selector
from spark_jms.errors import (
    ConsumerClosedException,
    DataLossError,
    DestinationDroppedError,
    DestinationReplacedError,
    InvalidDestinationError,
    MemberUnavailableError,
    QueryRunningError,
    StaleCheckpointError,
)
from spark_jms.log.destinations.domain import Domain
from spark_jms.store import MemoryStore
from spark_jms.testing.inside import members_of
from tests.models.queue.clock import Clock
from tests.models.queue.tables import ROOT, ModelDestination

ENDING = (ConsumerClosedException, MemberUnavailableError, QueryRunningError, StaleCheckpointError)
OF_A_DROPPED_TABLE = (DestinationReplacedError, DestinationDroppedError, DataLossError)


@dataclass(frozen=True)
class DeliveredRow:
    """One message as an application has received it, or a sink after its commit."""

    text: str
    table: str
    member: int
    sequence: int
    count: int
    claim: str
    consumer: str


@dataclass
class ConsumerProcess:
    """A process with one subscriber, or without one while it is down."""

    name: str
    orders: ModelDestination
    store: MemoryStore
    clock: Clock
    selector: str | None = None
    limit: int = 20
    members: frozenset[int] | None = None  # the only ones that it takes
    retired: bool = False  # once down, it stays down
    subscriber: Subscriber | None = None
    table_id: str = ""  # that it consumes, or has consumed while it was up last
    planned: Callable[[ConsumerProcess, Batch], None] = lambda consumer, batch: None
    delivered: list[DeliveredRow] = field(default_factory=list)
    finished: list[DeliveredRow] = field(default_factory=list)  # by an acknowledgement, or in the sink
    errors: Counter[str] = field(default_factory=Counter)

    def start(self) -> None:
        raise NotImplementedError

    def _subscribe(self, consumer: str, *, replayable: bool) -> Subscriber:
        self.domain, self.destination = Domain(ROOT), self.orders.name
        settings = ConsumerSettings(Selector.parse(self.selector), replayable, members=self.members)
        subscriber = Subscriber(
            self.domain,
            self.store,
            self.destination,
            "-",
            consumer,
            settings,
            self.clock.ms,
            monotonic_s=self.clock.monotonic,
        )
        self.table_id = subscriber.table_id
        return subscriber

    @property
    def up(self) -> bool:
        return self.subscriber is not None

    @property
    def session(self) -> str:
        """Empty while it is down."""
        return members_of(self.subscriber).session_id if self.subscriber is not None else ""

    def is_of(self, session: str) -> bool:
        return self.session == session

    def crash(self) -> None:
        if self.subscriber is not None:
            self.store.crash(members_of(self.subscriber).session)
            self.subscriber = None

    def stall(self) -> None:
        assert self.subscriber is not None
        self.store.freeze(members_of(self.subscriber).session)

    def wake(self) -> None:
        if self.subscriber is not None:
            self.store.thaw(members_of(self.subscriber).session)

    def close(self) -> None:
        if self.subscriber is not None:
            self.subscriber.close()
            self.subscriber = None

    def attempt(self, what: Callable[[], Any]) -> None:
        """The errors that end a consumer end it; any other error is a defect."""
        try:
            what()
            return
        except ENDING as error:
            self.errors[type(error).__name__] += 1
            self.retired |= isinstance(error, StaleCheckpointError)
        except (*OF_A_DROPPED_TABLE, InvalidDestinationError) as error:
            self.errors[type(error).__name__] += 1
            if isinstance(error, OF_A_DROPPED_TABLE):
                if self.orders.table_id and self.table_id == self.orders.table_id and not self.is_of_another_table():
                    raise
                self.retired = True
            elif self.orders.table_id and (self.orders.name, self.orders.table_id) == (self.destination, self.table_id):
                raise  # a table of an earlier life may have been elsewhere
        self.close()

    def is_of_another_table(self) -> bool:
        return False

    def read(self, batch: Batch, withheld: dict[int, Ranges]) -> Iterator[DeliveredRow]:
        """As Spark's tasks do, and a client."""
        table = self.domain.log(self.destination)
        for member, pick in sorted(batch.members.items()):
            picks = pick.picks - withheld.get(member, EMPTY)
            last = 0
            rows = fetch(table, self.destination, member, picks, pick.redelivered, table_id=batch.table)
            for part in rows if picks else ():
                for row in part.select(["text", "sequence", "JMSXDeliveryCount"]).to_pylist():
                    assert row["sequence"] > last, "the rows of a member are out of order within a batch"
                    last, count = row["sequence"], row["JMSXDeliveryCount"]
                    yield DeliveredRow(row["text"], batch.table, member, last, count, batch.claim, batch.consumer)


@dataclass
class SinkBatch:
    claim: str
    rows: list[DeliveredRow]


@dataclass
class QueryCheckpoint:
    """What survives a query: the two logs of its Spark checkpoint, and the sink, which takes each batch number once. A copy
    of the checkpoint names the same sink."""

    offsets: list[dict[str, Any]] = field(default_factory=list)
    commits: int = 0  # batches 0..commits-1 are in the commit log
    sink: dict[int, SinkBatch] = field(default_factory=dict)

    def copy(self, commits: int, offsets: int) -> QueryCheckpoint:
        """As it was when it ended there."""
        return QueryCheckpoint(self.offsets[:offsets], commits, self.sink)


class ConcurrentQuery(ConsumerClosedException):
    """Spark raises it: another driver has written this batch into the logs of the Spark checkpoint."""


class Query(ConsumerProcess):
    """MicroBatchExecution in small: latestOffset -> offset log -> partitions, tasks -> sink -> commit log -> again."""

    checkpoint: QueryCheckpoint
    lives = 0
    step: Callable[[], None]

    def start(self) -> None:
        """Starts as Spark does: it runs the last logged batch again unless the commit log has it."""
        offsets, commits = self.checkpoint.offsets, self.checkpoint.commits
        self.batch_id = commits
        self.lives += 1
        known = (
            offsets[0]["consumer"] if offsets else f"{self.name}-{self.lives}"
        )  # a name that was not logged is forgotten
        self.subscriber = self._subscribe(known, replayable=True)
        first = Batch(known, table=self.table_id).to_json()
        self.start_offset = offsets[commits - 1] if commits else first
        self.end_offset: dict[str, Any] | None = None
        self.rows: list[DeliveredRow] = []
        self.step = self.ask
        if len(offsets) > commits:
            self.end_offset, self.step = offsets[commits], self.run
        elif not offsets:  # the first batch names the consumer and has no claim
            self.end_offset, self.step = first, self.log

    def is_of_another_table(self) -> bool:
        return any(offset["table"] != self.orders.table_id for offset in self.checkpoint.offsets)

    def ask(self) -> None:
        assert self.subscriber is not None
        start, newer = Batch.from_json(self.start_offset), self.checkpoint.sink.get(self.batch_id)
        acknowledged = claim_number(self._progress().acknowledged)
        if newer is not None and claim_number(start.claim) >= acknowledged and self._record_is_mine():
            # PROMISES, "Not detected": the sink has the batch that this copy lacks, and it is not acknowledged yet.
            return self._end_unpromised()
        batch = self.subscriber.next_batch(start, Limits(max_messages=self.limit))
        of_another = self.table_id == self.orders.table_id and self.is_of_another_table()
        assert not of_another, f"{self.name}: a checkpoint of another table was not refused"
        assert newer is None, f"{self.name}: a checkpoint that lacks an acknowledged batch was not refused"
        if batch is not None:
            self.planned(self, batch)
            self.end_offset, self.step = batch.to_json(), self.log
        return None

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
        self.rows = list(self.read(batch, self.subscriber.resume(batch) if batch.claim else {}))
        self.step = self.write

    def write(self) -> None:
        assert self.subscriber is not None
        assert self.end_offset is not None
        claim = self.end_offset["claim"]
        known = self.checkpoint.sink.get(self.batch_id)
        if known is None:  # an idempotent sink: (query, batch) once
            if claim and self.is_copied and not self._holds_record():
                return self._end_unpromised()  # it slept between `partitions` and the sink while a copy took over
            self.checkpoint.sink[self.batch_id] = SinkBatch(claim, self.rows)
            self.delivered += self.rows
            self.finished += self.rows
        elif known.claim != claim:
            return self._end_unpromised()  # as in `ask`: it lacked the other batch of this number
        self.step = self.commit
        return None

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

    # -- copies of the checkpoint ---------------------------------------------------------------------------------
    is_copied = False  # it is a copy, or has one

    def _end_unpromised(self) -> None:
        self.errors["not promised"] += 1
        self.retired = True
        self.crash()

    def _record(self) -> str:
        assert self.subscriber is not None
        return consumer_record(self.table_id, "-", self.subscriber.consumer)

    def _progress(self) -> QueryProgress:
        return QueryProgress.from_bytes(self.store.peek(self._record()).get(PROGRESS), self.name)

    def _holds_record(self) -> bool:
        assert self.subscriber is not None
        info = self.store.info(self._record())
        return info is not None and info.holder == members_of(self.subscriber).session_id

    def _record_is_mine(self) -> bool:
        """Or no other instance has it."""
        assert self.subscriber is not None
        info = self.store.info(self._record())
        return info is None or info.holder in (None, members_of(self.subscriber).session_id)


class Client(ConsumerProcess):
    """Receives a few messages at a time, acknowledges some or all, and releases some; each life has a new name."""

    lives = 0

    def start(self) -> None:
        self.lives += 1
        self.life = f"{self.name}-{self.lives}"
        self.subscriber = self._subscribe(self.life, replayable=False)
        self.mine: list[DeliveredRow] = []
        self.bad: list[DeliveredRow] = []

    def receive(self) -> None:
        assert self.subscriber is not None
        batch = self.subscriber.next_batch(Batch(self.life), Limits(max_messages=self.limit))
        if batch is not None:
            self.planned(self, batch)
            rows = list(self.read(batch, {}))
            self.mine += rows
            self.delivered += rows

    def acknowledge(self, count: int) -> None:
        assert self.subscriber is not None
        chosen = self.mine[:count]
        left = self.subscriber.acknowledge(parts(chosen))
        waiting = {(c, m, s) for c, members in left.items() for m, r in members.items() for s in r.numbers().tolist()}
        again = [d for d in chosen if (d.claim, d.member, d.sequence) in waiting]
        self.finished += [d for d in chosen if d not in again]
        self.mine = again + self.mine[count:]

    def release(self, count: int) -> None:
        assert self.subscriber is not None
        for claim, members in parts(self.mine[:count]).items():
            if self.subscriber.release(claim, members, delivered=True):
                self.mine = [d for d in self.mine if d.claim != claim or d.sequence not in members.get(d.member, EMPTY)]

    def set_aside(self) -> None:
        """Messages cannot be decoded: the application has not seen them."""
        assert self.subscriber is not None
        while self.bad:
            row = self.bad[-1]
            if not self.subscriber.set_aside(row.claim, row.member, {row.sequence: "it is not text"}):
                break
            self.bad.pop()

    def find_bad(self) -> None:
        """The newest message cannot be decoded."""
        if self.mine:
            row = self.mine.pop()
            self.delivered.remove(row)
            self.bad.append(row)


def parts(rows: list[DeliveredRow]) -> dict[str, dict[int, Ranges]]:
    out: dict[str, dict[int, list[int]]] = {}
    for d in rows:
        out.setdefault(d.claim, {}).setdefault(d.member, []).append(d.sequence)
    return {claim: {m: Ranges.from_numbers(n) for m, n in members.items()} for claim, members in out.items()}
