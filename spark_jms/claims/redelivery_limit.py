"""The redelivery limit: messages that were delivered too often go to the error destination, or are discarded.

A consumer that holds a member enforces the limit before it plans its next batch. While the error destination cannot take
the messages, they stay where they are, and no consumer gets them. What it refuses for good waits for another declaration
(reconsideration.py), and the others move without it.

Features: C8 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable

from spark_jms.claims.error_destination import ErrorDestination, UnclaimedMessages
from spark_jms.core.acknowledgement import LIMITER
from spark_jms.core.destination import Destination
from spark_jms.core.record_set import RecordSet
from spark_jms.settings.destination import UNLIMITED

_MOST = 10_000  # messages of one transfer


class RedeliveryLimit:
    """Of one consumer. Not thread-safe: the subscriber's lock guards it."""

    def __init__(
        self,
        error_destination: ErrorDestination,
        session: str,
        label: Callable[[int], str],
        clock_ms: Callable[[], int],
    ) -> None:
        self._unclaimed = UnclaimedMessages(error_destination, LIMITER, session, label, clock_ms)

    def enforce(self, state: RecordSet, destination: Destination, member: int, epoch: int) -> RecordSet:
        """The state of a held member without messages beyond the limit, as far as possible. The caller writes it, and finishes the
        transfer when it has a new intent. Raises DataLossError for messages that are gone."""
        if destination.redelivery_limit == UNLIMITED or not state.deliveries.shown:
            return state
        picks = (state.beyond_limit(destination.redelivery_limit) - state.refused).take(_MOST)
        if not picks or not self._unclaimed.may_move(member):
            return state
        reason = f"delivered more often than the redelivery limit {destination.redelivery_limit} allows"
        kept_back = f"were {reason}; they are kept back, because they"
        return self._unclaimed.move(state, destination, member, picks, epoch, reason, kept_back)
