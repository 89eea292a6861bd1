"""Messages that are refused for good are tried again when that may help. core/refusal.py has the rule.

The holder of a record set looks, before it plans and while it is idle, at what the targets declare; the scan for expired messages
does so for what has expired. A target that cannot be reached now has not changed its mind: its messages stay refused.

Features: C8 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from spark_jms.claims.error_destination import ErrorDestination, UnclaimedMessages
from spark_jms.claims.transfer import Transfers
from spark_jms.core.destination import Destination
from spark_jms.core.expiration import EXPIRER
from spark_jms.core.ranges import Ranges
from spark_jms.core.record_set import RecordSet
from spark_jms.core.refusal import ASIDE, MessageRefusal, ends
from spark_jms.errors import JmsqError

LOOKS_EVERY_MS = 1_000  # at the targets' declarations
_MOST = 10_000  # messages of one transfer
log = logging.getLogger("spark_jms")


@dataclass(frozen=True)
class _Reconsidered:
    """`ended`: the origin does not want these to move any more; `again`: their target, or what it declares, has changed."""

    refusal: MessageRefusal
    ended: Ranges
    again: Ranges


class Reconsideration:
    """Of one holder. Not thread-safe: the holder's lock guards it."""

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
        """The state of a held member without what is refused no longer: it moves, or is as any other message. The caller writes the
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
