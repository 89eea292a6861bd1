"""One consumer of a destination. The Spark source and the plain client get theirs from `open_subscriber`.

What it has on a server is a ServerPart (server_part.py), asked through a branch (branches.py). A destination without servers has
one branch, whose calls run in place: it raises what its store raises, is never away, and keeps its session. What follows is of a
destination on servers.

Each server has its own session, record sets and progress of the query. A batch takes messages of all servers that answer, and
claims them on each under one claim id, one write a server. What that leaves open is in the offset:

    a server ...                          in the next offset
    ------------                          ------------------
    acknowledged the batch before         has what it claimed for this batch, or nothing
    did not, because it was away,         keeps its messages of the batch before, under their old claim; they are not delivered
    or a record was open                  again, and acknowledged when the server answers

While another instance of the same query lives on one of the servers, this one claims nothing on the others: both would give
different messages the same batch number, and their sink would drop one of the two batches.

A claim whose server did not answer in time is in no offset: it was never delivered, so it is dropped when the server answers,
like one that Spark has not logged. A query that is restarted while its last batch has messages of an away server continues without
them, and what it acknowledges while a server is away is noted in the root (absent_servers.py).

A plain client keeps nothing across sessions. When a server loses the session in which it has delivered messages that are not
acknowledged, the consumer is closed. One that is pinned to a server is closed whenever it cannot reach it.

Features: C5, C9, D3, D8, M10 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from spark_jms.claims.batches.acknowledgement import Acknowledger, Parts
from spark_jms.claims.batches.batch import BatchMaker, ConsumerSettings, PreparedBatch, continuation, unit_not_narrowed
from spark_jms.claims.batches.planner import batch_shares
from spark_jms.claims.batches.units_of_order import HeldBack
from spark_jms.claims.consumers.absent_servers import ProgressNotes, WithheldMessages
from spark_jms.claims.consumers.branches import Branches, UnfinishedMessages
from spark_jms.claims.consumers.left_messages import LeftMessages, merged
from spark_jms.claims.consumers.replay import BatchReplay
from spark_jms.claims.consumers.server_part import ServerPart
from spark_jms.claims.failures.poison import Isolation
from spark_jms.claims.records.life_cycle import AcknowledgementTable, LifeCycleTable, opened_table
from spark_jms.claims.records.members import Members
from spark_jms.claims.records.shared import PlanOutdatedError
from spark_jms.claims.records.subscriptions import SubscriptionRequest, SubscriptionUse, use_subscription
from spark_jms.claims.servers.stores import keep_servers, note_late
from spark_jms.claims.servers.timed_stores import AnswerLostError, Runs, StoreThread
from spark_jms.core.destinations.destination import QUEUE_SUBSCRIPTION
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.destinations.subscriptions import record_servers, server_of_subscription
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.batch import Admission, Batch, Limits, MemberPick, claim_id, claim_number
from spark_jms.core.records.take import Offer
from spark_jms.core.transactions.transfer import Ticket
from spark_jms.errors import (
    ClosedError,
    DestinationReplacedError,
    JmsqError,
    MemberLostException,
    MemberUnavailableError,
    SessionEndedException,
)
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms
from spark_jms.settings.destination import UNLIMITED
from spark_jms.store import OutcomeUnknownError, Store, StoreError

T = TypeVar("T")
log = logging.getLogger("spark_jms")
_ATTEMPTS = 4  # plans of a batch while other consumers are faster
_PAUSE_S = (0.001, 0.005)


@dataclass
class _Concluded:
    """A batch's second half: what was claimed under `claim`, the servers that have written it, and those of them on which the
    batch before is acknowledged."""

    claim: str
    made: dict[int, MemberPick] = field(default_factory=dict)
    overtaken: bool = False  # all that was to be claimed was had by other consumers first
    wrote: set[str] = field(default_factory=set)
    acknowledged: set[str] = field(default_factory=set)


class Subscriber:
    """Thread-safe. Every method may raise ConsumerClosedException: then another instance or an administrator has revoked
    this consumer's claims, and it can acknowledge nothing.

    On servers, what a method reads is without the servers that are away, and what it acknowledges or releases raises
    MemberUnavailableError when one of them does not answer."""

    def __init__(
        self,
        domain: Domain,
        store: Store,
        destination: str,
        subscription: str,
        consumer: str,
        settings: ConsumerSettings,
        clock_ms: Callable[[], int] = now_ms,
        use: SubscriptionUse | None = None,
        *,
        store_thread: Callable[[str], Runs] = StoreThread,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`store`: the stores of all servers."""
        self._domain, self._store, self._use, self.settings = domain, store, use, settings
        self.table = domain.log(destination)
        self.destination, self.subscription, self.consumer = destination, subscription, consumer
        self.closed = self._overtaken = False
        snapshot = self.table.refresh()
        self.table_id = snapshot.table_id
        placed = snapshot.destination.placement is not None
        self._clock_ms, self._monotonic_s = clock_ms, monotonic_s
        self._isolation = Isolation(f"{destination}/{subscription}", narrows=settings.isolates_poison)
        self._left_out = WithheldMessages(domain.storage, self.table_id, consumer, on_servers=placed)
        self._noted = ProgressNotes(domain.storage, self.table_id, consumer, on_servers=placed)
        self._admission = Admission(monotonic_s() * 1000)
        self._acknowledgements = AcknowledgementTable(domain.acknowledgements(destination), self.table_id, subscription)
        self._life_cycle: LifeCycleTable | None = None
        self._lock = threading.RLock()
        late = partial(note_late, store)
        self._branches = Branches(
            self.table, self.table_id, subscription, consumer, settings, self._opened, store_thread, monotonic_s, late
        )
        if not placed:
            self._branches.stay_in_place(self._opened(HOME, open_timeout_s=None))
        self._unfinished = UnfinishedMessages(self._branches)  # of a client
        self._replay = BatchReplay(
            self.table, self._branches, self._isolation, self._left_out, self._noted, settings, monotonic_s
        )

    @property
    def parts(self) -> dict[str, ServerPart]:
        """server -> what this consumer has on it, of the servers that it is connected to. Not guarded by its lock."""
        return {server: branch.part for server, branch in self._branches.items() if branch.part is not None}

    # -- batches --------------------------------------------------------------------------------------------------
    def next_batch(self, start: Batch, limits: Limits, targets: Mapping[int, int] | None = None) -> Batch | None:
        """The next batch after `start`, claimed; None when no message is available. Never waits for other consumers. The claim that
        `start` names is acknowledged. `targets` maps each member to the last sequence to take."""
        for _ in range(_ATTEMPTS):
            try:
                made, self._overtaken = self._made_batch(start, limits, targets), False
                return made
            except PlanOutdatedError as error:
                log.debug("%s: the next batch is planned again: %s", self.destination, error)
            time.sleep(random.uniform(*_PAUSE_S))
        self._overtaken = True
        return None

    def _made_batch(self, start: Batch, limits: Limits, targets: Mapping[int, int] | None) -> Batch | None:
        with self._lock:
            self._follow(start)
            if self.settings.replayable:
                self._noted.check(start, self.destination)
            self._isolation.ends(start.claim)
            start = self._left_out.delivered_of(start)
            left_out = self._left_out.claims()
            prepared: dict[str, PreparedBatch] = {}
            for server in self._branches:
                part = start.part(self._branches.members_on(server))
                prepare = partial(ServerPart.prepare, start=part, limits=limits, targets=targets, left_out=left_out)
                for found in self._branches.answers(server, prepare):
                    prepared[server] = found
            current = {server for server, one in prepared.items() if one.progress.has_acknowledged(start.claim)}
            self._noted.note(start.claim, behind=self._branches.keys() - current)
            done = self._concluded(start, prepared, limits, targets)
            current &= done.wrote
            self._noted.note(start.claim, behind=self._branches.keys() - current)
            if current.issuperset(record_servers(self.table.snapshot.destination, self.subscription)):
                self._noted.forget()
            released = {member for server in done.acknowledged for member in prepared[server].changed}
            self._left_out.forget(released, replayable=start.claim)
            self._check_open()
            if not done.made and done.overtaken:
                raise PlanOutdatedError("other consumers have had all of it first")
            if not done.made:
                return None
            left = [
                m for server in self._branches.keys() - done.acknowledged for m in self._branches.members_on(server)
            ]
            self._replay.made(done.claim)
            self._admission.made(self._monotonic_s() * 1000)
            return Batch(self.consumer, done.claim, {**start.carried(left), **done.made}, self.table_id)

    def _concluded(
        self, start: Batch, prepared: Mapping[str, PreparedBatch], limits: Limits, targets: Mapping[int, int] | None
    ) -> _Concluded:
        """Messages that a failing batch withheld are claimed on all their servers, or not delivered."""
        number = max([claim_number(start.claim), *(one.progress.claimed for one in prepared.values())]) + 1
        claim = claim_id(number, secrets.token_hex(8))
        narrowed = any(one.trial is not None for one in prepared.values())
        alone = not self._has_older_self()
        continued = continuation(prepared, claim) if narrowed and alone else None
        shares = self._shares(prepared, limits, targets) if alone and not narrowed else {}
        trial = continued.trial if continued else None
        servers = {self._branches.server_of(m) for m in continued.members} if continued else set()
        done = _Concluded(claim, overtaken=bool(shares))
        for server, one in prepared.items():
            conclude = partial(
                BatchMaker.conclude,
                prepared=one,
                claim=claim if shares else None,
                shares=shares,
                continued=continued if server in servers else None,
            )
            for batch in self._branches.answers(server, _of_batches(conclude), writes=True):
                done.wrote.add(server)
                if not one.missing:
                    done.acknowledged.add(server)
                if batch is not None:
                    done.made.update(batch.members)
                    if not self.settings.replayable:
                        self._unfinished.claimed(server, batch.members)
        if trial is not None and trial.messages.keys() - done.made.keys():
            return replace(done, made={})
        done.made = {m: done.made[m] for m in [*shares, *(done.made.keys() - shares.keys())] if m in done.made}
        if done.made:
            self._isolation.claimed(start.claim, claim, trial)
        return done

    def _shares(
        self, prepared: Mapping[str, PreparedBatch], limits: Limits, targets: Mapping[int, int] | None
    ) -> dict[int, int]:
        """How many of each member's messages the next batch takes; {}: it waits for more."""
        planned: dict[int, Offer] = {m: offer for one in prepared.values() for m, offer in one.planned.items()}
        offered = {member: offer.picks.count for member, offer in planned.items()}
        looked_at = frozenset[int]().union(*(one.looked_at for one in prepared.values()))
        now_ms, draining = self._monotonic_s() * 1000, targets is not None
        if not self._admission.allows(limits, offered, now_ms, draining=draining, looked_at=looked_at):
            return {}
        return batch_shares(self.table.snapshot, planned, limits)

    def resume(self, batch: Batch) -> dict[int, Ranges]:
        """Protect the claim of a logged batch after a restart. Returns the messages of each member that the batch does not
        deliver: they do not belong to this consumer any more, or its isolation withholds them, or their server is away
        (absent_servers.py). For a batch that this instance made, this only reads the store. Waits for records that other sessions
        have opened. Raises MemberUnavailableError, also when a server is away and the query narrows failing batches, and
        QueryRunningError when another instance of the query runs."""
        with self._lock:
            self._follow(batch)
            return self._replay.resume(batch)

    @property
    def in_batch(self) -> bool:
        """Spark processes a batch: it has not asked for the next one."""
        return self._isolation.runs

    def note_failure(self) -> None:
        """Spark has given up the batch that it was processing. Noted on the servers that answer."""
        with self._lock:
            if not self.closed:
                self._replay.note_failure()

    def is_unacknowledged(self, start: Batch) -> bool:
        """`start` is not acknowledged on all its members yet: a server is away, or another session has opened a record."""
        with self._lock:
            self._follow()
            start = self._left_out.delivered_of(start)
            for server in self._branches:
                part = start.part(self._branches.members_on(server))
                if part.members:
                    answers = [*self._branches.answers(server, _is_left(part))]
                    if not answers or answers[0]:
                        return True
            return False

    def has_news(self) -> bool:
        """Something changed since the last plan, on a server that answers, or one may answer again. Cheap for 200 calls a second."""
        return self._has(ServerPart.has_news)

    def has_due(self) -> bool:
        """The same without commits: what the last plan knew of is to be looked at again."""
        return self._has(ServerPart.has_due)

    def _has(self, what: Callable[[ServerPart], bool]) -> bool:
        with self._lock:
            due = self.is_due() or any(branch.is_due() for branch in self._branches.values())
            return due or any(self._each_if_open(what))

    def have_records_changed(self) -> bool:
        """Others have changed one since this consumer has seen it. Cheap enough for ten calls a second."""
        return any(self._each_if_open(lambda part: part.members.have_changed()))

    def has_available(self) -> bool:
        """Messages are available, as far as record sets tell."""
        return any(self._each_if_open(ServerPart.has_available))

    def is_turn_of_others(self) -> bool:
        """Other consumers that have nothing to do are enough for what is available."""
        return all(self._each_if_open(ServerPart.is_turn_of_others))

    def is_due(self) -> bool:
        """Messages have waited for a full batch as long as they may, or other consumers were faster than each plan."""
        return self._overtaken or self._admission.is_due(self._monotonic_s() * 1000)

    @property
    def lingers(self) -> bool:
        """Available messages wait for a full batch."""
        return self._admission.lingers

    def has_more(self) -> bool:
        """The last plan did not get through all messages: the next one continues behind it."""
        return any(self._each_if_open(ServerPart.has_more))

    # -- acknowledging --------------------------------------------------------------------------------------------
    @property
    def members(self) -> Members | None:
        """Of a destination without servers, where what `Members.finish` is told is acknowledged in the write of the next plan."""
        return next(iter(self.parts.values())).members if self._branches.in_place else None

    def acknowledge(self, parts: Mapping[str, Mapping[int, Ranges]], *, whole: bool = False) -> Parts:
        """Acknowledge parts (member -> messages) of open claims, in one write on each server. Returns the parts on members whose
        record another session has opened: nothing of those members is acknowledged; try again. `whole`:
        all or nothing; parts on several servers never are. Those of the first servers stay acknowledged when a later one fails."""
        by_server = self._branches.by_server(parts)
        if whole and len(by_server) > 1:
            return {claim: dict(members) for claim, members in parts.items()}
        try:
            return self._change(by_server, lambda own: lambda part: part.acknowledger.acknowledge(own, whole=whole))
        except JmsqError as error:
            if whole and isinstance(error.__cause__, AnswerLostError):
                raise OutcomeUnknownError(str(error.__cause__)) from error
            raise

    def pledge(self, parts: Mapping[str, Mapping[int, Ranges]], ticket: Ticket, coordinator: str) -> Parts:
        """Parts of open claims wait for the decision of a transaction. Writes and returns as `acknowledge` does."""
        return self._change(
            self._branches.by_server(parts), lambda own: lambda part: part.acknowledger.pledge(own, ticket, coordinator)
        )

    def end_pledges(self, members: Iterable[int], ticket: Ticket, *, committed: bool) -> None:
        """Acknowledge or return what this consumer has pledged to a decided transaction, on every server that answers. Where
        another session has opened the record, the next consumer that plans does so."""
        delay_ms = self.table.snapshot.destination.redelivery_delay_ms
        with self._lock:
            self._check_open()
            concerned: dict[str, list[int]] = {}
            for member in members:
                concerned.setdefault(self._branches.server_of(member), []).append(member)
            failed: list[JmsqError] = []
            for server, own in concerned.items():
                end = partial(
                    Acknowledger.end_pledges, members=own, ticket=ticket, committed=committed, delay_ms=delay_ms
                )
                try:
                    self._branches.must(server, _of_acknowledger(end))
                except JmsqError as error:
                    failed.append(error)
            if failed:
                raise failed[0]

    def _change(
        self,
        by_server: Mapping[str, Mapping[str, Mapping[int, Ranges]]],
        change: Callable[[Mapping[str, Mapping[int, Ranges]]], Callable[[ServerPart], Parts]],
    ) -> Parts:
        """Returns the parts on members whose record another session has opened. The others are not this session's any more."""
        with self._lock:
            self._check_open()
            left: Parts = {}
            for server, own in by_server.items():
                rest = self._branches.must(server, change(own))
                for claim, members in own.items():
                    for member, picks in members.items():
                        if member not in rest.get(claim, {}):
                            self._unfinished.finished(member, picks)
                for claim, some in rest.items():
                    left.setdefault(claim, {}).update(some)
            return left

    def release(self, claim: str, parts: Mapping[int, Ranges], *, delivered: bool, delay_ms: int | None = None) -> bool:
        """Make parts of a claim available again; `delivered` ones come again flagged, after `delay_ms` (None: after the
        destination's redelivery delay). False when another session has opened a record: nothing is released on that server;
        try again."""
        if delay_ms is None:
            delay_ms = self.table.snapshot.destination.redelivery_delay_ms
        with self._lock:
            self._check_open()
            released = True
            for server, own in self._branches.by_server({claim: parts}).items():
                picks = own[claim]
                release = partial(
                    Acknowledger.release, claim=claim, parts=picks, delivered=delivered, delay_ms=delay_ms
                )
                done = self._branches.must(server, _of_acknowledger(release))
                released = released and done
                if done:
                    for member, some in picks.items():
                        self._unfinished.finished(member, some)
            return released

    def set_aside(self, claim: str, member: int, reasons: Mapping[int, str]) -> bool:
        """Move claimed messages that cannot be decoded out of the way, all or none; `reasons` by sequence. False when another
        session has opened the record: try again. Raises JmsqError or OSError when the transfer cannot begin;
        the messages stay claimed."""
        with self._lock:
            self._check_open()
            try:
                return self._branches.must(
                    self._branches.server_of(member), lambda part: part.set_aside(claim, member, reasons)
                )
            except (MemberUnavailableError, MemberLostException):
                self._check_open()
                raise

    def flush_outbox(self) -> None:
        """End pledges of decided transactions, and write waiting acknowledgements to their table. To be called about once a second."""
        waiting = {m: rows for found in self._each_if_open(ServerPart.outboxes) for m, rows in found.items()}
        if waiting:
            written = self._acknowledgements.write(waiting)
            self._each_if_open(lambda part: part.delivered(written))

    def make_room(self) -> None:
        """Apply the subscription's limit to what has arrived since the last plan; once a second."""
        if self.table.snapshot.destination.messages_limit_override != UNLIMITED:
            self._each_if_open(lambda part: part.batches.make_room())

    def flush_life_cycle(self) -> None:
        """Write waiting events to the life-cycle table, once a second. A table that cannot be written stops no consumer."""
        waiting = {m: events for found in self._each_if_open(ServerPart.events) for m, events in found.items()}
        if not waiting:
            return
        if self._life_cycle is None:
            self._life_cycle = LifeCycleTable(opened_table(self._domain, self.destination), self.table_id)
        written = self._life_cycle.write(self.subscription, waiting)
        self._each_if_open(lambda part: part.logged(written))

    def attach(self) -> None:
        """To the members that this consumer is pinned to, before it needs them: others see it there."""
        self._each(ServerPart.attach)

    # -- beside the batches ---------------------------------------------------------------------------------------
    def has_session(self) -> bool:
        """Whether the stores still know this consumer: one that stalled for longer than its session's time-out can only be closed."""
        return not self.closed and all(self._each_if_open(lambda part: part.members.has_session()))

    def check_session(self) -> None:
        """Raises SessionEndedException when a store knows this consumer no more. Cheap enough for 50 calls a second."""
        self._each_if_open(lambda part: part.members.check_session())

    def lost(self) -> JmsqError | None:
        """Why it can only be closed, which its next call finds; None: as far as its stores answer, it is well, or closed."""
        try:
            alive = self._each(lambda part: part.members.has_session())
        except (ClosedError, MemberUnavailableError, StoreError):
            return None
        except JmsqError as error:
            return error
        ended = self._branches.in_place and not all(alive)  # a branch on a server opens another session
        return SessionEndedException() if ended and not self.closed else None

    def backlog(self) -> dict[int, int]:
        """member -> unfinished messages of the subscription."""
        found = self._each(lambda part: part.backlog.backlog(self.table.snapshot))
        return {m: n for one in found for m, n in one.items()}

    def refused(self) -> dict[int, int]:
        """member -> messages of the backlog that this consumer's selector refuses, as far as it has looked."""
        found = self._each(lambda part: part.backlog.refused(self.table.snapshot, part.planner.refused))
        return {m: n for one in found for m, n in one.items()}

    def held_back(self) -> list[HeldBack]:
        """What units of order keep from it behind messages that its selector refuses, as far as it has looked."""
        return [one for found in self._each(ServerPart.held_back) for one in found]

    def waits_for(self, targets: Mapping[int, int], within_ms: int) -> bool:
        """Some message up to `targets`, which this consumer cannot have now, may become available within this time. True while
        another instance of the query lives on a server."""
        return self._has_older_self() or any(
            self._of_targets(targets, lambda own: lambda part: part.left.waits_for(self.table.snapshot, own, within_ms))
        )

    def left(self, targets: Mapping[int, int]) -> list[LeftMessages]:
        """The unfinished messages up to `targets`, which this consumer cannot have now, and why."""
        left = self._of_targets(targets, lambda own: lambda part: part.left.left(self.table.snapshot, own))
        return merged([one for found in left for one in found])

    def away(self) -> dict[str, str]:
        """server -> why it is away."""
        with self._lock:
            return {server: branch.why_away for server, branch in self._branches.items() if branch.why_away}

    def close(self) -> None:
        """End its sessions. Open claims stay: a replayable one is in doubt, the messages of any other become available."""
        with self._lock:
            if not self.closed:
                self.closed = True
                for branch in self._branches.values():
                    branch.close()
                if self._use is not None:
                    self._use.close()

    # -- inside ---------------------------------------------------------------------------------------------------
    def _follow(self, batch: Batch | None = None) -> None:
        self._check_open()
        self._branches.follow(batch)

    def _opened(self, server: str, open_timeout_s: float | None = 0.0) -> ServerPart:
        if self.table.refresh().table_id != self.table_id:
            raise DestinationReplacedError()
        return ServerPart(
            self._domain,
            self._store,
            self.destination,
            self.table_id,
            self.subscription,
            self.consumer,
            self.settings,
            self._clock_ms,
            self._monotonic_s,
            server=server,
            open_timeout_s=open_timeout_s,
        )

    def _has_older_self(self) -> bool:
        """Another instance of this query lives on one of the servers."""
        return any(branch.older_self is not None for branch in self._branches.values())

    def _each(self, act: Callable[[ServerPart], T]) -> list[T]:
        with self._lock:
            self._follow()
            return self._branches.each(act)

    def _each_if_open(self, act: Callable[[ServerPart], T]) -> list[T]:
        with self._lock:
            return [] if self.closed else self._branches.each(act)

    def _of_targets(
        self, targets: Mapping[int, int], ask: Callable[[Mapping[int, int]], Callable[[ServerPart], T]]
    ) -> list[T]:
        with self._lock:
            self._follow()
            found: list[T] = []
            for server in self._branches:
                own = {m: last for m, last in targets.items() if m in self._branches.members_on(server)}
                found += self._branches.answers(server, ask(own))
            return found

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"consumer {self.consumer} of {self.destination} is closed: create a new one")
        if (error := self._unfinished.lost()) is not None:
            raise error


