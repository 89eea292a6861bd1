"""The world of one seed: its parts, what may happen in it and how often, and its end."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from spark_jms.claims.batches import planner
from spark_jms.claims.batches.batch import BatchMaker, PreparedBatch
from spark_jms.claims.consumers import branches, subscriber
from spark_jms.claims.failures import expiration
from spark_jms.claims.records import members
from spark_jms.claims.servers import stores
from spark_jms.claims.upkeep import move
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import Claim, MessageEvent
from spark_jms.core.records.refusal import MessageRefusal
from spark_jms.core.transactions.transfer import Intent, Ticket
from spark_jms.log.destinations import domain
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.tables import storage as log_storage
from spark_jms.store import Handle, MemoryStore, Operation, RuleCall
from spark_jms.store.ledger.session import LedgerSession
from spark_jms.testing.memory_storage import MemoryStorage
from tests.models.queue.account import Account
from tests.models.queue.administration import Administration
from tests.models.queue.clock import Clock
from tests.models.queue.conservation import Conservation
from tests.models.queue.consumers import ConsumerProcess
from tests.models.queue.crowd import Crowd
from tests.models.queue.parsing import parse_once
from tests.models.queue.revocations import NotedRevocation, Revocations
from tests.models.queue.rules import Rules
from tests.models.queue.senders import Senders
from tests.models.queue.tables import ROOT, Tables

STEPS = 80
OFTEN = (  # for a second half of the seeds, one after the other: what happens ten times as often as usual
    ("crash", "start", "wait"),
    ("stall", "wake", "wait"),
    ("crash", "start", "wait_long"),
    ("copy", "zombie", "crash", "start"),
    ("add_member", "move_between", "forward"),
    ("drop", "apply", "start", "crash"),
    ("stall", "wake", "wait_long", "crash"),
    ("move", "move_back", "redrive", "wait"),
    ("pause", "resume", "crash", "start"),
    ("release", "purge", "compact", "housekeeping", "wait"),
    ("stage", "commit_staged", "wait_hours", "clean_up"),
    ("rename", "crash", "start"),
    ("close", "start", "wait"),
)
_DRAIN_ROUNDS = 300


class ProcessKilled(BaseException):
    """A process dies before one of its writes."""


@dataclass
class Action:
    weight: float
    do: Callable[[], None]


class QueueWorld:
    def __init__(self, storage: MemoryStorage, clock: Clock, seed: int, rules: Rules) -> None:
        self.seen: Counter[str] = Counter()  # what happened how often, a planned change that was not written included
        self.random = random.Random(seed)
        self.clock, self.storage = clock, storage
        self._between = False  # a process stands between its plan and its write
        self._lives: int | None = None  # writes that the acting process makes before it dies; None: it does not
        self.store = MemoryStore(clock_ms=clock.ms)
        self.tables = Tables(storage, self.store, self.random)
        storage.files.before_change = lambda path: self.before_write()
        self.senders = Senders(self.tables, self.random, clock, self.killable, rules)
        consumers: list[ConsumerProcess] = []
        self.revocations = Revocations(self.store)
        self.conservation = Conservation(self.tables, consumers, rules, clock, self.revocations)
        self.account = Account(self.tables, self.store, self.senders, self.conservation, clock, rules, self.revocations)
        orders, planned = self.tables.orders, self.account.check_claim
        self.crowd = Crowd(orders, self.store, clock, self.random, self.killable, planned, consumers, rules)
        self.administration = Administration(
            self.tables, self.store, clock, self.random, self.killable, rules, self.seen
        )
        self.actions = self._actions()

    def _actions(self) -> dict[str, Action]:
        crowd, senders, administration = self.crowd, self.senders, self.administration
        weights: dict[Callable[[], None], float] = {
            senders.send: 12,
            senders.stage: 2,
            senders.commit_staged: 2,
            crowd.work: 70,
            crowd.tick: 3,
            crowd.crash: 3,
            crowd.start: 8,
            crowd.stall: 1,
            crowd.wake: 2,
            crowd.close: 1,
            crowd.zombie: 1,
            crowd.copy: 1,
            self.wait: 1,
            self.wait_long: 0.6,
            self.wait_hours: 0.2,
            administration.release: 1,
            administration.purge: 3,
            administration.compact: 2,
            administration.checkpoint: 0.3,
            administration.clean_up: 0.3,
            administration.housekeeping: 0.4,
            administration.add_member: 0.5,
            administration.move: 3,
            administration.move_back: 1.5,
            administration.move_between: 1,
            administration.redrive: 4,
            administration.forward: 4,
            administration.pause: 0.8,
            administration.resume: 4,
            administration.rename: 0.4,
            self.drop: 0.4,
            administration.apply: 4,
        }
        return {do.__name__: Action(weight, do) for do, weight in weights.items()}

    # -- what may happen ------------------------------------------------------------------------------------------
    def step(self) -> str:
        names = list(self.actions)
        (name,) = self.random.choices(names, [self.actions[name].weight for name in names])
        self.actions[name].do()
        self.clock.now_ms += self.random.choice([1, 10, 60, 300])
        return name

    def drop(self) -> None:
        """What has left by now is looked at before: then its record set is gone."""
        self.account.check_records()
        self.administration.drop()

    def wait(self) -> None:
        self.clock.now_ms += 11_000

    def wait_long(self) -> None:
        self.clock.now_ms += 61_000

    def wait_hours(self) -> None:
        self.clock.now_ms += 2 * 3_600_000

    def killable(self, act: Callable[[], object]) -> bool:
        """One process acts. It may die at any of its writes; then it writes nothing more, and this is False."""
        self._lives = self.random.choice([None, None, None, 0, 1, 2, 3, 5])
        try:
            act()
        except ProcessKilled:
            return False
        finally:
            self._lives = None
        return True

    def before_write(self) -> None:
        self.tables.writes += 1
        if self._lives is not None:
            if self._lives == 0:
                raise ProcessKilled
            self._lives -= 1

    def others_act(self, session: str) -> None:
        """While this session's process stands between its plan and its write."""
        if self._between or self.random.random() < 0.7:
            return
        self._between, lives, self._lives = True, self._lives, None
        try:
            with self.revocations.of_others():
                for _ in range(self.random.choice([1, 1, 2, 4])):
                    self.crowd.work_beside(session)
        finally:
            self._between, self._lives = False, lives

    # -- the end --------------------------------------------------------------------------------------------------
    def drain(self) -> None:
        """The faults end: all consumers are up, time passes, and the queue must become empty."""
        self.crowd.end_faults()
        for consumer in self.crowd.consumers:
            if consumer.up and consumer.table_id != self.tables.orders.table_id:
                consumer.crash()  # it would keep a drop waiting
        self.administration.finish()
        self.senders.finish()
        for i in range(_DRAIN_ROUNDS):
            self.crowd.work_off()
            self.clock.now_ms += 400 if i < 4 else 15_000  # claims in doubt take a minute
            self.administration.move_all_back()
            if self.account.finished():
                self.account.check_records()
                return
        states = {d.name: self.tables.states(d) for d in self.tables.living()}
        raise AssertionError(f"not drained: {states}")

    def check(self) -> None:
        done = self.administration
        quiet = not done.moved and not done.drops and self.crowd.size == 1 and len(self.crowd.consumers) == 2
        self.account.check(self.crowd, in_order=quiet)


