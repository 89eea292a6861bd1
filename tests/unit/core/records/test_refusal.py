"""What is kept of messages that are refused for good, when that ends, and what a target's limit counts (C2, C8)."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.messages.columns import COLUMNS, normalise
from spark_jms.core.messages.compression import compressed
from spark_jms.core.messages.properties import TYPES_PROPERTY
from spark_jms.core.messages.ranges import EMPTY, Ranges, union
from spark_jms.core.ordering.units_of_work import NUMBER, UNIT
from spark_jms.core.records.endings import ASIDE, EXPIRER, ISOLATION, JUDGE, LIMITER, Stamp
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import NOT_DELIVERED, Claim, MessageFailure, added_bytes, described, redriven
from spark_jms.core.records.refusal import (
    MESSAGE_SIZE,
    QUOTA,
    SEQUENCE,
    BrokenRule,
    MessageRefusal,
    Sieve,
    added,
    check_counted_sizes,
    counted_sizes,
    ends,
    holding_back,
    left,
    messages_of,
)
from spark_jms.core.records.stored_form import REFUSALS, changed_objects, from_objects, to_objects
from spark_jms.errors import MessageSizeError

LARGE = BrokenRule(MESSAGE_SIZE, "too large")
FAILURE = MessageFailure("orders", "orders/-/0", "it is bad", 5_000)


def refusal(picks: Ranges, consumer: str = LIMITER, since_ms: int = 0, broken: BrokenRule = LARGE) -> MessageRefusal:
    return MessageRefusal(picks, consumer, "failed", "errors", "table/1", broken, since_ms)


def some(*numbers: int) -> Ranges:
    return Ranges.from_numbers(numbers)


PICKS = st.sets(st.integers(1, 12), min_size=1).map(lambda numbers: Ranges.from_numbers(sorted(numbers)))
CONSUMERS = [LIMITER, EXPIRER, JUDGE, ISOLATION, ASIDE]
STEPS = st.lists(
    st.tuples(st.booleans(), PICKS, st.sampled_from(CONSUMERS), st.sampled_from([LARGE, BrokenRule(QUOTA, "full")])),
    max_size=8,
)


# -- what is kept ------------------------------------------------------------------------------------------------------
@given(STEPS)
def test_each_message_has_its_newest_refusal(steps: list[tuple[bool, Ranges, str, BrokenRule]]) -> None:
    """C8: against a dictionary; like ones are one."""
    known: tuple[MessageRefusal, ...] = ()
    model: dict[int, tuple[str, BrokenRule]] = {}
    for adds, picks, consumer, broken in steps:
        if adds:
            known = added(known, refusal(picks, consumer, broken=broken))
            model |= dict.fromkeys(picks.numbers().tolist(), (consumer, broken))
        else:
            known = left(known, picks)
            model = {number: one for number, one in model.items() if number not in picks.numbers().tolist()}
    found = [(n, (one.consumer, one.broken)) for one in known for n in one.picks.numbers().tolist()]
    assert len(found) == len(dict(found))
    assert dict(found) == model
    assert len({(one.consumer, one.broken) for one in known}) == len(known)
    expected = [n for n, (consumer, _) in model.items() if consumer != EXPIRER]
    assert holding_back(known).numbers().tolist() == sorted(expected)


def test_record_set_keeps_a_refusal_until_its_messages_are_finished() -> None:
    """C8, C5: it is available, and taken out wherever it leaves; a claim of an administrator's that is released keeps it."""
    claim = Claim("c", "limiter", "s", some(1, 2, 3), 0, replayable=False)
    state = RecordSet().claim(claim).refuse("c", refusal(some(1, 3)), delivered=False)
    assert (state.refused, state.claimed, state.deliveries) == (some(1, 3), some(2), NOT_DELIVERED)
    assert state.available(1, 3) == some(1, 3)
    moving = state.claim(Claim("m", "move", "m", some(3), 0, replayable=False))
    assert moving.refused == some(1)
    assert moving.release("m", delivered=False).refused == some(1, 3)
    assert state.skip(some(1)).refusals == (refusal(some(3)),)
    assert state.discard(some(1, 3), "purge", "p", 1, 0).refusals == ()
    assert state.expire(some(3), "expired-log", Stamp(1, 0)).refused == some(1)
    assert state.cleared().refusals == ()
    assert state.kept_back(-1) == some(1, 3)
    delivered = RecordSet().claim(claim).refuse("c", refusal(some(1)), delivered=True)
    assert delivered.redelivered(some(1)) == {2: some(1)}


