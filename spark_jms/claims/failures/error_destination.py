"""Messages that failed leave their member: to the error destination by a transfer, or for good where there is none.

    RedeliveryLimit     those that were delivered too often
    UnclaimedMessages   any that no consumer has claimed
    set_aside           those that cannot be decoded: to a queue of the domain, so that their neighbours are delivered
    Reconsideration     those that were refused for good, once that may have changed

A consumer that dies in between neither loses nor doubles any. What a target refuses for good waits for another declaration, and
the others move without it: core/records/refusal.py has the rule.

Features: C8, C20, M4, T12 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.claims.messages.fetch import fetch
from spark_jms.claims.records.members import Members
from spark_jms.claims.transactions.transfer import Begun, Movement, Transfers
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.messages.properties import TYPES_PROPERTY
from spark_jms.core.messages.ranges import EMPTY, Ranges, union
from spark_jms.core.messages.types import is_valid, map_column, map_rows, readable_rows
from spark_jms.core.records.endings import ASIDE, EXPIRER, JUDGE, LIMITER
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import (
    SET_ASIDE_FROM,
    SET_ASIDE_REASON,
    SET_ASIDE_TYPES,
    Claim,
    MessageFailure,
    described,
)
from spark_jms.core.records.refusal import NO_RULE, SEQUENCE, MessageRefusal, Sieve, ends
from spark_jms.errors import DataLossError, JmsqError
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.sending.transfer import ROW_COLUMNS
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.storage import now_ms
from spark_jms.settings.destination import UNLIMITED

log = logging.getLogger("spark_jms")
_RETRY_MS = 5_000
LOOKS_EVERY_MS = 1_000  # at the targets' declarations
_MOST = 10_000  # messages of one transfer
SET_ASIDE = "jmsq-set-aside"
FROM, REASON, TYPES = SET_ASIDE_FROM, SET_ASIDE_REASON, SET_ASIDE_TYPES
_MAX_MESSAGE_BYTES = 2**30  # the largest limit a destination can have


@dataclass(frozen=True)
class FailedMessages:
    """Messages of one claim. `consumer` stands in their acknowledgement; `counts` says how often they were delivered."""

    member: int
    claim: str
    picks: Ranges
    counts: dict[int, Ranges]
    consumer: str
    reason: str
    delivered: bool = False  # in this claim


class ErrorDestination:
    """Takes failed messages out of their claim, to the error destination or for good. Of one consumer. Not thread-safe: the
    subscriber's lock guards it."""

    def __init__(
        self,
        table: DeltaLog,
        transfers: Transfers,
        label: Callable[[int], str],
        clock_ms: Callable[[], int],
        *,
        fail_on_data_loss: bool,
    ) -> None:
        self._table, self._transfers, self._label = table, transfers, label
        self._clock_ms, self._fail_on_data_loss = clock_ms, fail_on_data_loss

    def take(self, state: RecordSet, failed: FailedMessages, destination: Destination, epoch: int) -> RecordSet:
        """The state of a member without the messages in their claim. The caller writes it, and finishes the transfer when it has
        a new intent. What the error destination refuses for good is available again, to administrators alone, and so is what its quota
        has no room for at once. Raises DataLossError for messages that are gone, and JmsqError or OSError when the error destination
        cannot take any now: then nothing has changed."""
        name, target, now = self._label(failed.member), destination.error_destination, self._clock_ms()
        what = f"{failed.picks.count} message(s) ({failed.picks}) were {failed.reason}"
        if target is None:
            log.warning("%s: %s and are discarded; an errorDestination would keep them", name, what)
            available = state.release(failed.claim, failed.picks, delivered=False)
            return available.discard(failed.picks, failed.consumer, failed.claim, epoch, now)
        failure = MessageFailure(destination.name, name, failed.reason, now)
        whole_units = destination.handles_units_of_work and failed.consumer != JUDGE
        declared = self._transfers.declared(target)  # before it is asked: a change meanwhile is found later
        begun = self._transfers.begin_fitting(
            state, failed.picks, _ToErrors(self, failed, failure, target, whole_units)
        )
        refusal = MessageRefusal(EMPTY, failed.consumer, failed.reason, target, declared, NO_RULE, now)
        after = with_refusals(begun, failed.claim, refusal, name, delivered=failed.delivered)
        moving = after.moving & failed.picks
        if moving:
            log.warning(
                "%s: %d message(s) (%s) were %s and move to %s", name, moving.count, moving, failed.reason, target
            )
        return after.release(failed.claim, failed.picks - moving, delivered=failed.delivered)

    def rows(self, failed: FailedMessages, failure: MessageFailure) -> Iterator[pa.RecordBatch]:
        """As the error destination keeps them, with their `sequence`."""
        columns = (*ROW_COLUMNS, SEQUENCE, "JMSXDeliveryCount")
        found = fetch(
            self._table,
            failure.destination,
            failed.member,
            failed.picks,
            failed.counts,
            columns=columns,
            fail_on_data_loss=self._fail_on_data_loss,
        )
        for batch in found:
            sequences = batch.column(SEQUENCE).tolist()
            deliveries = batch.column("JMSXDeliveryCount").tolist()
            rows = described(batch.select(list(ROW_COLUMNS)), sequences, deliveries, failure)
            yield rows.append_column(SEQUENCE, batch.column(SEQUENCE))


