"""A record set that is followed from write to write is the one that is read from its objects alone (C5, C9)."""

from __future__ import annotations

import pytest

from spark_jms.core.messages.chunked_ranges import SPAN, Chunk
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.redelivery import Claim
from spark_jms.core.records.stored_form import (
    NEW_RECORD,
    changed_objects,
    followed,
    followed_change,
    from_objects,
)
from spark_jms.errors import RecordSetError

HEAD = b'{"v":2,"floor":8,"position":20,"consumers":{},"nonce":"","slots":{}}'
LATER = b'{"v":2,"floor":9,"position":20,"consumers":{},"nonce":"","slots":{}}'


def test_order_that_goes_stays_with_no_finished_claim() -> None:
    """C9: a claim that is wholly finished may be stored still, with its order, which the next claim removes."""
    objects = {"head": HEAD, "claim/old": b'["b","s1",[[1,3]],5,false,0]', "order/old": b"[[[1,3]]]"}
    known = followed(NEW_RECORD, objects, "x")
    assert known.state.left_orders == {"old"}
    after = known.state.claim(Claim("new", "a", "s2", Ranges.of((9, 11)), 9, False))
    changes = changed_objects(known.state, after)
    assert "order/old" in changes
    made = followed_change(known, after, changes)
    assert made == followed(NEW_RECORD, dict(made.objects), "x")
    later = {**made.objects, "head": LATER}
    assert followed(made, later, "x").state == from_objects(later, "x")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("done/01", Chunk(1, Ranges.of((SPAN + 5, SPAN + 6))).data),
        ("alone/+1", Chunk(1, Ranges.of((SPAN + 5, SPAN + 6))).data),
        ("outbox/01", b'[1,"a","c1",[[1,3]],1,2,0]'),
        ("outbox/5", b'[1,"a","c1",[[1,3]],1,2,0]'),
    ],
)
def test_object_at_the_place_of_another_is_named(key: str, value: bytes) -> None:
    """C5: or the end of one would take the other away, whose messages would come again."""
    objects = {
        "head": HEAD,
        "done/1": Chunk(1, Ranges.of((SPAN + 1, SPAN + 3))).data,
        "outbox/1": b'[1,"a","c1",[[4,5]],1,2,0]',
    }
    known = followed(NEW_RECORD, objects, "x")
    for before in (NEW_RECORD, known):
        with pytest.raises(RecordSetError, match=r"has the place"):
            followed(before, {**objects, key: value}, "x")
