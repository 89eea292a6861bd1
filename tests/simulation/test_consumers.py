"""No message is lost, and none is delivered twice without a revocation, whatever happens between two steps (C5, C8, C9,
C13).

Each seed is one run: queries and clients share a queue while they crash, stall, return and hand records over, while
messages are sent, purged and compacted, moved to another queue and back by movers that are killed, and while a member is
added. Then the faults end, and the consumers must drain the queue.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from attrs import evolve

from spark_jms.admin import move as moving
from spark_jms.admin.move import MoveOrder
from spark_jms.claims import batches, planner, previous_batch, progress, transfer
from spark_jms.claims.housekeeper import Housekeeper
from spark_jms.claims.open_records import OpenRecords
from spark_jms.claims.record_sets import operations, state_of
from spark_jms.core.batch import Batch
from spark_jms.core.claim import Claim
from spark_jms.core.destination import Destination
from spark_jms.core.message_state import MessageEvent
from spark_jms.core.ranges import Ranges, union
from spark_jms.core.record_names import member_record
from spark_jms.core.record_set import RecordSet
from spark_jms.core.transfer import ticket_of_file
from spark_jms.errors import MemberUnavailableError
from spark_jms.log.clean_up import checkpoint, clean_up
from spark_jms.log.compaction import compact
from spark_jms.log.declarations import apply_destinations
from spark_jms.log.domain import Domain, create_domain
from spark_jms.log.message_writer import MessageWriter
from spark_jms.log.purge import purge
from spark_jms.log.send import TransactionId, send
from spark_jms.log.snapshot import RouteId
from spark_jms.log.storage import now_ms
from spark_jms.store import MemoryStore
from tests.simulation.consumers import DESTINATION, Client, Clock, ConsumerProcess, DeliveredRow, Query, QueryCheckpoint

SEEDS = range(int(os.environ.get("JMSQ_SEEDS", "300")))
CHUNK = 25
STEPS = 80
QUEUE = Destination(DESTINATION, "distributed-queue", 2, file_grace_ms=0)
ASIDE = Destination("aside", "queue", 1, file_grace_ms=0)


class MoverKilled(BaseException):
    """A mover dies between two steps of a transfer."""


class QueueWorld:
    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.root = str(root)
        self.clock = Clock(now_ms() + 3_600_000)  # later than any sender's clock, so that every message is due
        self.store = MemoryStore(clock_ms=self.clock.ms)
        self.domain = Domain(self.root)
        self.table = self.domain.log(DESTINATION)
        self.housekeeper = Housekeeper(self.domain, self.store, DESTINATION)
        self.sent: dict[tuple[int, int], str] = {}
        self.count = 0
        self.groups: dict[str, str | None] = {}
        self.staged: list[tuple[list[Any], list[str], RouteId]] = []
        self.revoked: set[tuple[str, int]] = set()  # claim, sequence
        self.lives: int | None = None  # of the mover
        self.moved = False
        self.consumers: list[ConsumerProcess] = []
        self.stalled: list[ConsumerProcess] = []
        self.crowd = self.random.randint(1, 4)
        for i in range(self.crowd):
            self.add_consumer(i)

    def add_consumer(self, i: int) -> None:
        kind = Query if i == 0 or self.random.random() < 0.6 else Client
        selector = "JMSPriority > 6" if i > 0 and self.random.random() < 0.2 else None
        limit = self.random.choice([1, 3, 10, 1000])
        consumer = kind(f"{kind.__name__.lower()}{i}", self.root, self.store, self.clock, selector, limit)
        consumer.planned = self.check_claim
        if isinstance(consumer, Query):
            consumer.checkpoint = QueryCheckpoint()
        self.consumers.append(consumer)

    # ---- what may happen

    def step(self) -> None:
        chosen = self.random.choices(*zip(*self.actions.items(), strict=True))[0]
        getattr(self, chosen)()
        self.clock.now_ms += self.random.choice([1, 10, 60, 300])

    actions: ClassVar[dict[str, float]] = {
        "send": 12,
        "stage": 2,
        "commit_staged": 2,
        "work": 70,
        "boundary": 12,
        "tick": 3,
        "crash": 3,
        "start": 8,
        "stall": 1,
        "wake": 2,
        "close": 1,
        "zombie": 1,
        "release": 1,
        "wait": 1,
        "wait_long": 0.6,
        "purge": 3,
        "compact": 2,
        "checkpoint": 0.3,
        "clean_up": 0.3,
        "add_member": 0.5,
        "move": 3,
        "move_back": 2,
    }

    def write(self) -> tuple[list[Any], list[str], RouteId]:
        snapshot = self.table.refresh()
        texts = [str(self.count + i) for i in range(self.random.choice([1, 2, 5, 30]))]
        self.count += len(texts)
        groups = [self.random.choice([None, None, "a", "b", "c"]) for _ in texts]
        self.groups.update(zip(texts, groups, strict=True))
        columns = {
            "text": texts,
            "JMSXGroupID": pa.array(groups, pa.string()),
            "JMSPriority": [self.random.randint(0, 9) for _ in texts],
        }
        writer = MessageWriter(self.table.storage, snapshot.destination, self.random.randint(0, 9))
        writer.write(pa.RecordBatch.from_pydict(columns))
        return writer.close(), texts, snapshot.route_id

    def put(self, staged: tuple[list[Any], list[str], RouteId]) -> None:
        files, texts, route = staged
        transaction = TransactionId("sender", self.count) if self.random.random() < 0.3 else None
        sent = send(self.table, files, route, transaction)
        got = {(m, s) for m, r in sent.sequences.items() for s in r.numbers().tolist()}
        assert not got & self.sent.keys(), "two messages have the same sequence"
        assert len(got) == len(texts)
        self.sent.update(dict.fromkeys(got, ""))
        for file, first in self._numbered(sent):
            rows = file.read(self.table, first)
            self.sent.update(rows)
        if transaction:
            again = self.write()
            for text in again[1]:
                del self.groups[text]
            assert send(self.table, again[0], again[2], transaction).version == -1

    def _numbered(self, sent: Any) -> Iterator[tuple[Any, int]]:
        at: dict[int, int] = {m: r.first for m, r in sent.sequences.items()}
        for file in sent.files:
            yield _Rows(file), at[file.member]
            at[file.member] += file.rows

    def send(self) -> None:
        self.put(self.write())

    def stage(self) -> None:
        self.staged.append(self.write())

    def commit_staged(self) -> None:
        if self.staged:
            staged = self.staged.pop(0)
            if self.random.random() < 0.3:  # the sender died
                for text in staged[1]:
                    del self.groups[text]
            else:
                self.put(staged)

    def one(self, *, up: bool) -> ConsumerProcess | None:
        awake = [c for c in self.consumers if c.up is up and c not in self.stalled and (up or not c.retired)]
        return self.random.choice(awake) if awake else None

    def work(self) -> None:
        consumer = self.one(up=True)
        if isinstance(consumer, Query):
            consumer.attempt(consumer.step)
        elif isinstance(consumer, Client):
            choice, count = self.random.random(), self.random.randint(1, 8)
            if choice < 0.5 and len(consumer.mine) < 40:
                consumer.attempt(consumer.receive)
            elif choice < 0.9:
                consumer.attempt(lambda: consumer.acknowledge(count))
            else:
                consumer.attempt(lambda: consumer.release(count))

    def boundary(self) -> None:
        if consumer := self.one(up=True):
            consumer.attempt(consumer.subscriber.hand_over)  # type: ignore[union-attr]

    def tick(self) -> None:
        if consumer := self.one(up=True):
            consumer.attempt(consumer.subscriber.flush_outbox)  # type: ignore[union-attr]

    def crash(self) -> None:
        if consumer := self.one(up=True):
            consumer.crash()

    def close(self) -> None:
        if consumer := self.one(up=True):
            consumer.close()

    def start(self) -> None:
        if consumer := self.one(up=False):
            consumer.start()  # type: ignore[attr-defined]

    def stall(self) -> None:
        if consumer := self.one(up=True):
            consumer.stall()
            self.stalled.append(consumer)

    def wake(self) -> None:
        if self.stalled:
            self.stalled.pop(0).wake()

    def zombie(self) -> None:
        """The cluster starts a query again while its old driver still runs. The old one fails at its next write to the Spark
        checkpoint."""
        replaced = {id(c.checkpoint) for c in self.consumers if isinstance(c, Query) and c.up and c.retired}
        queries = [c for c in self.consumers if isinstance(c, Query) and c.up and id(c.checkpoint) not in replaced]
        if queries:
            old = self.random.choice(queries)
            old.retired = True  # at most two drivers at a time: nothing is promised for three
            new = Query(f"{old.name}'", old.root, old.store, old.clock, old.selector, old.limit)
            new.checkpoint, new.planned = old.checkpoint, old.planned
            new.start()
            self.consumers.append(new)

    def release(self) -> None:
        """`jmsq claims --release` on a record without a holder."""
        for member in range(self.members):
            name = member_record(self.table.snapshot.table_id, "-", member)
            info = self.store.info(name)
            state = self.state(member)
            if info and info.holder is None and state.claims:
                with self.store.connect("admin") as session:
                    handle = session.open(name)
                    claim = self.random.choice(list(state.claims))  # in the order of creation: ids are random
                    handle.commit(operations(state, state.release(claim, delivered=True)))

    def wait(self) -> None:
        self.clock.now_ms += 11_000

    def wait_long(self) -> None:
        self.clock.now_ms += 61_000

    def purge(self) -> None:
        self.note_arrivals()
        self.housekeeper._states.clear()
        purge(self.table, self.housekeeper.is_done)

    def compact(self) -> None:
        self.note_arrivals()
        compact(self.table)

    def checkpoint(self) -> None:
        checkpoint(self.table, every=1)

    def clean_up(self) -> None:
        clean_up(self.table)

    def add_member(self) -> None:
        now = self.table.refresh().destination
        if now.members < 4:
            apply_destinations(self.domain, [evolve(now, members=now.members + 1)], lambda d, m: False)

    def move(self) -> None:
        self._move(DESTINATION, "aside", self.random.choice([1, 5, 50]), self.random.choice([None, 0, 1, 2, 3]))

    def move_back(self) -> None:
        self._move("aside", DESTINATION, self.random.choice([1, 5, 50]), self.random.choice([None, 0, 1, 2, 3]))

    def _move(self, source: str, target: str, limit: int | None, lives: int | None) -> None:
        """`lives`: the steps that the mover takes before it is killed."""
        self.lives = lives
        with suppress(MoverKilled, MemberUnavailableError):
            moving.move(self.domain, self.store, MoveOrder(source, target, limit=limit), wait_s=0)
        self.lives = None
        self.note_arrivals()
        self.moved = True

    def before_step(self) -> None:
        """The mover may die here. A consumer that recovers its transfer later does not."""
        if self.lives is not None:
            if self.lives == 0:
                raise MoverKilled
            self.lives -= 1

    def note_arrivals(self) -> None:
        """Messages that came back by a transfer have new sequences."""
        for path, file in self.table.refresh().files.items():
            if ticket_of_file(path) and (file.member, file.first) not in self.sent:
                self.sent.update(_Rows(file).read(self.table, file.first))

    @property
    def members(self) -> int:
        return self.table.refresh().destination.members

    # ---- what must hold

    def check_claim(self, consumer: str, batch: Batch) -> None:
        """Only one consumer at a time has messages of a unit of order."""
        self.note_arrivals()  # a plan finishes open transfers
        for member, pick in batch.members.items():
            state = self.state(member)
            others = union(c.picks for c in state.claims.values() if c.consumer != batch.consumer)
            held = {self.groups[self.sent[member, s]] for s in others.numbers().tolist()} - {None}
            got = {self.groups[self.sent[member, s]] for s in pick.picks.numbers().tolist()}
            assert not held & got, f"{consumer} got units of order {held & got} that other consumers have"

    def check_records(self) -> None:
        for member in range(self.members):
            state = self.state(member)
            claims = list(state.claims.values())
            assert sum(c.picks.count for c in claims) == state.claimed.count, "a message is in two claims"
            assert state.unfinished_of(state.claimed) == state.claimed, "a message is claimed and done"
            assert not state.done or state.done.first > state.floor + 1
            last = self.table.refresh().last_sequence(member)
            assert state.newest_known <= last
            counted = [ranges.all() for ranges in state.deliveries.values()]
            assert sum(r.count for r in counted) == union(counted).count
            assert not state.done & union(counted)

    def drain(self) -> None:
        """The faults end: all consumers are up, time passes, and the queue must become empty."""
        for staged in self.staged:
            self.put(staged)
        self.staged = []
        while self.stalled:
            self.wake()
        for consumer in self.consumers:
            consumer.limit = 1000
            if consumer.retired and consumer.up:
                consumer.crash()
        working = [c for c in self.consumers if not c.retired]
        for _ in range(300):
            for consumer in working:
                if not consumer.up:
                    consumer.start()  # type: ignore[attr-defined]
                for _ in range(2):
                    if isinstance(consumer, Query) and consumer.up:
                        consumer.attempt(consumer.step)
                    elif isinstance(consumer, Client) and consumer.up:
                        consumer.attempt(consumer.receive)
                    if isinstance(consumer, Client) and consumer.up:
                        consumer.attempt(lambda c=consumer: c.acknowledge(10_000))  # type: ignore[misc]
                    self.clock.now_ms += 30
                if consumer.up:
                    consumer.attempt(consumer.subscriber.hand_over)  # type: ignore[union-attr]
            self.clock.now_ms += 400
            self._move("aside", DESTINATION, None, None)
            if self.finished():
                self.check_records()
                return
        raise AssertionError(f"not drained: {[(m, self.state(m)) for m in range(self.members)]}")

    def state(self, member: int) -> RecordSet:
        return state_of(self.store, self.table.refresh(), "-", member)

    def finished(self) -> bool:
        snapshot = self.table.refresh()
        states = {m: self.state(m) for m in range(snapshot.destination.members)}
        aside = self.domain.log("aside").refresh()
        everything = all(s.floor == snapshot.last_sequence(m) and not s.claims for m, s in states.items())
        return everything and state_of(self.store, aside, "-", 0).floor == aside.last_sequence(0)

    def check_account(self) -> None:
        numbers: dict[int, list[int]] = defaultdict(list)
        for member, sequence in sorted(self.sent):
            numbers[member].append(sequence)
        for member, given in numbers.items():
            assert given == list(range(1, len(given) + 1)), f"the sequences of member {member} have gaps"
        every: dict[tuple[int, int], list[DeliveredRow]] = defaultdict(list)
        for consumer in self.consumers:
            for d in consumer.delivered:
                assert self.sent[d.member, d.sequence] == d.text
                every[d.member, d.sequence].append(d)
        kept = (
            Counter(  # a revocation that was planned and not written counts too, so this misses some, and invents none
                self.sent[place]
                for place, deliveries in every.items()
                if any((d.claim, d.sequence) not in self.revoked for d in deliveries)
            )
        )
        lost = set(self.sent.values()) - {self.sent[place] for place in every}
        assert not lost, f"lost: {sorted(lost, key=int)[:10]}"
        doubled = [text for text, places in kept.items() if places > 1]
        assert not doubled, f"received, and received again after a move: {doubled[:10]}"
        for place, deliveries in every.items():
            text = self.sent[place]
            deliveries.sort(key=lambda d: d.count)
            for before, after in pairwise(deliveries):
                assert (before.claim, before.sequence) in self.revoked, (
                    f"{text} was delivered twice, and its claim was not revoked: {deliveries}"
                )
                assert after.count > before.count, f"{text} was delivered twice and not flagged: {deliveries}"
        if self.crowd == 1 and isinstance(self.consumers[0], Query) and not self.revoked and not self.moved:
            for member in numbers:
                mine = [d.sequence for c in self.consumers for d in c.delivered if d.member == member]
                assert len(self.consumers) > 1 or mine == sorted(mine), "a single query received a member out of order"


class _Rows:
    """The texts of a sent file with the sequences that they get."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def read(self, table: Any, first: int) -> dict[tuple[int, int], str]:
        with table.storage.open_input(self.file.path) as source:
            texts = pq.ParquetFile(source).read(["text"], use_threads=False).column("text").to_pylist()
        return {(self.file.member, first + i): text for i, text in enumerate(texts)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A domain to copy: creating the tables takes longer than a whole run."""
    root = tmp_path_factory.mktemp("model")
    apply_destinations(create_domain(str(root), "memory://simulation"), [QUEUE, ASIDE], lambda d, m: False)
    return root


def _stepwise(world: QueueWorld, real: Callable[..., Any]) -> Callable[..., Any]:
    def step(*args: Any) -> Any:
        world.before_step()
        return real(*args)

    return step


def run(model: Path, root: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> QueueWorld:
    shutil.copytree(model, root)
    world = QueueWorld(root, seed)

    def note_revocation(
        self: RecordSet, claim: Claim, picks: Ranges, event: MessageEvent, now_ms: int = 0
    ) -> RecordSet:
        if event is MessageEvent.REDELIVER:
            world.revoked |= {(claim.id, s) for s in picks.numbers().tolist()}
        return move(self, claim, picks, event, now_ms)

    move = RecordSet._move
    with monkeypatch.context() as patch:
        for module in (batches, previous_batch, progress):
            patch.setattr(module, "time", world.clock)
        patch.setattr(planner, "MAX_ROWS_READ", world.random.choice([5, 50, 200_000]))
        patch.setattr(RecordSet, "_move", note_revocation)
        for name in ("stage_transfer", "append_transfer"):
            patch.setattr(transfer, name, _stepwise(world, getattr(transfer, name)))
        patch.setattr(OpenRecords, "change", _stepwise(world, OpenRecords.change))
        world.clock.while_waiting = world.boundary
        for i in range(STEPS):
            world.step()
            if i % 3 == 0:
                world.check_records()
        world.drain()
        world.check_account()
    return world


@pytest.mark.parametrize("first", [SEEDS[i] for i in range(0, len(SEEDS), CHUNK)])
def test_consumers_receive_every_message_once(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """C5, C8, C9, C13: under crashes, stalls and take-overs drawn from a seed."""
    one = os.environ.get("JMSQ_SEED")
    if one and first:
        pytest.skip("JMSQ_SEED names one run")
    for seed in [int(one)] if one else SEEDS[first : first + CHUNK]:
        try:
            run(model, tmp_path / str(seed), seed, monkeypatch)
        except Exception as error:
            replay = f"JMSQ_SEED={seed} python -m pytest tests/simulation/test_consumers.py"
            raise AssertionError(f"{error}\nreplay: {replay}") from error
        shutil.rmtree(tmp_path / str(seed))
