"""One consumer of a destination's members on one server.

The Spark source and the plain client get theirs from `open_subscriber` (distributed.py), which puts several together where a
destination is on servers.

The subscriber guards its parts with one lock, and ends with `close`:

    records/members.py           the records it holds: opened, changed in one write, handed over at boundaries; how much is left
    batches/batch.py             the next batch: acknowledge the previous one, drop, sweep, plan, claim
    batches/planner.py           which messages a batch may take
    batches/acknowledgement.py   the batch before, acknowledged when Spark asks for more and resumed after a restart; parts of
                                 claims, acknowledged and released as a plain client does
    failures/poison.py           narrows a failing batch to its poison message
    left_messages.py             why messages are left

Features: C5, C6, C8, C9, C10, T4, T6, T13, T16, M4 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Set

from spark_jms.claims.batches.acknowledgement import Acknowledger, Parts, other_table
from spark_jms.claims.batches.batch import BatchMaker, ConsumerSettings, Continuation, PreparedBatch
from spark_jms.claims.batches.planner import Planner
from spark_jms.claims.batches.units_of_order import HeldBack
from spark_jms.claims.consumers.left_messages import LeftMessages, LeftReader, merged
from spark_jms.claims.failures.error_destination import set_aside
from spark_jms.claims.failures.poison import ProtectedPart
from spark_jms.claims.records.life_cycle import AcknowledgementTable, LifeCycleTable, opened_table
from spark_jms.claims.records.members import BacklogReader, Members
from spark_jms.claims.records.subscriptions import SubscriptionUse
from spark_jms.claims.servers.stores import home_of, store_of
from spark_jms.claims.transactions.transfer import Pledges, Transfers
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.destinations.subscriptions import recorded_on
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.core.records.poison import Messages, Trial
from spark_jms.core.transactions.transfer import Ticket
from spark_jms.errors import ClosedError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms
from spark_jms.store import Store


class Subscriber:
    """Thread-safe. Every method may raise ConsumerClosedException: then another instance or an administrator has revoked
    this consumer's claims, and it can acknowledge nothing."""

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
        server: str = HOME,
        open_timeout_s: float | None = None,
    ) -> None:
        """`store` is that of `server`, or the stores of all servers. `open_timeout_s`: how long to wait for an older instance of
        the query to end (None: the usual time)."""
        home, store = home_of(store), store_of(store, server)
        self._domain, self._use = domain, use
        self.table = domain.log(destination)
        self.destination, self.subscription, self.consumer = destination, subscription, consumer
        self.settings, self._server = settings, server
        self._clock_ms = clock_ms
        self.closed = False
        self.table_id = self.table.refresh().table_id
        self.members = Members(
            store,
            destination,
            self.table_id,
            subscription,
            consumer,
            replayable=settings.replayable,
            open_timeout_s=open_timeout_s,
            clock_ms=clock_ms,
            is_logged=lambda: self.table.snapshot.destination.message_logging_enabled,
        )
        self.planner = Planner(
            self.table,
            consumer,
            settings.selector,
            settings.fail_on_data_loss,
            self.members.label,
            clock_ms,
            subscription,
            settings.floors,
        )
        self._transfers = Transfers(domain, self.table, clock_ms)
        pledges = Pledges(domain, home, self.table, clock_ms)
        self._batches = BatchMaker(
            self.table, store, self.members, self.planner, self._transfers, pledges, settings, clock_ms, server, home
        )
        self._acknowledger = Acknowledger(self.members, self.planner, clock_ms)
        self._backlog = BacklogReader(store, self.members, settings.live, server)
        self._left = LeftReader(self.table, self.members, self.planner, self._backlog, clock_ms)
        self._acknowledgements = AcknowledgementTable(domain.acknowledgements(destination), self.table_id, subscription)
        self._life_cycle: LifeCycleTable | None = None
        self._lock = threading.RLock()

    # -- batches --------------------------------------------------------------------------------------------------
    def next_batch(self, start: Batch, limits: Limits, targets: Mapping[int, int] | None = None) -> Batch | None:
        """The next batch after `start`, claimed; None when no message is available. Never waits. The claim that `start`
        names is acknowledged. `targets` maps each member to the last sequence to take."""
        with self._lock:
            self._check_open()
            self._check_bound(start)
            return self._batches.next_batch(start, limits, targets)

    def prepare(
        self, start: Batch, limits: Limits, targets: Mapping[int, int] | None, left_out: Collection[str] = ()
    ) -> PreparedBatch:
        """The first half of `next_batch`: everything but the claim, and nothing is written. `left_out`: claims whose messages
        were not delivered with their batch; they are released, flagged."""
        with self._lock:
            self._check_open()
            self._batches.previous.flagged = left_out
            self._check_bound(start)
            return self._batches.prepare(start, limits, targets)

    def conclude(
        self,
        prepared: PreparedBatch,
        claim: str | None,
        shares: Mapping[int, int],
        continued: Continuation | None,
        pins: Set[int],
    ) -> Batch | None:
        """The second half: claim the first so many of each member's offer, and write everything; None claims nothing. See
        `BatchMaker.conclude`."""
        with self._lock:
            self._check_open()
            return self._batches.conclude(prepared, claim, shares, continued, pins)

    def resume(self, batch: Batch) -> dict[int, Ranges]:
        """Protect the claim of a logged batch after a restart. Returns the messages of each member that the batch does not
        deliver. For a batch that this instance made, this only reads the store."""
        with self._lock:
            self._check_open()
            self._check_bound(batch)
            return self._batches.previous.resume(batch)

    # -- for a batch of several servers, whose trial DistributedIsolation advances --------------------------------
    def protect(self, batch: Batch) -> ProtectedPart:
        """The part of `resume` that is this server's. Raises MemberUnavailableError while another consumer holds a record."""
        with self._lock:
            self._check_open()
            self._check_bound(batch)
            return self._batches.previous.protect(batch, time.monotonic())

    def keep_trial(self, trial: Trial) -> None:
        """Store a copy of the trial."""
        with self._lock:
            self._check_open()
            self._batches.isolation.keep(trial)

    def set_poison_aside(self, trial: Trial, convicted: Messages, failures: int) -> None:
        """The same, and move the convicted message, which is on this server, in the same write. Raises PoisonMessageError, and
        MemberUnavailableError while another consumer holds the record."""
        with self._lock:
            self._check_open()
            self._batches.isolation.set_aside(trial, convicted, failures, time.monotonic())

    @property
    def in_batch(self) -> bool:
        """Spark processes a batch: it has not asked for the next one."""
        return self._batches.isolation.runs

    def note_failure(self) -> None:
        """Spark has given up the batch that it was processing."""
        with self._lock:
            if not self.closed:
                self._batches.isolation.note_failure()

    def is_unacknowledged(self, start: Batch) -> bool:
        """`start` is not acknowledged on all its members yet, because another consumer holds a record."""
        with self._lock:
            return bool(self._batches.previous.members_left(start))

    def has_news(self) -> bool:
        """Something changed since the last plan: a commit (which another thread may have read already), a record that was
        handed over, or the end of a redelivery delay; or a destination that refuses messages for good may have changed. Cheap enough
        for 200 calls a second."""
        return (
            self.table.snapshot.version != self._batches.planned_version
            or self.table.has_news()
            or self.has_more()
            or self.has_new_records()
            or self._has_due()
            or self.is_due()
        )

    def is_due(self) -> bool:
        """Messages have waited for a full batch as long as they may."""
        return self._batches.admission.is_due(time.monotonic() * 1000)

    @property
    def lingers(self) -> bool:
        """Available messages wait for a full batch."""
        return self._batches.admission.lingers

    def has_more(self) -> bool:
        """The last plan did not get through all messages: the next one continues behind it."""
        with self._lock:
            return self._batches.passed_barrier or any(self.planner.has_more(member) for member in self.members.held)

    def has_new_records(self) -> bool:
        """Another consumer has handed over a record that `next_batch` has not taken up yet."""
        with self._lock:
            return not self.closed and self.members.granted()

    def _has_due(self) -> bool:
        with self._lock:
            now = self._clock_ms()
            is_over = any(until <= now for held in self.members.held.values() for until in held.state.delays)
            return is_over or self._batches.may_reconsider()

    # -- acknowledging --------------------------------------------------------------------------------------------
    def acknowledge(self, parts: Mapping[str, Mapping[int, Ranges]], *, whole: bool = False) -> Parts:
        """Acknowledge parts (member -> messages) of open claims in one write. Returns the parts on members that another
        consumer holds: it has been asked for the record, and nothing of those members is acknowledged; try again. `whole`: all
        or nothing."""
        with self._lock:
            self._check_open()
            return self._acknowledger.acknowledge(parts, whole=whole)

    def pledge(self, parts: Mapping[str, Mapping[int, Ranges]], ticket: Ticket, coordinator: str) -> Parts:
        """Parts of open claims wait for the decision of a transaction, in one write. Returns as `acknowledge` does."""
        with self._lock:
            self._check_open()
            return self._acknowledger.pledge(parts, ticket, coordinator)

    def end_pledges(self, members: Iterable[int], ticket: Ticket, *, committed: bool) -> None:
        """Acknowledge or return what this consumer has pledged to a decided transaction. Where another consumer holds the
        record, that one does so before it plans."""
        with self._lock:
            self._check_open()
            delay_ms = self.table.snapshot.destination.redelivery_delay_ms
            self._acknowledger.end_pledges(members, ticket, committed=committed, delay_ms=delay_ms)

    def release(self, claim: str, parts: Mapping[int, Ranges], *, delivered: bool, delay_ms: int | None = None) -> bool:
        """Make parts of a claim available again; `delivered` ones come again flagged, after `delay_ms` (None: after the
        destination's redelivery delay). False when another consumer holds a record: it has been asked for it, and nothing
        is released; try again."""
        with self._lock:
            self._check_open()
            usual = self.table.snapshot.destination.redelivery_delay_ms
            return self._acknowledger.release(
                claim, parts, delivered=delivered, delay_ms=usual if delay_ms is None else delay_ms
            )

    def set_aside(self, claim: str, member: int, reasons: Mapping[int, str]) -> bool:
        """Move claimed messages that cannot be decoded out of the way, all or none; `reasons` by sequence. False when another
        consumer holds the record: it has been asked for it; try again. Raises JmsqError or OSError when the transfer cannot begin;
        the messages stay claimed."""
        with self._lock:
            self._check_open()
            return set_aside(self._domain, self.table, self.members, self._transfers, claim, member, reasons)

    def flush_outbox(self) -> None:
        """Write waiting acknowledgements to their table, after a hand-over. A background thread calls this about once a
        second."""
        with self._lock:
            if self.closed:
                return
            self.hand_over()
            outboxes = {m: held.state.outbox for m, held in self.members.held.items() if held.state.outbox}
        if outboxes:
            written = self._acknowledgements.write(outboxes)
            with self._lock:
                if not self.closed:
                    held = self.members.held
                    self.members.commit(
                        {m: held[m].state.delivered_to_table(p) for m, p in written.items() if m in held}
                    )

    def make_room(self) -> None:
        """Apply the subscription's limit to what has arrived since the last plan. A background thread calls this once a
        second."""
        with self._lock:
            if not self.closed:
                self._batches.make_room()

    def flush_life_cycle(self) -> None:
        """Write waiting events to the life-cycle table. A background thread calls this about once a second; nothing is
        read or written while none wait. A table that cannot be written stops no consumer."""
        with self._lock:
            waiting = {m: held.state.life.waiting for m, held in self.members.held.items() if held.state.life.waiting}
        if self.closed or not waiting:
            return
        if self._life_cycle is None:
            self._life_cycle = LifeCycleTable(opened_table(self._domain, self.destination), self.table_id)
        written = self._life_cycle.write(self.subscription, waiting)
        with self._lock:
            if not self.closed:
                held = self.members.held
                self.members.commit({m: held[m].state.logged_to_table(p) for m, p in written.items() if m in held})

    def take_up(self) -> None:
        """Ask for the records of the members that this consumer is pinned to, before it needs them: others see it there."""
        with self._lock:
            self._check_open()
            declared = self.table.snapshot.destination
            for member in sorted(self.settings.members or recorded_on(declared, self._server, self.subscription)):
                self.members.open(member)

    # -- sharing --------------------------------------------------------------------------------------------------
    def has_session(self) -> bool:
        """Whether the store still knows this consumer: one that stalled for longer than its session's time-out can only be closed."""
        with self._lock:
            return not self.closed and self.members.has_session()

    def leave_all(self) -> None:
        """Free the records for other consumers until the next plan. A consumer that has its share of members would not ask for
        those that this one holds."""
        with self._lock:
            if not self.closed:
                self.members.leave_all()

    def hand_over(self) -> int:
        """A boundary: hand over the records that other consumers wait for; returns how many. Called often; it looks at one
        file."""
        with self._lock:
            if self.closed:
                return 0
            self._batches.end_pledges()
            snapshot = self.table.snapshot
            return self.members.hand_over({m: snapshot.last_sequence(m) for m in self.members.held})

    def backlog(self) -> dict[int, int]:
        """member -> unfinished messages of the subscription, whichever consumer holds the member."""
        with self._lock:
            return self._backlog.backlog(self.table.snapshot)

    def refused(self) -> dict[int, int]:
        """member -> how many messages of the backlog this consumer's selector refuses, as far as it has looked; they wait for other
        consumers of the queue."""
        with self._lock:
            return self._backlog.refused(self.table.snapshot, self.planner.refused)

    def held_back(self) -> list[HeldBack]:
        """What this consumer's selector takes and units of order keep from it, behind messages that the selector refuses; as far as
        it has looked at the members that it holds or held."""
        with self._lock:
            members = self.planner.holding_back
            return [one for member in members for one in self.planner.held_back(member, self._backlog.state(member))]

    def waits_for(self, targets: Mapping[int, int], within_ms: int) -> bool:
        """Some message up to `targets`, which this consumer cannot have now, may become available within this time."""
        with self._lock:
            return self._left.waits_for(self.table.snapshot, targets, within_ms)

    def left(self, targets: Mapping[int, int]) -> list[LeftMessages]:
        """The unfinished messages up to `targets`, which this consumer cannot have now, and why."""
        with self._lock:
            return merged(self._left.left(self.table.snapshot, targets))

    def away(self) -> dict[str, str]:
        """server -> why it is away: {}, because an error of the only server is raised."""
        return {}

    def close(self) -> None:
        """Give up all records. Open claims stay: a replayable one is in doubt, the messages of any other become available."""
        with self._lock:
            if not self.closed:
                self.closed = True
                self.members.close()
                if self._use is not None:
                    self._use.close()

    def _check_bound(self, batch: Batch) -> None:
        """The offset is of the table that this consumer reads. One of version 1 names no table; it is bound when the query
        is known here (`jmsq upgrade` makes it known)."""
        known = self.members.open_progress()
        unbound = not batch.table and batch.claim and self.settings.replayable and not known.claimed
        if batch.table not in ("", self.table_id) or unbound:
            raise other_table(self._domain, self.destination, self.table_id, batch)

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"consumer {self.consumer} of {self.destination} is closed: create a new one")