@dataclass(frozen=True)
class _ToErrors:
    """See `Fitting`."""

    error_destination: ErrorDestination
    failed: FailedMessages
    failure: MessageFailure
    target: str
    whole_units: bool

    def movement(self, picks: Ranges, sieve: Sieve) -> Movement:
        failed, why = replace(self.failed, picks=picks), f"{self.failure.label}: {self.failure.reason}"
        rows = self.error_destination.rows(failed, self.failure)
        return Movement(failed.claim, picks, rows, self.target, None, failed.consumer, why, sieve=sieve)


def with_refusals(begun: Begun, claim: str, refusal: MessageRefusal, label: str, *, delivered: bool) -> RecordSet:
    """The state of a begun transfer, without what was refused in its claim. `refusal` is of each, but for its messages and rule;
    `label` names the record set."""
    state = begun.state
    for broken, picks in begun.refused.items():
        state = state.refuse(claim, replace(refusal, picks=picks, broken=broken), delivered=delivered)
        log.warning(
            "%s: %d message(s) (%s) cannot move to %s, which refuses them for good (%s): %s. They stay, no consumer gets them, and "
            "they are tried again when %s is declared otherwise; `jmsq move` takes them elsewhere, and `jmsq purge` drops them",
            label,
            picks.count,
            picks,
            refusal.target,
            refusal.failure,
            broken.text,
            refusal.target,
        )
    return state


class UnclaimedMessages:
    """Moves messages that no consumer has claimed. While the error destination cannot take those of a member, they stay where they
    are, and it is tried again every few seconds. Of one consumer. Not thread-safe: the subscriber's lock guards it."""

    def __init__(
        self,
        error_destination: ErrorDestination,
        judge: str,
        session: str,
        label: Callable[[int], str],
        clock_ms: Callable[[], int],
    ) -> None:
        """`judge` stands in the acknowledgements as their consumer."""
        self._error_destination, self._judge, self._session = error_destination, judge, session
        self._label, self._clock_ms = label, clock_ms
        self._not_before_ms: dict[int, int] = {}  # member -> when to try its error destination again

    def may_move(self, member: int) -> bool:
        return self._clock_ms() >= self._not_before_ms.get(member, 0)

    def move(
        self,
        state: RecordSet,
        destination: Destination,
        member: int,
        picks: Ranges,
        epoch: int,
        reason: str,
        kept_back: str,
    ) -> RecordSet:
        """As `ErrorDestination.take`, or the state as it was, with a warning that begins with `kept_back`. Raises
        DataLossError."""
        now, again = self._clock_ms(), state.redelivered(picks)
        first = picks - union(again.values())
        counts = {count - 1: ranges for count, ranges in again.items()} | ({0: first} if first else {})
        claim = f"{self._judge.replace(' ', '-')}-{secrets.token_hex(8)}"
        failed = FailedMessages(member, claim, picks, counts, self._judge, reason)
        claimed = state.claim(Claim(claim, self._judge, self._session, picks, now, replayable=False))
        try:
            return self._error_destination.take(claimed, failed, destination, epoch)
        except DataLossError:
            raise
        except (JmsqError, OSError) as error:
            self._not_before_ms[member] = now + _RETRY_MS
            log.warning(
                "%s: %d message(s) (%s) %s cannot move to %s yet: %s",
                self._label(member),
                picks.count,
                picks,
                kept_back,
                destination.error_destination,
                error,
            )
            return state


