"""What every entry of a quota's ledger must fulfil (T1)."""

from __future__ import annotations

from itertools import pairwise

from spark_jms.core.limits.quota import PATIENCE, PREEMPTIVE, Limit, QuotaState
from spark_jms.log.limits.quota_ledger import LedgerEntry


def check_entries(entries: list[LedgerEntry], limit: Limit) -> None:
    """All entries of a ledger: used + reserved is within the maximum after each, and with FIFO none is overtaken by one for the same
    destination, nor, after PATIENCE entries, by any other."""
    assert [entry.number for entry in entries] == list(range(1, len(entries) + 1)), "all entries are there"
    for before, after in pairwise(entries):
        assert after.previous == before.mark
        assert limit.allows(after.state.used + after.state.reserved), after
        if limit.policy != PREEMPTIVE:
            assert overtaken(before.state, after.state) == [], after


def overtaken(before: QuotaState, after: QuotaState) -> list[str]:
    """The requests that waited before another one for their destination that this entry has granted, and wait still."""
    known = {one.request.id: one for one in before.requests}
    found = []
    for one in after.requests:
        if one.waits or one.number != after.base + after.number:
            continue
        earlier = known.get(one.request.id)
        number = earlier.number if earlier is not None else one.number
        behind = (other for other in after.waiting if other.number < number)
        found += [
            other.request.id
            for other in behind
            if other.request.destination == one.request.destination
            or after.base + after.number - other.number > PATIENCE
        ]
    return found
