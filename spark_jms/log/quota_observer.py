"""What destinations with a quota hold, as a sender looks at their logs for the quota's ledger. core/quota.py has the theory.

A look costs one question for the log's next version and one for the published usage. What follows from both is kept until one of
them changes.

A destination of the quota that cannot be read (its log is damaged, its folder cannot be opened) keeps in the ledger what it had,
and the others continue. Only its own senders get the error.

Features: T1 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from functools import partial

from spark_jms.core.quota import Observation, OpenRequest, QuotaState
from spark_jms.core.usage import MessageUsage, PublishedUsage
from spark_jms.errors import InvalidDestinationError, JmsqError
from spark_jms.log.admission import transaction_id
from spark_jms.log.commit import Decision, commit
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.quota_ledger import QuotaLedger
from spark_jms.log.send import TransactionId
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.usage import UsageFiles

log = logging.getLogger("spark_jms")


@dataclass(frozen=True)
class QuotaLook:
    """The state with what the destinations hold. `unreadable`: why a destination keeps what it had, by name."""

    state: QuotaState
    unreadable: dict[str, str]


@dataclass(frozen=True, eq=False)
class _Known:
    """The usage of a destination for one ledger, by what it follows from."""

    snapshot: Snapshot
    published: PublishedUsage | None
    usage: MessageUsage


class QuotaObserver:
    """Thread-safe. `log_of` gives a destination's log by name."""

    def __init__(self, usages: UsageFiles, log_of: Callable[[str], DeltaLog]) -> None:
        self._usages, self._log_of = usages, log_of
        self._known: dict[tuple[str, str], _Known] = {}  # by ledger and destination
        self._told: dict[str, str] = {}  # unreadable destinations, as logged

    def look(self, ledger: QuotaLedger, state: QuotaState, destinations: Iterable[str], own: str = "") -> QuotaLook:
        """Raises JmsqError or OSError when the destination `own` cannot be read, InvalidDestinationError when there is none."""
        found: dict[str, Observation | None] = {}
        unreadable: dict[str, str] = {}
        for name in destinations:
            try:
                found[name] = self._observation(ledger, name, state)
                self._told.pop(name, None)
            except (JmsqError, OSError) as error:
                if name == own:
                    raise
                if isinstance(error, InvalidDestinationError):
                    found[name] = None
                    continue
                unreadable[name] = str(error)
                self._tell(ledger, name, str(error))
        return QuotaLook(state.observe(found), unreadable)

    def look_at_all(
        self, ledger: QuotaLedger, state: QuotaState, old: Container[OpenRequest], now_ms: int, own: str
    ) -> QuotaLook:
        """The same of all its destinations, after the old ones of its reservations have ended."""
        self._end(ledger, [one for one in state.reservations if one in old], now_ms)
        return self.look(ledger, state, state.usages, own)

    def _end(self, ledger: QuotaLedger, reservations: Iterable[OpenRequest], now_ms: int) -> None:
        """So that their senders cannot commit. One whose destination cannot be read stays."""
        for one in reservations:
            reservation = TransactionId(transaction_id(ledger.name, one.slot), one.number)
            try:
                commit(self._log_of(one.request.destination), partial(decide_end, reservation, now_ms))
            except InvalidDestinationError:
                continue  # it was dropped or renamed: a look removes its reservations
            except (JmsqError, OSError) as error:
                self._tell(ledger, one.request.destination, str(error))

    def _observation(self, ledger: QuotaLedger, destination: str, state: QuotaState) -> Observation | None:
        """None: it has another quota."""
        snapshot, published = self._read(self._log_of(destination))
        if ledger.quota not in snapshot.destination.quotas:
            return None
        numbers = {slot: _number(snapshot, ledger, slot) for slot in state.slots(destination)}
        highest = 0 if destination in state.usages else _highest(snapshot, ledger)
        return Observation(self._usage(ledger, destination, snapshot, published), numbers, highest)

    def _read(self, table: DeltaLog) -> tuple[Snapshot, PublishedUsage | None]:
        """The publication before the log: a later one might count messages that the snapshot does not have, nor the end of their
        reservations, and they would count twice."""
        while True:
            table_id = table.snapshot.table_id
            published = self._usages.read(table_id)
            snapshot = table.refresh()
            if snapshot.table_id == table_id:
                return snapshot, published

    def _usage(
        self, ledger: QuotaLedger, destination: str, snapshot: Snapshot, published: PublishedUsage | None
    ) -> MessageUsage:
        key = ledger.name, destination
        known = self._known.get(key)
        if known is None or known.snapshot is not snapshot or known.published is not published:
            declared = snapshot.destination
            members = {member for member in declared.member_ids if declared.quota_of(member) == ledger.quota}
            known = _Known(snapshot, published, self._usages.by(published, snapshot, members))
            self._known[key] = known
        return known.usage

    def _tell(self, ledger: QuotaLedger, destination: str, why: str) -> None:
        """Once for each reason."""
        if self._told.get(destination) != why:
            self._told[destination] = why
            log.warning(
                "quota %s: %s cannot be read, so it counts with what it had, and its reservations stay: %s",
                ledger.name,
                destination,
                why,
            )


def decide_end(reservation: TransactionId, now: int, snapshot: Snapshot) -> Decision | None:
    """Pure. End an old reservation, whose sender then cannot commit. None: the log has ended it."""
    return None if reservation.is_in(snapshot) else Decision("QUOTA", [reservation.action(now)])


def _number(snapshot: Snapshot, ledger: QuotaLedger, slot: int) -> int:
    return snapshot.transactions.get(transaction_id(ledger.name, slot), 0)


def _highest(snapshot: Snapshot, ledger: QuotaLedger) -> int:
    """Slots are given in order, from 0 on."""
    highest = slot = 0
    while (number := _number(snapshot, ledger, slot)) > 0:
        highest, slot = max(highest, number), slot + 1
    return highest