@given(STEPS)
def test_stored_form_is_read_back(steps: list[tuple[bool, Ranges, str, BrokenRule]]) -> None:
    """C8, C5: one object, written when it changes and deleted when it is empty; no format version of its own."""
    state = RecordSet()
    objects = to_objects(state)
    for adds, picks, consumer, broken in steps:
        before = state
        if adds and (free := picks & state.available(1, 12)):
            claimed = state.claim(Claim("c", "x", "s", free, 0, replayable=False))
            state = claimed.refuse("c", refusal(free, consumer, broken=broken), delivered=False)
        elif not adds:
            state = state.skip(picks)
        for key, value in changed_objects(before, state).items():
            objects.pop(key, None)
            if value is not None:
                objects[key] = value
        assert from_objects(objects, "q") == state
        assert (REFUSALS in objects) == bool(state.refusals)
        assert b'"v":2' in objects["head"]


def test_what_an_earlier_release_has_finished_is_not_read() -> None:
    """C8, C16: it leaves the object as it is."""
    claimed = RecordSet().claim(Claim("c", "x", "s", some(1, 2), 0, replayable=False))
    stored = to_objects(claimed.refuse("c", refusal(some(1, 2)), delivered=False))[REFUSALS]
    assert from_objects({**to_objects(RecordSet().skip(some(1))), REFUSALS: stored}, "q").refused == some(2)
    assert from_objects({**to_objects(RecordSet().skip(some(1, 2))), REFUSALS: stored}, "q").refusals == ()


# -- when it ends ------------------------------------------------------------------------------------------------------
PLAIN = Destination("orders", "queue", 1, error_destination="errors")
REDIRECTS = Destination("orders", "queue", 1, error_destination="errors", expiration_policy="Redirect")
WORKS = Destination("orders", "queue", 1, unit_of_work_handling_policy="SingleMessageDelivery")
ENDS: Mapping[tuple[str, str], tuple[Destination, Ranges, Ranges]] = {
    (LIMITER, "within the limit"): (PLAIN, some(2), some(1)),
    (LIMITER, "beyond it"): (PLAIN, some(1, 2), EMPTY),
    (EXPIRER, "Redirect"): (REDIRECTS, EMPTY, EMPTY),
    (EXPIRER, "another policy"): (PLAIN, EMPTY, some(1, 2)),
    (JUDGE, "units of work"): (WORKS, EMPTY, EMPTY),
    (JUDGE, "no units of work"): (PLAIN, EMPTY, some(1, 2)),
    (ISOLATION, "anything"): (PLAIN, EMPTY, EMPTY),
    (ASIDE, "anything"): (PLAIN, EMPTY, EMPTY),
}


@pytest.mark.parametrize(("consumer", "case"), ENDS)
def test_refusal_ends_by_what_its_origin_declares(consumer: str, case: str) -> None:
    """C8: the table."""
    destination, beyond, expected = ENDS[consumer, case]
    assert ends(refusal(some(1, 2), consumer), destination, beyond) == expected


# -- what a target counts ----------------------------------------------------------------------------------------------
NAMES = st.sampled_from(["a", "ab", "JMSXAppID", "ü"])
MESSAGES = st.lists(
    st.tuples(st.none() | st.dictionaries(NAMES, st.text(max_size=20), max_size=3), st.text(max_size=200)), min_size=1
)


def stored(
    messages: list[tuple[dict[str, str] | None, str]], *, typed: bool = False, packs: bool = False
) -> pa.RecordBatch:
    maps = []
    for properties, _ in messages:
        types = {TYPES_PROPERTY: ",".join(f"{n}:string" for n in properties)} if typed and properties else {}
        maps.append(None if properties is None else list({**types, **properties}.items()))
    given = pa.record_batch(
        {"text": pa.array([text for _, text in messages]), "properties": pa.array(maps, COLUMNS["properties"])}
    )
    return compressed(normalise(given, 1, 10**9), 30 if packs else None)


