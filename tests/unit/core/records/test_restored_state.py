"""The record set of a restored consumer: a pure function, with random histories (C19)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import Claim
from spark_jms.core.records.stored_form import from_objects, restored, to_objects

LAST = 30
numbers = st.sets(st.integers(1, LAST))


def ranges(members: set[int]) -> Ranges:
    made = EMPTY
    for n in members:
        made = made | Ranges.of((n, n))
    return made


def taken(state: RecordSet, name: str, wanted: set[int]) -> RecordSet:
    picks = ranges(wanted) & state.available(1, LAST)
    if not picks:
        return state
    return state.attach(name, name).claim(Claim(name, name, name, picks, 0, replayable=True))


@given(numbers, numbers, numbers, numbers, st.integers(0, 9))
def test_restored_record_set_keeps_the_finished_and_flags_the_rest(
    done: set[int], acknowledged: set[int], claimed: set[int], purged: set[int], written: int
) -> None:
    """C19: whatever was done stays done; what the table lacks is done; everything else is available and flagged."""
    state = taken(RecordSet().skip(ranges(done)), "a", acknowledged)
    if "a" in state.claims:
        state = state.acknowledge("a", "a", "a", 1, 0)
    state = taken(state, "b", claimed)
    present = Ranges.of((1, LAST)) - ranges(purged)
    after = restored(state, LAST, present, written)
    unfinished = state.unfinished(1, LAST) & present
    assert after.available(1, LAST) == unfinished
    assert after.is_done(Ranges.of((1, LAST)) - unfinished)
    counts = after.redelivered(unfinished)
    assert sum(picks.count for picks in counts.values()) == unfinished.count
    assert all(count >= 2 for count in counts)
    assert (after.claims, after.consumers) == ({}, {})
    assert after.position == max(state.position, written)
    assert all(row.position > written for row in after.outbox)
    assert from_objects(to_objects(after), "x") == after


def test_message_delivered_before_counts_on() -> None:
    """C8, C19: a message that had been delivered twice comes with count 4 after one more delivery and a restore."""
    state = RecordSet()
    for n in range(2):
        claim = Claim(f"c{n}", "a", "a", Ranges.of((1, 1)), 0, replayable=False)
        state = state.attach("a", "a").claim(claim).release(claim.id, delivered=True)
    held = state.claim(Claim("held", "a", "a", Ranges.of((1, 1)), 0, replayable=False))
    after = restored(held, 1, Ranges.of((1, 1)), 0)
    assert list(after.redelivered(Ranges.of((1, 1)))) == [4]
    assert not after.beyond_limit(2)


def test_a_restore_takes_no_message_for_shown() -> None:
    """C8, C19: the backlog of a restored queue with redelivery limit 0 is delivered, not discarded; and in claims of any size."""
    after = restored(RecordSet(), 9, Ranges.of((1, 9)), 0)
    assert not after.beyond_limit(0)
    assert not after.deliveries.alone
