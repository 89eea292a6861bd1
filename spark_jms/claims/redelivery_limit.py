"""The redelivery limit (C8): messages that were delivered too often go to the error destination, or are discarded.

A consumer that holds a member enforces the limit before it plans its next batch. While the error destination cannot take
the messages, they stay where they are, and no consumer gets them.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable

from spark_jms.claims.error_destination import ErrorDestination, FailedMessages
from spark_jms.core.claim import Claim
from spark_jms.core.destination import Destination
from spark_jms.core.record_set import RecordSet
from spark_jms.errors import DataLossError, JmsqError
from spark_jms.settings.destination import UNLIMITED

LIMITER = "redelivery limit"  # the consumer in the acknowledgement table
_MOST = 10_000  # messages of one transfer
_RETRY_MS = 5_000
log = logging.getLogger("spark_jms")


class RedeliveryLimit:
    """Of one consumer. Not thread-safe: the subscriber's lock guards it."""

    def __init__(
        self,
        error_destination: ErrorDestination,
        session: str,
        label: Callable[[int], str],
        clock_ms: Callable[[], int],
    ) -> None:
        self._error_destination, self._session = error_destination, session
        self._label, self._clock_ms = label, clock_ms
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
        claim = f"redelivery-limit-{secrets.token_hex(8)}"
        reason = f"delivered more often than the redelivery limit {destination.redelivery_limit} allows"
        counts = {count - 1: ranges for count, ranges in state.redelivered(picks).items()}
        failed = FailedMessages(member, claim, picks, counts, LIMITER, reason)
        claimed = state.claim(Claim(claim, LIMITER, self._session, picks, now, replayable=False))
        try:
            return self._error_destination.take(claimed, failed, destination, epoch)
        except DataLossError:
            raise
        except (JmsqError, OSError) as error:
            self._not_before_ms[member] = now + _RETRY_MS
            log.warning(
                "%s: %d message(s) (%s) were %s; they are kept back, because they cannot move to %s yet: %s",
                self._label(member),
                picks.count,
                picks,
                reason,
                destination.error_destination,
                error,
            )
            return state