@given(MESSAGES, st.booleans(), st.booleans(), st.booleans())
def test_what_spark_jms_adds_does_not_count(
    messages: list[tuple[dict[str, str] | None, str]], typed: bool, packs: bool, expires: bool
) -> None:
    """C2, C8, T8: whatever the properties, their types and the compression; also of slices, and after a second failure."""
    rows, plain = stored(messages, typed=typed, packs=packs), stored(messages, typed=typed)
    if expires:
        at = rows.schema.names.index("JMSExpiration")
        rows = rows.set_column(at, "JMSExpiration", pa.array([9_000] * rows.num_rows, pa.int64()))
    sizes = counted_sizes(plain).to_pylist()
    assert added_bytes(rows) is None
    assert counted_sizes(rows).to_pylist() == sizes
    failed = described(rows, [7] * rows.num_rows, [3] * rows.num_rows, FAILURE)
    assert min(added_bytes(failed).to_pylist()) > 150
    assert counted_sizes(failed).to_pylist() == sizes
    assert counted_sizes(failed.slice(1)).to_pylist() == sizes[1:]
    again = described(failed, [7] * rows.num_rows, [3] * rows.num_rows, FAILURE)
    assert counted_sizes(again).to_pylist() == sizes
    assert counted_sizes(redriven(failed, 0)).to_pylist() == sizes
    check_counted_sizes(failed, max(sizes))
    with pytest.raises(MessageSizeError):
        check_counted_sizes(failed, max(sizes) - 1)


@given(MESSAGES, st.integers(1, 250), st.integers(1, 5))
def test_sieve_leaves_out_exactly_what_is_too_large(
    messages: list[tuple[dict[str, str] | None, str]], most: int, step: int
) -> None:
    """C8: in batches of any size; the rest keeps its order."""
    rows = stored(messages)
    sizes = counted_sizes(rows).to_pylist()
    numbers = pa.array(range(11, 11 + rows.num_rows), pa.int64())
    sieve, kept = Sieve(), []
    whole = rows.append_column(SEQUENCE, numbers)
    for at in range(0, rows.num_rows, step):
        kept += sieve.accepted(whole.slice(at, step), Destination("t", "queue", 1, max_message_bytes=most)).to_pylist()
    assert kept == [row for row, size in zip(rows.to_pylist(), sizes, strict=True) if size <= most]
    assert sieve.messages.numbers().tolist() == [n for n, size in enumerate(sizes, 11) if size > most]
    assert {broken.rule for broken in sieve.refused} <= {MESSAGE_SIZE}
    assert sieve.refuse_units() == EMPTY


@given(st.lists(st.tuples(st.sampled_from(["u", "v", "w", None]), st.booleans()), min_size=1), st.integers(1, 4))
def test_sieve_keeps_units_of_work_whole(messages: list[tuple[str | None, bool]], step: int) -> None:
    """C8, T12: with one part all parts are refused; single messages are not concerned."""
    given = [({UNIT: unit, NUMBER: "1"} if unit else {}, "x" * (300 if large else 1)) for unit, large in messages]
    whole = stored(given).append_column(SEQUENCE, pa.array(range(1, len(given) + 1), pa.int64()))
    sieve = Sieve(whole_units=True)
    for at in range(0, whole.num_rows, step):
        sieve.accepted(whole.slice(at, step), Destination("t", "queue", 1, max_message_bytes=200))
    torn = {unit for unit, large in messages if large and unit}
    large = [n for n, (_, is_large) in enumerate(messages, 1) if is_large]
    refused = [n for n, (unit, is_large) in enumerate(messages, 1) if is_large or unit in torn]
    assert sieve.refuse_units().numbers().tolist() == [n for n in refused if n not in large]
    assert sieve.messages.numbers().tolist() == refused
    assert union(sieve.refused.values()) == sieve.messages == messages_of(refusal(p) for p in sieve.refused.values())
