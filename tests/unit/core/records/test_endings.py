"""How a message ended, as its row tells: kinds, details, hulls, and what may be folded (C5, T3, T6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.destinations.subscriptions import LIMIT
from spark_jms.core.messages.ranges import Ranges, union
from spark_jms.core.records import endings, life_cycle
from spark_jms.core.records.endings import KINDS, SELECTOR_REFUSED, HullClaim, Stamp, kind_of, split_claim
from spark_jms.core.records.life_cycle import Acknowledgement, Outbox, outbox_change
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import Claim
from spark_jms.core.records.stored_form import from_objects, to_objects

CONSUMERS = ["q1", "q2", endings.EXPIRER, endings.PURGER, LIMIT, endings.SKIPPER, endings.ENDER, endings.MOVER]


def test_every_part_of_spark_jms_has_a_kind() -> None:
    """T3, T6: and every other name is a consumer's."""
    assert kind_of("orders-query") == "finished"
    assert {kind_of(name) for name in KINDS} == {"expired", "dropped", "moved", "aside", "purged", "skipped", "ended"}


def test_claims_tell_their_detail() -> None:
    """T6: a target, a transaction, a policy, or a reason."""
    assert split_claim("q", "k1") == ("k1", "")
    assert split_claim("q", "k1 in transfer/ab/0/7") == ("k1", "transfer/ab/0/7")
    assert split_claim(endings.MOVER, "k1 to failed") == ("k1", "failed")
    assert split_claim(endings.EXPIRER, "expired-log") == ("", "log")
    assert split_claim(endings.EXPIRER, "message-expiration-1 to failed") == ("message-expiration-1", "failed")
    assert split_claim(endings.SKIPPER, "refused/3/9") == ("", "refused")


@given(st.lists(st.tuples(st.sampled_from(CONSUMERS), st.integers(1, 40)), max_size=60), st.integers(8, 12))
def test_folded_outbox_keeps_how_each_message_ended(steps: list[tuple[str, int]], most: int) -> None:
    """C5, T6: whatever rows stand beside each other, the outbox keeps its bound, and each kind all its messages: the exact ones
    where a row is no hull, and their number always."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(life_cycle, "MAX_OUTBOX", most)
        outbox, first, expected = Outbox(), 1, dict[str, int]()
        exact: dict[str, list[Ranges]] = {}
        for position, (consumer, count) in enumerate(steps, 1):
            picks = Ranges.from_numbers(range(first, first + 2 * count, 2))
            first += 2 * count
            apart = endings.counts_apart(consumer)
            claim = str(HullClaim("refused", count, position)) if apart else f"k{position}"
            row = Acknowledgement(position, consumer, claim, endings.hull(picks) if apart else picks, 1, 0)
            before, outbox = outbox, outbox.appended(row)
            expected[kind_of(consumer)] = expected.get(kind_of(consumer), 0) + count
            exact.setdefault(kind_of(consumer), []).append(picks)
            stored = {one.position: one for one in before}
            change = outbox_change(before, outbox)
            for gone in change.removed:
                del stored[gone]
            assert stored | {one.position: one for one in change.written} == {one.position: one for one in outbox}
        assert len(outbox) <= most
        assert [row.position for row in outbox] == sorted(row.position for row in outbox)
        assert outbox.bytes == sum(row.bytes for row in outbox)
        found = dict[str, int]()
        for row in outbox:
            found[kind_of(row.consumer)] = found.get(kind_of(row.consumer), 0) + row.messages
        assert found == expected
        for kind, parts in exact.items():
            rows = [row for row in outbox if kind_of(row.consumer) == kind]
            kept = union(row.picks for row in rows)
            if any(endings.counts_apart(row.consumer) for row in rows):
                assert not union(parts) - kept
            else:
                assert kept == union(parts)


def test_refused_messages_are_a_hull() -> None:
    """T6: a selector that refuses every second message of half a million adds one small row, which tells how many they are."""
    refused = Ranges.from_numbers(range(1, 500_000, 2))
    state = RecordSet().skip(refused, SELECTOR_REFUSED, Stamp(7, 99))
    (row,) = state.outbox
    assert (row.picks, row.messages, row.claim) == (Ranges.of((1, 499_999)), 250_000, "refused/250000/1")
    assert (row.epoch, row.acknowledged_ms, row.bytes) == (7, 99, 224)
    few = RecordSet().skip(Ranges.from_numbers([1, 3, 5]), SELECTOR_REFUSED, Stamp(7, 99)).outbox[0]
    assert few.picks == Ranges.from_numbers([1, 3, 5])


def test_subscription_that_ends_tells_what_it_leaves() -> None:
    """D6, T6: but for what a transfer takes; what waits for the table stays, and a repeated end adds nothing."""
    claim = Claim("k", "c", "s", Ranges.of((3, 6)), 0, replayable=True)
    state = RecordSet().start_at(2).attach("c", "s").claim(claim).acknowledge("c", "s", "k", 1, 5, Ranges.of((3, 4)))
    ended = state.ended(9, endings.DROPPED_SUBSCRIPTION, Stamp(1, 8))
    assert [(row.consumer, row.picks, row.messages) for row in ended.outbox] == [
        ("c", Ranges.of((3, 4)), 2),
        (endings.ENDER, Ranges.of((5, 9)), 5),
    ]
    assert (ended.floor, ended.claims, ended.position) == (0, {}, 2)
    assert ended == ended.cleared() == from_objects(to_objects(ended), "x")
