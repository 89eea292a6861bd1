"""Which barriers of units of order a subscription has passed (T10). core/slots.py has the rules.

The holder of a record looks after each of its writes, housekeeping looks at all records: what is done stays done, so an old
state is good enough.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from spark_jms.claims.scan import units_of
from spark_jms.core.record_set import RecordSet
from spark_jms.core.routing import slot_of
from spark_jms.core.slots import Barrier
from spark_jms.errors import JmsqError
from spark_jms.log.barriers import pass_barriers
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.snapshot import Snapshot

MAX_ROWS_READ = 200_000  # unfinished messages whose units are looked at; with more, the barrier is not passed yet
_LOOK_S = 0.5  # between two looks at unfinished messages
log = logging.getLogger("spark_jms")


class BarrierWatch:
    """Of one consumer or housekeeper. Not thread-safe."""

    def __init__(self, table: DeltaLog, look_s: float = _LOOK_S) -> None:
        self._table, self._look_s = table, look_s
        self._looked_s: dict[Barrier, float] = {}

    def look(self, snapshot: Snapshot, subscription: str, states: Mapping[int, Callable[[], RecordSet]]) -> bool:
        """Whether a barrier was passed. `states` are record sets by member, as the store has them. A commit that fails is tried
        again with the next look."""
        declared = snapshot.destination
        if declared.slots is None or not declared.slots.barriers:
            return False
        passed = [
            barrier
            for member, state in states.items()
            for barrier in declared.barriers_behind(subscription, member)
            if self._is_done(snapshot, barrier, state())
        ]
        if not passed:
            return False
        try:
            return pass_barriers(self._table, subscription, passed)
        except (JmsqError, OSError) as error:
            log.warning(
                "%s/%s has passed %d barrier(s) of units of order, and could not tell its table yet: %s",
                declared.name,
                subscription,
                len(passed),
                error,
            )
            return False

    def _is_done(self, snapshot: Snapshot, barrier: Barrier, state: RecordSet) -> bool:
        left = state.unfinished(1, barrier.old_last)
        if not left:
            return True
        now_s = time.monotonic()
        if left.count > MAX_ROWS_READ or now_s - self._looked_s.get(barrier, -self._look_s) < self._look_s:
            return False
        self._looked_s[barrier] = now_s
        units = units_of(self._table, barrier.old, left, table_id=snapshot.table_id).first_of_units()
        return not any(slot_of(unit) in barrier.slots for unit in units)
