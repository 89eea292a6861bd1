"""What a consumer has on one server: a session, the record sets that it follows there, and what it knows of their messages.

A Subscriber (subscriber.py) has one for each server of its destination, and a single one for a destination without servers. It asks
the leaves of a part directly:

    records/members.py           the record sets it follows: looked at, and changed in one write
    batches/batch.py             the next batch: acknowledge the previous one, drop, sweep, plan, claim
    batches/planner.py           which messages a batch may take
    batches/acknowledgement.py   the batch before, acknowledged when Spark asks for more and resumed after a restart; parts of
                                 claims, acknowledged and released as a plain client does
    failures/poison.py           the copy of a failing batch's trial
    left_messages.py             why messages are left

Features: C5, C6, C8, C9, C10, T4, T6, T13, T16, M4 (docs/FEATURES.md)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from spark_jms.claims.batches.acknowledgement import Acknowledger, other_table
from spark_jms.claims.batches.batch import BatchMaker, ConsumerSettings, PreparedBatch
from spark_jms.claims.batches.planner import Planner
from spark_jms.claims.batches.units_of_order import HeldBack
from spark_jms.claims.consumers.left_messages import LeftReader
from spark_jms.claims.failures.error_destination import set_aside
from spark_jms.claims.failures.poison import ProtectedPart
from spark_jms.claims.records.members import BacklogReader, Members
from spark_jms.claims.servers.stores import home_of, store_of
from spark_jms.claims.transactions.transfer import Pledges, Transfers
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.destinations.subscriptions import recorded_on
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.core.records.life_cycle import Acknowledgement, LoggedEvent
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms
from spark_jms.store import Store

T = TypeVar("T")


class ServerPart:
    """Not thread-safe: the subscriber's lock guards it. Every method may raise ConsumerClosedException: then another instance or an
    administrator has revoked this consumer's claims, and it can acknowledge nothing."""

    def __init__(
        self,
        domain: Domain,
        store: Store,
        destination: str,
        table_id: str,
        subscription: str,
        consumer: str,
        settings: ConsumerSettings,
        clock_ms: Callable[[], int] = now_ms,
        monotonic_s: Callable[[], float] = time.monotonic,
        *,
        server: str = HOME,
        open_timeout_s: float | None = None,
    ) -> None:
        """`store` has the stores of all servers. `open_timeout_s`: how long to wait for an older instance of the query to end
        (None: the usual time)."""
        home, store = home_of(store), store_of(store, server)
        self._domain, self._settings, self._server, self._clock_ms = domain, settings, server, clock_ms
        self._table = domain.log(destination)
        self.members = Members(
            store,
            destination,
            table_id,
            subscription,
            consumer,
            replayable=settings.replayable,
            open_timeout_s=open_timeout_s,
            monotonic_s=monotonic_s,
            clock_ms=clock_ms,
            is_logged=lambda: self._table.snapshot.destination.message_logging_enabled,
        )
        self.planner = Planner(
            self._table,
            consumer,
            settings.selector,
            settings.fail_on_data_loss,
            self.members.label,
            clock_ms,
            subscription,
            settings.floors,
        )
        self._transfers = Transfers(domain, self._table, clock_ms)
        pledges = Pledges(domain, home, self._table, clock_ms)
        self.batches = BatchMaker(
            self._table, store, self.members, self.planner, self._transfers, pledges, settings, clock_ms, server, home
        )
        self.acknowledger = Acknowledger(self.members, self.planner, clock_ms)
        self.backlog = BacklogReader(store, self.members, settings.live, server)
        self.left = LeftReader(self._table, self.members, self.planner, self.backlog, clock_ms)

    def ask(self, act: Callable[[ServerPart], T]) -> T:
        """Through here a branch asks it. Closes what `act` has opened in line; for a prepared batch the next call does, which is
        `conclude` unless the batch was dropped."""
        try:
            return act(self)
        finally:
            self.members.end_call()

    # -- batches --------------------------------------------------------------------------------------------------
    def prepare(
        self, start: Batch, limits: Limits, targets: Mapping[int, int] | None, left_out: Collection[str] = ()
    ) -> PreparedBatch:
        """The first half of the next batch: everything but the claim, and nothing is written. `left_out`: claims whose messages
        were not delivered with their batch; they are released, flagged."""
        self.batches.previous.flagged = left_out
        self._check_bound(start)
        prepared = self.batches.prepare(start, limits, targets)
        self.members.planned()
        return prepared

    def protect(self, batch: Batch) -> ProtectedPart:
        """The part of `Subscriber.resume` that is this server's. Raises MemberUnavailableError while another session has opened a
        record."""
        self._check_bound(batch)
        return self.batches.previous.protect(batch)

    def has_news(self) -> bool:
        """Something changed since the last plan: a commit (which another thread may have read already), or the end of a delay;
        or a destination that refuses messages for good may have changed. Cheap enough for 200 calls a second."""
        return self._table.snapshot.version != self.batches.planned_version or self._table.has_news() or self.has_due()

    def has_due(self) -> bool:
        """The same without commits: what the last plan knew of is to be looked at again."""
        return self.has_more() or self._has_due()

    def has_more(self) -> bool:
        """The last plan did not get through all messages: the next one continues behind it."""
        return self.batches.passed_barrier or any(self.planner.has_more(member) for member in self.members.known)

    def _has_due(self) -> bool:
        now = self._clock_ms()
        is_over = any(until <= now for known in self.members.known.values() for until in known.state.delays)
        return is_over or self.planner.is_due(now, self.batches.paused) or self.batches.may_reconsider()

    def has_available(self, more_than: int = 0) -> bool:
        """More messages than so many are available, as far as record sets tell, and what the selector was seen to refuse."""
        self.members.refresh()
        snapshot, left = self._table.refresh(), more_than + 1
        for member, known in self.members.known.items():
            left -= self.planner.available(member, known.state, snapshot.last_sequence(member), left)
            if left <= 0:
                return True
        return False

    def is_turn_of_others(self) -> bool:
        """Enough other consumers have nothing to do for what is available."""
        newest = sum(self._table.refresh().last_sequence(member) for member in self.members.known)
        self.members.refresh()
        place = self.members.turn(newest)
        return place > 0 and not self.has_available(place)

    # -- messages -------------------------------------------------------------------------------------------------
    def set_aside(self, claim: str, member: int, reasons: Mapping[int, str]) -> bool:
        """See `Subscriber.set_aside`."""
        return set_aside(self._domain, self._table, self.members, self._transfers, claim, member, reasons)

    def outboxes(self) -> dict[int, Sequence[Acknowledgement]]:
        """Acknowledgements that wait for their table, of the members that this consumer keeps."""
        self.members.refresh()
        self.batches.end_pledges()
        waiting = {m: known.state.outbox for m, known in self.members.known.items() if known.state.outbox}
        return {m: rows for m, rows in waiting.items() if self.members.keeps(m)}

    def delivered(self, written: Mapping[int, int]) -> None:
        """The acknowledgements of each member up to this one are in their table."""
        known = self.members.known
        self.members.commit({m: known[m].state.delivered_to_table(p) for m, p in written.items() if m in known})

    def events(self) -> dict[int, Sequence[LoggedEvent]]:
        """Those that wait for the life-cycle table, of the members that this consumer keeps."""
        self.members.refresh()
        waiting = {m: known.state.life.waiting for m, known in self.members.known.items() if known.state.life.waiting}
        return {m: events for m, events in waiting.items() if self.members.keeps(m)}

    def logged(self, written: Mapping[int, int]) -> None:
        """The events of each member up to this one are in their table."""
        known = self.members.known
        self.members.commit({m: known[m].state.logged_to_table(p) for m, p in written.items() if m in known})

    # -- sharing --------------------------------------------------------------------------------------------------
    def attach(self) -> None:
        """See `Subscriber.attach`."""
        declared = self._table.snapshot.destination
        for member in sorted(self._settings.members or recorded_on(declared, self._server, self.members.subscription)):
            self.members.attach(member)

    def held_back(self) -> list[HeldBack]:
        """See `Subscriber.held_back`."""
        members = self.planner.holding_back
        return [one for member in members for one in self.planner.held_back(member, self.backlog.state(member))]

    def close(self) -> None:
        """End the session. Open claims stay: a replayable one is in doubt, the messages of any other become available."""
        self.members.close()

    def _check_bound(self, batch: Batch) -> None:
        """The offset is of the table that this consumer reads. One of version 1 names no table; it is bound when the query
        is known here (`jmsq upgrade` makes it known)."""
        known, table_id = self.members.open_progress(), self.members.table_id
        unbound = not batch.table and batch.claim and self._settings.replayable and not known.claimed
        if batch.table not in ("", table_id) or unbound:
            raise other_table(self._domain, self.members.destination, table_id, batch)