class RedeliveryLimit:
    """Moves or discards messages that were delivered too often. A consumer enforces the limit before it plans
    its next batch. While the error destination cannot take the messages, they stay where they are, and no consumer gets them. Of
    one consumer. Not thread-safe: the subscriber's lock guards it."""

    def __init__(
        self,
        error_destination: ErrorDestination,
        session: str,
        label: Callable[[int], str],
        clock_ms: Callable[[], int],
    ) -> None:
        self._unclaimed = UnclaimedMessages(error_destination, LIMITER, session, label, clock_ms)

    def enforce(self, state: RecordSet, destination: Destination, member: int, epoch: int) -> RecordSet:
        """The state of a member without messages beyond the limit, as far as possible. The caller writes it, and finishes the
        transfer when it has a new intent. Raises DataLossError for messages that are gone."""
        if destination.redelivery_limit == UNLIMITED or not state.deliveries.shown:
            return state
        picks = (state.beyond_limit(destination.redelivery_limit) - state.refused).take(_MOST)
        if not picks or not self._unclaimed.may_move(member):
            return state
        reason = f"delivered more often than the redelivery limit {destination.redelivery_limit} allows"
        kept_back = f"were {reason}; they are kept back, because they"
        return self._unclaimed.move(state, destination, member, picks, epoch, reason, kept_back)


class Reconsideration:
    """Tries messages that were refused for good again, when that may help. A consumer looks, before it plans and
    while it is idle, at what the targets declare; the scan for expired messages does so for what has expired. A target that cannot
    be reached now has not changed its mind: its messages stay refused. Not thread-safe: the lock of its consumer or scan guards it."""

    def __init__(
        self,
        transfers: Transfers,
        errors: ErrorDestination,
        session: str,
        label: Callable[[int], str],
        clock_ms: Callable[[], int],
    ) -> None:
        self._transfers, self._errors, self._session = transfers, errors, session
        self._label, self._clock_ms = label, clock_ms
        self._movers: dict[str, UnclaimedMessages] = {}
        self._looked_ms: dict[int, int] = {}  # member -> when

    def is_due(self, states: Mapping[int, RecordSet]) -> bool:
        """A look at the targets may find that some have changed."""
        return any(state.refusals and self._is_due(member) for member, state in states.items())

    def look(self, state: RecordSet, destination: Destination, member: int, epoch: int) -> RecordSet:
        """The state of a member without what is refused no longer: it moves, or is as any other message. The caller writes the
        state, and finishes the transfers that are new in it. Raises DataLossError for messages that are gone."""
        if not state.refusals:
            return state
        looks = self._is_due(member)
        for found in self._reconsidered(state, destination, looks=looks):
            state = self._again(state.reconsider(found.ended), found, destination, member, epoch)
        if looks:
            self._looked_ms[member] = self._clock_ms()
        return state

    def expirable(self, state: RecordSet, destination: Destination) -> RecordSet:
        """As the scan for expired messages takes it: without what has expired and is refused no longer."""
        for found in self._reconsidered(state, destination, looks=True) if state.refusals else ():
            if found.refusal.consumer == EXPIRER:
                state = state.reconsider(found.ended | found.again)
        return state

    # -- inside ---------------------------------------------------------------------------------------------------
    def _is_due(self, member: int) -> bool:
        return self._clock_ms() - self._looked_ms.get(member, -LOOKS_EVERY_MS) >= LOOKS_EVERY_MS

    def _reconsidered(self, state: RecordSet, destination: Destination, *, looks: bool) -> list[_Reconsidered]:
        free, beyond = state.refused, state.beyond_limit(destination.redelivery_limit)
        found = []
        for refusal in state.refusals:
            ended = ends(refusal, destination, beyond) & free
            changed = looks and self._has_changed(refusal, destination)
            again = (refusal.picks & free) - ended
            if ended or (changed and again):
                found.append(_Reconsidered(refusal, ended, again.take(_MOST if changed else 0)))
        return found

    def _has_changed(self, refusal: MessageRefusal, destination: Destination) -> bool:
        if refusal.consumer != ASIDE and refusal.target != destination.error_destination:
            return True
        try:
            return self._transfers.declared(refusal.target) != refusal.declared
        except (JmsqError, OSError) as error:
            log.debug("whether %s still refuses messages of %s is unknown: %s", refusal.target, destination.name, error)
            return False

    def _again(
        self, state: RecordSet, found: _Reconsidered, destination: Destination, member: int, epoch: int
    ) -> RecordSet:
        """What cannot be decoded is delivered, and set aside then; the rest moves, or stays refused while it cannot."""
        refusal, again = found.refusal, state.reconsider(found.again)
        if not found.again or refusal.consumer == ASIDE:
            return again
        mover = self._movers.get(refusal.consumer)
        if mover is None:
            mover = UnclaimedMessages(self._errors, refusal.consumer, self._session, self._label, self._clock_ms)
            self._movers[refusal.consumer] = mover
        if not mover.may_move(member):
            return state
        kept_back = f"were {refusal.failure}; they stay refused, because they"
        moved = mover.move(again, destination, member, found.again, epoch, refusal.failure, kept_back)
        return state if moved is again else moved


