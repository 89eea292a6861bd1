"""The redelivery limit (C8): messages that were delivered too often go to the error destination, or are discarded.

A consumer that holds a member enforces the limit before it plans its next batch. The messages move by a transfer, so a
consumer that dies in between neither loses nor doubles any. While the error destination cannot take them, they stay where
they are, and no consumer gets them.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterator

import pyarrow as pa

from spark_jms.claims.fetch import fetch
from spark_jms.claims.transfer import Movement, Transfers
from spark_jms.core.claim import Claim
from spark_jms.core.destination import Destination
from spark_jms.core.error_message import MessageFailure, described
from spark_jms.core.ranges import Ranges
from spark_jms.core.record_set import RecordSet
from spark_jms.errors import DataLossError, JmsqError
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.transfer import ROW_COLUMNS
from spark_jms.settings.destination import UNLIMITED

LIMITER = "redelivery limit"  # the consumer in the acknowledgement table
_MOST = 10_000  # messages of one transfer
_RETRY_MS = 5_000
log = logging.getLogger("spark_jms")


class RedeliveryLimit:
    """Of one consumer. Not thread-safe: the subscriber's lock guards it."""

    def __init__(
        self,
        table: DeltaLog,
        transfers: Transfers,
        session: str,
        label: Callable[[int], str],
        clock_ms: Callable[[], int],
        *,
        fail_on_data_loss: bool,
    ) -> None:
        self._table, self._transfers, self._session = table, transfers, session
        self._label, self._clock_ms, self._fail_on_data_loss = label, clock_ms, fail_on_data_loss
        self._not_before_ms: dict[int, int] = {}  # member -> when to try its error destination again

    def enforce(self, state: RecordSet, destination: Destination, member: int, epoch: int) -> RecordSet:
        """The state of a held member without messages beyond the limit, as far as possible. When it has a new intent, the
        caller writes the state and then finishes the transfer. Raises DataLossError for messages that are gone."""
        if destination.redelivery_limit == UNLIMITED or not state.deliveries:
            return state
        picks = state.beyond_limit(destination.redelivery_limit).take(_MOST)
        now = self._clock_ms()
        if not picks or now < self._not_before_ms.get(member, 0):
            return state
        name, target = self._label(member), destination.error_destination
        claim = f"redelivery-limit-{secrets.token_hex(8)}"
        reason = f"delivered more often than the redelivery limit {destination.redelivery_limit} allows"
        if target is None:
            log.warning(
                "%s: %d message(s) (%s) were %s and are discarded; an errorDestination would keep them",
                name,
                picks.count,
                picks,
                reason,
            )
            return state.discard(picks, LIMITER, claim, epoch, now)
        failure = MessageFailure(destination.name, name, reason, now)
        counts = {count - 1: ranges for count, ranges in state.redelivered(picks).items()}
        movement = Movement(
            claim, picks, self._rows(member, picks, counts, failure), target, None, LIMITER, f"{name}: {reason}"
        )
        claimed = state.claim(Claim(claim, LIMITER, self._session, picks, now, replayable=False))
        try:
            moving = self._transfers.begin(claimed, movement)
        except DataLossError:
            raise
        except (JmsqError, OSError) as error:
            self._not_before_ms[member] = now + _RETRY_MS
            log.warning(
                "%s: %d message(s) (%s) were %s; they are kept back, because they cannot move to %s yet: %s",
                name,
                picks.count,
                picks,
                reason,
                target,
                error,
            )
            return state
        log.warning("%s: %d message(s) (%s) were %s and move to %s", name, picks.count, picks, reason, target)
        return moving

    def _rows(
        self, member: int, picks: Ranges, counts: dict[int, Ranges], failure: MessageFailure
    ) -> Iterator[pa.RecordBatch]:
        """`counts`: how often the messages were delivered."""
        columns = (*ROW_COLUMNS, "sequence", "JMSXDeliveryCount")
        rows = fetch(
            self._table,
            failure.destination,
            member,
            picks,
            counts,
            columns=columns,
            fail_on_data_loss=self._fail_on_data_loss,
        )
        for batch in rows:
            sequences = batch.column("sequence").tolist()
            deliveries = batch.column("JMSXDeliveryCount").tolist()
            yield described(batch.select(list(ROW_COLUMNS)), sequences, deliveries, failure)
