"""Messages that failed leave their member (C8, M4): to the error destination by a transfer, or for good where there is none.

A consumer that dies in between neither loses nor doubles any.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from spark_jms.claims.fetch import fetch
from spark_jms.claims.transfer import Movement, Transfers
from spark_jms.core.claim import Claim
from spark_jms.core.destination import Destination
from spark_jms.core.error_message import MessageFailure, described
from spark_jms.core.ranges import Ranges, union
from spark_jms.core.record_set import RecordSet
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
        """The state of a held member without the messages. When it has a new intent, the caller writes the state and then
        finishes the transfer. Raises DataLossError for messages that are gone, and JmsqError or OSError when the error
        destination cannot take them: then nothing has changed."""
        name, target, now = self._label(failed.member), destination.error_destination, self._clock_ms()
        what = f"{failed.picks.count} message(s) ({failed.picks}) were {failed.reason}"
        if target is None:
            log.warning("%s: %s and are discarded; an errorDestination would keep them", name, what)
            available = state.release(failed.claim, failed.picks, delivered=False)
            return available.discard(failed.picks, failed.consumer, failed.claim, epoch, now)
        rows = self._rows(failed, MessageFailure(destination.name, name, failed.reason, now))
        movement = Movement(failed.claim, failed.picks, rows, target, None, failed.consumer, f"{name}: {failed.reason}")
        moving = self._transfers.begin(state, movement)
        log.warning("%s: %s and move to %s", name, what, target)
        return moving

    def _rows(self, failed: FailedMessages, failure: MessageFailure) -> Iterator[pa.RecordBatch]:
        columns = (*ROW_COLUMNS, "sequence", "JMSXDeliveryCount")
        rows = fetch(
            self._table,
            failure.destination,
            failed.member,
            failed.picks,
            failed.counts,
            columns=columns,
            fail_on_data_loss=self._fail_on_data_loss,
        )
        for batch in rows:
            sequences = batch.column("sequence").tolist()
            deliveries = batch.column("JMSXDeliveryCount").tolist()
            yield described(batch.select(list(ROW_COLUMNS)), sequences, deliveries, failure)


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