@dataclass(frozen=True)
class _Reconsidered:
    """`ended`: the origin does not want these to move any more; `again`: their target, or what it declares, has changed."""

    refusal: MessageRefusal
    ended: Ranges
    again: Ranges


# -- messages that cannot be decoded -----------------------------------------------------------------------------------


def set_aside(
    domain: Domain,
    table: DeltaLog,
    members: Members,
    transfers: Transfers,
    claim: str,
    member: int,
    reasons: Mapping[int, str],
) -> bool:
    """Move claimed messages to the queue `jmsq-set-aside` of the domain, by a transfer: one, or the parts of a unit of work, all or
    none, because a part of a unit that stayed would never be complete. `reasons` tells by sequence why each cannot be delivered.
    What the queue refuses for good stays, and no client gets it. False when another session has opened the record set: try
    again. Messages that this consumer has not claimed any more are left to the others.

    The queue is created when it is first needed, and `jmsq move jmsq-set-aside orders` brings a message back. In the queue its
    properties are text, without their types; text that is not UTF-8 is readable (core/messages/types.py), and as `text` it becomes
    the body, byte by byte. Three properties say where the message came from and why:

        JMS_JMSQ_SetAsideFrom    destination/subscription/member#sequence
        JMS_JMSQ_SetAsideReason  the error
        JMS_JMSQ_SetAsideTypes   the types that its sender had declared"""
    members.refresh()  # of a session that has ended they may be gone
    if member not in members.known:
        return False
    state = members.attached_state(member)
    own = state.claims.get(claim)
    picks = EMPTY if own is None else own.picks & Ranges.from_numbers(sorted(reasons))
    if not picks:
        return True
    if SET_ASIDE not in domain.destinations():
        queue = Destination(SET_ASIDE, "queue", 1, max_message_bytes=_MAX_MESSAGE_BYTES)
        apply_destinations(domain, [queue], lambda destination, member: False)
    epoch, label = members.known[member].epoch, members.label(member)
    while picks:
        state = members.attached_state(member)
        declared = transfers.declared(SET_ASIDE)
        begun = transfers.begin_fitting(state, picks, _Aside(table, members, claim, member, reasons))
        refusal = MessageRefusal(EMPTY, ASIDE, reasons[picks.first], SET_ASIDE, declared, NO_RULE, now_ms())
        after = with_refusals(begun, claim, refusal, label, delivered=False)
        members.commit({member: after})
        members.commit({member: transfers.finish(after, epoch).state})
        picks = picks - after.moving - after.refused
    return True


@dataclass(frozen=True)
class _Aside:
    """See `Fitting`."""

    table: DeltaLog
    members: Members
    claim: str
    member: int
    reasons: Mapping[int, str]
    target: str = SET_ASIDE
    whole_units: bool = True

    def movement(self, picks: Ranges, sieve: Sieve) -> Movement:
        columns, members = (*ROW_COLUMNS, SEQUENCE), self.members
        found = fetch(
            self.table, members.destination, self.member, picks, {}, columns=columns, table_id=members.table_id
        )
        rows = _described(found, members.label(self.member), self.reasons)
        why = self.reasons[min(self.reasons)]
        return Movement(self.claim, picks, rows, SET_ASIDE, None, ASIDE, f"set aside: {why}", sieve=sieve)


def _described(batches: Iterator[pa.RecordBatch], label: str, reasons: Mapping[int, str]) -> Iterator[pa.RecordBatch]:
    at = ROW_COLUMNS.index("properties")
    for batch in batches:
        rows = readable_rows(_with_bytes(batch.select(list(ROW_COLUMNS))))
        described = [
            _description(row or {}, f"{label}#{sequence}", reasons[sequence])
            for row, sequence in zip(map_rows(rows.column(at)), batch.column(SEQUENCE).to_pylist(), strict=True)
        ]
        yield rows.set_column(at, "properties", map_column(described)).append_column(SEQUENCE, batch.column(SEQUENCE))


def _with_bytes(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The bytes of a text that is not UTF-8 are the body."""
    texts = rows.column("text")
    if is_valid(texts):
        return rows
    good = pa.array([is_valid(texts[row : row + 1]) for row in range(len(texts))])
    bodies = pc.if_else(good, rows.column("body"), texts.cast(pa.binary()))
    for name, column in (("text", pc.if_else(good, texts, pa.scalar(None, texts.type))), ("body", bodies)):
        rows = rows.set_column(ROW_COLUMNS.index(name), name, column)
    return rows


def _description(properties: Mapping[str, str], origin: str, why: str) -> dict[str, str]:
    kept = {name: text for name, text in properties.items() if name != TYPES_PROPERTY}
    return {**kept, FROM: origin, REASON: why, TYPES: properties.get(TYPES_PROPERTY, "")}