# -- what a part is asked, perhaps in a thread of its own: the arguments are bound before -------------------------------


def _of_batches(act: Callable[[BatchMaker], T]) -> Callable[[ServerPart], T]:
    return lambda part: act(part.batches)


def _of_acknowledger(act: Callable[[Acknowledger], T]) -> Callable[[ServerPart], T]:
    return lambda part: act(part.acknowledger)


def _is_left(start: Batch) -> Callable[[ServerPart], bool]:
    return lambda part: bool(part.batches.previous.members_left(start))


def open_subscriber(
    domain: Domain,
    store: Store,
    destination: str,
    request: SubscriptionRequest | None,
    consumer: str,
    settings: ConsumerSettings,
    *,
    wait_s: float = 0.0,
) -> Subscriber:
    """The consumer of a queue (`request` None), or of a topic's subscription, whose use it enters. `store`: the stores of all servers.
    Waits up to `wait_s` for consumers that exclude it; then SubscriptionInUseError."""
    log = domain.log(destination)
    declared = log.refresh().destination
    if declared.handles_units_of_work and settings.isolates_poison:
        raise unit_not_narrowed(destination)
    keep_servers(store, log)
    if request is None:
        return Subscriber(domain, store, destination, QUEUE_SUBSCRIPTION, consumer, settings)
    use = use_subscription(store, log, request, wait_s=wait_s)
    settings = replace(settings, live=use.live)
    if declared.is_replicated:  # a client's subscriber ends with its server, a query waits for it
        settings = replace(settings, server=server_of_subscription(use.name), pinned=not settings.replayable)
    try:
        return Subscriber(domain, store, destination, use.name, consumer, settings, use=use)
    except BaseException:
        use.close()
        raise
