"""The record set that a restored consumer finds. Pure.

A backup reads the store at one moment and each table later. Compared with the table, the record set is old in three ways,
and `restored` mends each:

    a message of the record set's backlog is missing from the table   it was finished and purged in between: DONE
    a message of the backlog is in the table                          it may have been delivered since: flagged
    a claim is open                                                   its consumer lives in another domain: released, flagged

A message that an open transfer moves stays with its transfer. What was finished at the moment of the store stays finished.

Features: C19 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import replace

from spark_jms.core.ranges import Ranges
from spark_jms.core.record_set import RecordSet


def restored(state: RecordSet, last: int, present: Ranges, written: int, logged: int = 0) -> RecordSet:
    """`present`: the sequences of 1..`last` that the table still holds; `written`: the position up to which the
    acknowledgement table has this record set's rows; `logged`: the same of the life-cycle table. The next delivery of every
    unfinished message is flagged."""
    after = state
    for claim_id in state.claims:
        after = after.release(claim_id, delivered=False)
    after = after.skip(Ranges.of((1, last)) - present - after.moving)
    seen = after.deliveries.perhaps_delivered(after.available(1, last), alone=False)
    after = replace(after, deliveries=seen)
    life = replace(after.life, position=max(state.life.position, logged))
    ahead = replace(after, consumers={}, position=max(state.position, written), life=life)
    return ahead.delivered_to_table(written).logged_to_table(logged)