def often_of(seed: int) -> tuple[str, ...]:
    """Half of the seeds go as usual, and the others have weights of their own."""
    return OFTEN[seed // 2 % len(OFTEN)] if seed % 2 else ()


class LivingRevokedError(Exception):
    """The claim of a consumer that lives was revoked."""


@cache
def _model(rules: Rules) -> MemoryStorage:
    """A domain to copy."""
    made = MemoryStorage()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(domain, "open_storage", lambda root: made)
        patch.setattr(log_storage, "time", Clock())
        first = domain.create_domain(ROOT, "memory://model")
        apply_destinations(first, [rules.aside("aside"), rules.orders("orders", 2, "aside")], lambda d, m: False)
    return made


def run(seed: int, trace: Callable[[str], object] = lambda line: None, often: Collection[str] = ()) -> QueueWorld:
    """`often`: actions that happen ten times as often as usual. Raises AssertionError, or what the code under test raised."""
    rules = Rules.of(seed)
    files, clock = _model(rules).copy(), Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(domain, "open_storage", lambda root: files)
        for module in (branches, members, subscriber, log_storage):
            patch.setattr(module, "time", clock)
        patch.setattr(subscriber, "random", random.Random(0))
        patch.setattr(members, "OPEN_TIMEOUT_S", 0.0)
        for module in (expiration, move):
            patch.setattr(module, "WAIT_S", 0.0)
        patch.setattr(stores, "ask_once", lambda server, ask, timeout_s: ask())
        parse_once(patch)
        world = QueueWorld(files, clock, seed, rules)
        world.crowd.trace = trace
        for name in often:
            world.actions[name].weight *= 10
        patch.setattr(planner, "MAX_ROWS_READ", world.random.choice([5, 50, 200_000]))
        _note_changes(patch, world)
        _count_store_writes(patch, world)
        for i in range(STEPS):
            name = world.step()
            trace(f"{i:3} {name}")
            if i % 3 == 0:
                world.account.check_records()
        world.drain()
        world.check()
    return world


def _note_changes(patch: pytest.MonkeyPatch, world: QueueWorld) -> None:
    """Changes of record sets, and what plans have seen."""

    def moved(
        self: RecordSet,
        claim: Claim,
        picks: Ranges,
        event: MessageEvent,
        now_ms: int = 0,
        until_ms: int = 0,
        row: Any = None,
        shown: Ranges | None = None,
    ) -> RecordSet:
        if event is MessageEvent.REDELIVER:
            certain = picks if shown is None else shown
            world.revocations.note(NotedRevocation(claim, picks, certain, until_ms))
            world.seen["innocent"] += shown is not None and bool(picks - shown)
        return original_move(self, claim, picks, event, now_ms, until_ms, row, shown)

    def began(self: RecordSet, claim_id: str, intent: Intent) -> RecordSet:
        world.seen[f"{intent.consumer} moves"] += 1
        return original_begin(self, claim_id, intent)

    def refused(self: RecordSet, claim_id: str, refusal: MessageRefusal, *, delivered: bool) -> RecordSet:
        world.seen[f"{refusal.consumer} is refused"] += 1
        return original_refuse(self, claim_id, refusal, delivered=delivered)

    def reconsidered(self: RecordSet, picks: Ranges) -> RecordSet:
        world.seen["reconsidered"] += bool(picks)
        return original_reconsider(self, picks)

    def returned(self: RecordSet, ticket: Ticket) -> RecordSet:
        after = original_return(self, ticket)
        if after is not self:
            world.revocations.note_end(self.intents[ticket.slot])
        return after

    def revoked(self: RecordSet, claim_id: str, *times: int) -> RecordSet:
        claim = self.claims.get(claim_id)
        if claim is not None and world.crowd.lives(claim.session):
            raise LivingRevokedError(f"claim {claim_id} of {claim.consumer}, which lives, was revoked")
        return original_revoke(self, claim_id, *times)

    def prepare(self: BatchMaker, *args: Any) -> PreparedBatch:
        world.revocations.forget()
        prepared = original_prepare(self, *args)
        world.account.planned = prepared.snapshot
        return prepared

    original_move, original_begin, original_return = RecordSet._move, RecordSet.move, RecordSet.returned
    original_refuse, original_reconsider, original_prepare = RecordSet.refuse, RecordSet.reconsider, BatchMaker.prepare
    original_revoke = RecordSet.revoke
    patch.setattr(RecordSet, "_move", moved)
    patch.setattr(RecordSet, "revoke", revoked)
    patch.setattr(RecordSet, "move", began)
    patch.setattr(RecordSet, "returned", returned)
    patch.setattr(RecordSet, "refuse", refused)
    patch.setattr(RecordSet, "reconsider", reconsidered)
    patch.setattr(BatchMaker, "prepare", prepare)


def _count_store_writes(patch: pytest.MonkeyPatch, world: QueueWorld) -> None:
    """A process may also die before it writes to the store. Between the plan of one that shares records and its write, others act:
    the rule must decide on what they have left."""

    def commit(self: LedgerSession, changes: Mapping[Handle, Sequence[Operation]]) -> None:
        world.before_write()
        with world.revocations.write([handle.name for handle in changes]):
            original(self, changes)

    def change(self: LedgerSession, names: Sequence[str], call: RuleCall, *held: Any) -> bytes:
        world.others_act(self.session_id)
        world.before_write()
        with world.revocations.write(names):
            return original_change(self, names, call, *held)

    original, original_change = LedgerSession.commit, LedgerSession.change
    patch.setattr(LedgerSession, "commit", commit)
    patch.setattr(LedgerSession, "change", change)
