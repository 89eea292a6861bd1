"""What a consumer has on one server: a session, the records that it holds there, and what it knows of their messages.

A Subscriber (subscriber.py) has one for each server of its destination, and a single one for a destination without servers. It asks
the leaves of a part directly:

    records/members.py           the records it holds: opened, changed in one write, handed over at boundaries
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

from spark_jms.claims.batches.acknowledgement import Acknowledger, other_table
from spark_jms.claims.batches.batch import BatchMaker, ConsumerSettings, PreparedBatch
from spark_jms.claims.batches.planner import Planner
from spark_jms.claims.batches.units_of_order import HeldBack
from spark_jms.claims.consumers.left_messages import LeftReader
from spark_jms.claims.failures.error_destination import set_aside
from spark_jms.claims.failures.poison import ProtectedPart
from spark_jms.claims.records.members import BacklogReader, Members
from spark_jms.claims.records.shared import members_kind
from spark_jms.claims.servers.stores import home_of, store_of
from spark_jms.claims.transactions.transfer import Pledges, Transfers
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.destinations.subscriptions import recorded_on
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.core.records.life_cycle import Acknowledgement, LoggedEvent
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms
from spark_jms.store import Store


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
        self.members: Members = members_kind()(
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

    # -- batches --------------------------------------------------------------------------------------------------
    def prepare(
        self, start: Batch, limits: Limits, targets: Mapping[int, int] | None, left_out: Collection[str] = ()
    ) -> PreparedBatch:
        """The first half of the next batch: everything but the claim, and nothing is written. `left_out`: claims whose messages
        were not delivered with their batch; they are released, flagged."""
        self.batches.previous.flagged = left_out
        self._check_bound(start)
        return self.batches.prepare(start, limits, targets)

    def protect(self, batch: Batch) -> ProtectedPart:
        """The part of `Subscriber.resume` that is this server's. Raises MemberUnavailableError while another consumer holds a
        record."""
        self._check_bound(batch)
        return self.batches.previous.protect(batch)

    def has_news(self) -> bool:
        """Something changed since the last plan: a commit (which another thread may have read already), a record that was
        handed over, or the end of a redelivery delay; or a destination that refuses messages for good may have changed. Cheap enough
        for 200 calls a second."""
        return (
            self._table.snapshot.version != self.batches.planned_version
            or self._table.has_news()
            or self.has_more()
            or self.members.granted()
            or self._has_due()
        )

    def has_more(self) -> bool:
        """The last plan did not get through all messages: the next one continues behind it."""
        return self.batches.passed_barrier or any(self.planner.has_more(member) for member in self.members.held)

    def _has_due(self) -> bool:
        now = self._clock_ms()
        is_over = any(until <= now for held in self.members.held.values() for until in held.state.delays)
        return is_over or self.batches.may_reconsider()

    # -- messages -------------------------------------------------------------------------------------------------
    def set_aside(self, claim: str, member: int, reasons: Mapping[int, str]) -> bool:
        """See `Subscriber.set_aside`."""
        return set_aside(self._domain, self._table, self.members, self._transfers, claim, member, reasons)

    def outboxes(self) -> dict[int, Sequence[Acknowledgement]]:
        """Acknowledgements of the held members that wait for their table."""
        self.members.refresh()
        waiting = {m: held.state.outbox for m, held in self.members.held.items() if held.state.outbox}
        return {m: rows for m, rows in waiting.items() if self.members.keeps(m)}

    def delivered(self, written: Mapping[int, int]) -> None:
        """The acknowledgements of each member up to this one are in their table."""
        held = self.members.held
        self.members.commit({m: held[m].state.delivered_to_table(p) for m, p in written.items() if m in held})

    def events(self) -> dict[int, Sequence[LoggedEvent]]:
        """Of the held members, those that wait for the life-cycle table."""
        self.members.refresh()
        waiting = {m: held.state.life.waiting for m, held in self.members.held.items() if held.state.life.waiting}
        return {m: events for m, events in waiting.items() if self.members.keeps(m)}

    def logged(self, written: Mapping[int, int]) -> None:
        """The events of each member up to this one are in their table."""
        held = self.members.held
        self.members.commit({m: held[m].state.logged_to_table(p) for m, p in written.items() if m in held})

    # -- sharing --------------------------------------------------------------------------------------------------
    def take_up(self) -> None:
        """See `Subscriber.take_up`."""
        declared = self._table.snapshot.destination
        for member in sorted(self._settings.members or recorded_on(declared, self._server, self.members.subscription)):
            self.members.take_up(member)

    def hand_over(self) -> int:
        """See `Subscriber.hand_over`."""
        self.batches.end_pledges()
        snapshot = self._table.snapshot
        return self.members.hand_over({m: snapshot.last_sequence(m) for m in self.members.held})

    def held_back(self) -> list[HeldBack]:
        """See `Subscriber.held_back`."""
        members = self.planner.holding_back
        return [one for member in members for one in self.planner.held_back(member, self.backlog.state(member))]

    def close(self) -> None:
        """Give up all records. Open claims stay: a replayable one is in doubt, the messages of any other become available."""
        self.members.close()

    def _check_bound(self, batch: Batch) -> None:
        """The offset is of the table that this consumer reads. One of version 1 names no table; it is bound when the query
        is known here (`jmsq upgrade` makes it known)."""
        known, table_id = self.members.open_progress(), self.members.table_id
        unbound = not batch.table and batch.claim and self._settings.replayable and not known.claimed
        if batch.table not in ("", table_id) or unbound:
            raise other_table(self._domain, self.members.destination, table_id, batch)
