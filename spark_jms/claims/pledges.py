"""Pledges of a record set, ended by its holder when their transactions are decided. core/transaction.py has the rules.

Features: T16 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from spark_jms.core.record_set import RecordSet
from spark_jms.core.redelivery import delay_end_ms
from spark_jms.core.transaction import (
    COORDINATOR_KEY,
    CoordinatorState,
    PledgeOutcome,
    TransactionState,
    coordinator_from_bytes,
    coordinator_to_bytes,
    open_of,
    outcome_of_pledge,
)
from spark_jms.core.transfer import Ticket
from spark_jms.errors import JmsqError
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain
from spark_jms.log.storage import now_ms
from spark_jms.log.transfer import outcome_at
from spark_jms.store import FencedError, Put, RecordHeldError, Store, StoreError

log = logging.getLogger("spark_jms")
_PAUSE_MS = 200  # between two looks at a coordinator that has not decided


class Pledges:
    """Not thread-safe: the holder of the record calls it. It remembers only when to look again."""

    def __init__(self, domain: Domain, home: Store, origin: DeltaLog, clock_ms: Callable[[], int] = now_ms) -> None:
        """`home`: the domain's own store, with the coordinators. `origin`: of the destination with the record sets."""
        self._domain, self._home, self._origin, self._clock_ms = domain, home, origin, clock_ms
        self._looked_ms: dict[Ticket, int] = {}

    def ended(self, state: RecordSet, epoch: int) -> RecordSet:
        """With the pledges acknowledged whose transactions are complete, and those returned whose transactions are rolled back. A
        transaction whose owner died before its decision is rolled back. Raises nothing of the store: those pledges wait. The caller
        writes the new state."""
        for ticket, coordinator in {pledge.ticket: pledge.coordinator for pledge in state.pledges.values()}.items():
            now = self._clock_ms()
            if now - self._looked_ms.get(ticket, -_PAUSE_MS) < _PAUSE_MS:
                continue
            self._looked_ms[ticket] = now
            try:
                outcome = self._outcome(ticket, coordinator)
            except (StoreError, JmsqError, OSError) as error:
                log.warning("the coordinator of transaction %s cannot be asked, and will be again: %s", ticket, error)
                continue
            if outcome is PledgeOutcome.WAIT:
                continue
            del self._looked_ms[ticket]
            if outcome is PledgeOutcome.ACKNOWLEDGE:
                state = state.fulfilled(ticket, epoch, now)
            else:
                delay_ms = self._origin.snapshot.destination.redelivery_delay_ms
                state = state.withdrawn(ticket, now, delay_end_ms(now, delay_ms))
        return state

    def _outcome(self, ticket: Ticket, record: str) -> PledgeOutcome:
        outcome = self._by(ticket, coordinator_from_bytes(self._home.peek(record).get(COORDINATOR_KEY), record))
        info = self._home.info(record)
        if outcome is not PledgeOutcome.WAIT or (info is not None and info.holder is not None):
            return outcome
        with suppress(FencedError), self._home.connect("transactions") as session:
            try:
                handle = session.open(record)
            except RecordHeldError:
                session.cancel(record)
                return PledgeOutcome.WAIT
            with handle:
                state = coordinator_from_bytes(handle.read(COORDINATOR_KEY), record)
                if state is not None and state.open is not None and state.open.state is TransactionState.PREPARING:
                    state = state.rolling_back()
                    handle.commit([Put(COORDINATOR_KEY, coordinator_to_bytes(state))])
                return self._by(ticket, state)
        return PledgeOutcome.WAIT  # this process slept, and another one may have the coordinator

    def _by(self, ticket: Ticket, coordinator: CoordinatorState | None) -> PledgeOutcome:
        found = open_of(ticket, coordinator)
        targets = found.targets if found is not None else ()
        return outcome_of_pledge(found, (outcome_at(self._domain, target, ticket) for target in targets))
