"""Units of work: which parts are delivered, wait, expire or are faulty, against plain Python (T12)."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages.columns import COLUMNS
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.ordering.units_of_work import (
    END,
    NUMBER,
    PART_COLUMNS,
    PARTS_SCHEMA,
    UNIT,
    UnitOfWorkOrder,
    check_parts,
    judge,
    parts,
    routing_groups,
    work_order,
)
from spark_jms.errors import MessageFormatError

NOW, PATIENCE = 1_000, 100


@dataclass(frozen=True)
class Part:
    unit: str
    number: int
    end: bool
    free: bool = True
    sent_ms: int = NOW
    due_ms: int = 0
    expires_ms: int = 0
    taken: bool = True


PARTS = st.builds(
    Part,
    st.sampled_from("ab"),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([NOW, NOW, NOW - PATIENCE]),
    st.sampled_from([0, 0, 0, NOW + 1]),
    st.sampled_from([0, 0, 0, NOW, NOW + 1]),
    st.sampled_from([True, True, False]),
)


def table(rows: list[Part], faults: dict[int, str] | None = None) -> pa.Table:
    faults = faults or {}
    return pa.Table.from_pylist(
        [{"sequence": n, "fault": faults.get(n), **vars(part)} for n, part in enumerate(rows, 1)], PARTS_SCHEMA
    )


def numbers(ranges: Ranges) -> list[int]:
    return ranges.numbers().to_pylist()


@dataclass
class Expected:
    deliverable: set[int]
    refused: set[int]
    expired: set[int]
    faulty: set[int]


def expected(rows: list[Part], patience: int | None) -> Expected:
    """Message by message, as the table in the module says."""
    out = Expected(set(), set(), set(), set())
    kept: dict[str, dict[int, int]] = {}
    for sequence, part in enumerate(rows, 1):
        unit = kept.setdefault(part.unit, {})
        end = next((n for n, s in unit.items() if rows[s - 1].end), None)
        late = end is not None and part.number > end
        short = part.end and any(n > part.number for n in unit)
        if part.number in unit or late or short or (part.end and end is not None):
            if part.free:
                out.faulty.add(sequence)
        else:
            unit[part.number] = sequence
    for unit in kept.values():
        members = [rows[s - 1] for s in unit.values()]
        if not all(part.free for part in members):
            continue
        end = next((part.number for part in members if part.end), None)
        complete = end is not None and set(unit) == set(range(1, end + 1))
        late = patience is not None and not complete and min(p.sent_ms for p in members) + patience <= NOW
        if late or any(0 < part.expires_ms <= NOW for part in members):
            out.expired |= set(unit.values())
        elif complete and all(part.due_ms <= NOW for part in members):
            (out.deliverable if all(part.taken for part in members) else out.refused).update(unit.values())
    return out


@given(st.lists(PARTS, max_size=14), st.sampled_from([None, PATIENCE]))
def test_each_unit_is_delivered_whole_or_waits_whole(rows: list[Part], patience: int | None) -> None:
    """T12: all or nothing; incomplete units expire; a contradictory part leaves its unit."""
    available = Ranges.from_numbers([n for n, part in enumerate(rows, 1) if part.free])
    verdict = judge(table(rows), available, NOW, patience)
    want = expected(rows, patience)
    assert set(verdict.deliverable["sequence"].to_pylist()) == want.deliverable
    assert set(numbers(verdict.refused)) == want.refused
    assert set(numbers(verdict.expired)) == want.expired
    assert {n for ranges in verdict.faulty.values() for n in numbers(ranges)} == want.faulty


@given(st.lists(PARTS, max_size=14), st.integers(0, 14))
def test_verdict_on_a_part_does_not_depend_on_when_it_was_looked_at(rows: list[Part], seen: int) -> None:
    """T12: what is faulty among the first messages is faulty among all of them, for the same reason."""
    everything = Ranges.of((1, len(rows))) if rows else Ranges.of()
    early = judge(table(rows[:seen]), everything, NOW, None).faulty
    late = judge(table(rows), everything, NOW, None).faulty
    rows_of = {reason: [n for n in numbers(ranges) if n <= seen] for reason, ranges in late.items()}
    free = {n for n, part in enumerate(rows, 1)}
    assert {r: n for r, n in rows_of.items() if n} == {
        r: [n for n in numbers(x) if n in free] for r, x in early.items()
    }


@given(st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=20), st.randoms())
def test_order_of_delivery_keeps_units_together_where_their_last_part_arrived(units: list[str | None], random) -> None:  # type: ignore[no-untyped-def]
    """T12: and a batch may only end behind a whole unit."""
    places: dict[str, list[int]] = {}
    given_numbers: list[int | None] = []
    for unit in units:
        if unit is None:
            given_numbers.append(None)
        else:
            places.setdefault(unit, []).append(len(places.get(unit, [])) + 1)
            given_numbers.append(places[unit][-1])
    for unit, own in places.items():  # the parts of a unit arrive in any order
        shuffled = list(own)
        random.shuffle(shuffled)
        at = iter(shuffled)
        given_numbers = [next(at) if u == unit else n for u, n in zip(units, given_numbers, strict=True)]
    sequences = list(range(5, 5 + len(units)))
    made = work_order(
        pa.array(sequences, pa.int64()), pa.array(units, pa.string()), pa.array(given_numbers, pa.int64())
    )
    groups: dict[object, list[tuple[int, int]]] = {}
    for sequence, unit, number in zip(sequences, units, given_numbers, strict=True):
        groups.setdefault(unit or sequence, []).append((number or 0, sequence))
    in_order = sorted(groups.values(), key=lambda group: max(s for _, s in group))
    want = [sequence for group in in_order for _, sequence in sorted(group)]
    assert made.sequences.to_pylist() == want
    ends, total = [], 0
    for group in in_order:
        total += len(group)
        ends.append(total)
    assert made.ends.to_pylist() == ends


def rows_of(*properties: dict[str, str] | None, group: str | None = None) -> pa.RecordBatch:
    count = len(properties)
    columns = {
        "JMSXGroupID": [group] * count,
        "properties": [None if p is None else list(p.items()) for p in properties],
        "JMSTimestamp": [NOW] * count,
        "JMSDeliveryTime": [NOW] * count,
        "JMSExpiration": [0] * count,
    }
    schema = pa.schema([(name, COLUMNS[name]) for name in PART_COLUMNS])
    return pa.RecordBatch.from_pydict(columns, schema)


def test_parts_are_read_from_the_three_properties() -> None:
    """T12: of typed and untyped values; other messages are none."""
    rows = rows_of({UNIT: "u", NUMBER: "2", END: "true"}, None, {"color": "red"}, {UNIT: "u", NUMBER: "1"})
    found = parts(rows, pa.array([4, 5, 6, 7], pa.int64()), pa.array([True] * 4))
    got = [(r["sequence"], r["unit"], r["number"], r["end"], r["fault"]) for r in found.to_pylist()]
    assert got == [(4, "u", 2, True, None), (7, "u", 1, False, None)]
    assert UnitOfWorkOrder().delivery(
        pa.table({"properties": rows.column("properties")}), pa.array([4, 5, 6, 7], pa.int64()), pa.array([False] * 4)
    ).to_pylist() == [1, 2, 3, 0]


@pytest.mark.parametrize(
    ("properties", "group", "what"),
    [
        ({UNIT: "u"}, None, NUMBER),
        ({UNIT: "u", NUMBER: "0"}, None, NUMBER),
        ({UNIT: "u", NUMBER: "first"}, None, NUMBER),
        ({UNIT: "u", NUMBER: "1", END: "maybe"}, None, END),
        ({UNIT: "", NUMBER: "1"}, None, UNIT),
        ({UNIT: "u", NUMBER: "1"}, "g", "unit of order"),
    ],
)
def test_faulty_part_is_refused_by_row_and_reason(properties: dict[str, str], group: str | None, what: str) -> None:
    """T12: the number is from 1 on, and a unit of work goes without a unit of order."""
    rows = rows_of({"color": "red"}, properties, group=group)
    with pytest.raises(MessageFormatError, match=rf"row 1: .*{what}"):
        check_parts(rows)
    bad = parts(rows, pa.array([1, 2], pa.int64()), pa.array([True, True]))
    assert [*judge(bad, Ranges.of((1, 2)), NOW, None).faulty.values()] == [Ranges.of((2, 2))]


def test_number_and_end_without_a_unit_are_ignored() -> None:
    """T12."""
    rows = rows_of({NUMBER: "-1", END: "perhaps"})
    check_parts(rows)
    assert not parts(rows, pa.array([1], pa.int64()), pa.array([True])).num_rows


def test_routing_follows_the_unit_where_the_destination_handles_it() -> None:
    """T12: as a unit of order does."""
    rows = rows_of({UNIT: "u", NUMBER: "1"}, None)
    assert routing_groups(rows, True).to_pylist() == ["u", None]
    assert routing_groups(rows, False).to_pylist() == [None, None]
