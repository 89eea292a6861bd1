"""Messages that failed leave their member: to the error destination by a transfer, or for good where there is none.

A consumer that dies in between neither loses nor doubles any.

Features: C8, M4 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_jms.claims.fetch import fetch
from spark_jms.claims.transfer import Begun, Movement, Transfers
from spark_jms.core.claim import Claim
from spark_jms.core.destination import Destination
from spark_jms.core.error_message import MessageFailure, described
from spark_jms.core.ranges import EMPTY, Ranges, union
from spark_jms.core.record_set import RecordSet
from spark_jms.core.refusal import JUDGE, NO_RULE, MessageRefusal
from spark_jms.core.target_rules import SEQUENCE, Sieve
from spark_jms.errors import DataLossError, JmsqError
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.transfer import ROW_COLUMNS

_RETRY_MS = 5_000
log = logging.getLogger("spark_jms")


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
    """Of one consumer. Not thread-safe: the subscriber's lock guards it."""

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
        """The state of a held member without the messages in their claim. The caller writes it, and finishes the transfer when it has
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
