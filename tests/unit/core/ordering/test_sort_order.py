"""The order of delivery of sorted destinations, against plain Python (T15, C12)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages.columns import COLUMNS
from spark_jms.core.ordering.sort_order import SortOrder
from spark_jms.settings.fields import DestinationKey, KeyText
from spark_jms.settings.types import NotAllowed

Row = dict[str, Any]
TEXTS = {
    "amount": ["1.5", "-2", "1e3", "x", None],
    "count": ["10", "9", "-1", "1.5", "", str(2**70), None],
    "color": ["red", "green", "Red", "", None],
    "big": ["true", "false", "yes", None],
}
rows_of = st.lists(
    st.fixed_dictionaries(
        {
            "JMSPriority": st.integers(0, 9),
            "JMSType": st.sampled_from(["a", "b", None]),
            "JMSXGroupID": st.sampled_from([None, None, "u", "v"]),
            "properties": st.fixed_dictionaries({name: st.sampled_from(texts) for name, texts in TEXTS.items()}),
            "redelivered": st.booleans(),
        }
    ),
    max_size=25,
)
KEYS = (
    "JMSPriority descending",
    "JMSPriority ascending",
    "JMSType descending",
    "JMSMessageID descending",
    "JMSMessageID ascending",
    "JMSRedelivered descending",
    "amount ascending double",
    "count descending long",
    "color descending string",
    "big ascending boolean",
)


def table(rows: list[Row], order: SortOrder) -> pa.Table:
    columns = {}
    for name in order.columns:
        values = [row[name] for row in rows]
        if name == "properties":
            values = [[(k, v) for k, v in value.items() if v is not None] for value in values]
        columns[name] = pa.array(values, COLUMNS[name])
    return pa.table(columns)


def value(key: DestinationKey, row: Row, sequence: int) -> Any:
    """What the key makes of a message; None: it lacks the key."""
    if key.name == "JMSMessageID":
        return sequence
    if key.name == "JMSRedelivered":
        return row["redelivered"]
    if key.column != "properties":
        return row[key.name]
    text = row["properties"][key.name]
    if text is None or key.type == "string":
        return text
    if key.type == "boolean":
        return {"true": True, "false": False}.get(text)
    try:
        number = float(text) if key.type == "double" else int(text)
    except ValueError:
        return None
    return number if abs(number) < 2**63 else None


def expected(keys: tuple[DestinationKey, ...], rows: list[Row], first: int) -> list[int]:
    """One message at a time: of those that may come, the first by the keys. A unit's message may come when all of the unit
    that were sent before it have; until then it stands for nothing, and then takes the place of the later of the two."""
    order = list(range(len(rows)))
    for key in reversed(keys):
        values = [value(key, row, first + n) for n, row in enumerate(rows)]
        there = [n for n in order if values[n] is not None]
        there.sort(key=lambda n, v=values: v[n], reverse=key.descending)
        if key.descending:  # sort(reverse=True) keeps the order of equal ones
            pass
        order = there + [n for n in order if values[n] is None]
    out: list[int] = []
    waiting: dict[str, list[int]] = {}
    for n in order:
        unit = rows[n]["JMSXGroupID"]
        if unit is None:
            out.append(n)
            continue
        waiting.setdefault(unit, []).append(n)
        delivered = {m for m in out if rows[m]["JMSXGroupID"] == unit}
        for m in sorted(waiting[unit]):
            earlier = {k for k in range(m) if rows[k]["JMSXGroupID"] == unit}
            if earlier <= delivered:
                out.append(m)
                delivered.add(m)
                waiting[unit].remove(m)
    return out


@given(rows_of, st.lists(st.sampled_from(KEYS), min_size=1, max_size=3), st.integers(1, 100))
def test_delivery_is_in_the_order_of_the_keys(rows: list[Row], written: list[str], first: int) -> None:
    """T15: several keys, both directions, headers and properties of each type; missing ones last; units in order (T10)."""
    order = SortOrder.of(written)
    sequences = pa.array(range(first, first + len(rows)), pa.int64())
    redelivered = pa.array([row["redelivered"] for row in rows], pa.bool_())
    found = order.delivery(table(rows, order), sequences, redelivered).tolist()
    assert found == expected(order.keys, rows, first)


@given(rows_of, st.lists(st.sampled_from(KEYS), min_size=1, max_size=2))
def test_stored_order_changes_no_delivery(rows: list[Row], written: list[str]) -> None:
    """T15, T10: sorting a sender's rows as they are stored changes neither what is delivered first nor a unit's order."""
    order = SortOrder.of(written)
    rows = [{**row, "redelivered": False} for row in rows]
    batch = table(rows, order).combine_chunks().to_batches()
    stored = order.storing(batch[0]) if batch else None
    moved = rows if stored is None else [rows[n] for n in stored.tolist()]
    places = list(range(len(rows))) if stored is None else stored.tolist()
    assert sorted(places) == list(range(len(rows)))
    for unit in "uv":
        of_unit = [n for n in places if rows[n]["JMSXGroupID"] == unit]
        assert of_unit == sorted(of_unit)
    sequences, none = pa.array(range(1, len(rows) + 1), pa.int64()), pa.array([False] * len(rows), pa.bool_())
    direct = order.delivery(table(rows, order), sequences, none).tolist()
    after = [places[n] for n in order.delivery(table(moved, order), sequences, none).tolist()]
    if "JMSMessageID" not in " ".join(written):
        assert after == direct


def test_fifo_and_lifo_read_no_keys() -> None:
    """T15: the two that the texts call the most efficient."""
    assert SortOrder().columns == []
    lifo = SortOrder.of(["JMSMessageID descending"])
    assert lifo.columns == ["JMSXGroupID"]
    assert lifo.storing(pa.record_batch({"JMSXGroupID": pa.array([None, None], pa.string())})) is None


@pytest.mark.parametrize(
    ("written", "full"),
    [
        ("JMSPriority", "JMSPriority ascending"),
        ("JMSPriority DESCENDING", "JMSPriority descending"),
        ("JMSPriority descending string", "JMSPriority descending"),
        ("amount double", "amount ascending double"),
        ("amount", "amount ascending string"),
        ("JMS_JMSQ_x descending int", "JMS_JMSQ_x descending int"),
    ],
)
def test_keys_are_written_in_short(written: str, full: str) -> None:
    """T15: ascending and string are the defaults; a header's type is its own."""
    assert KeyText().read(written) == full
    assert KeyText().fits(full)


@pytest.mark.parametrize(
    "written", ["", "1x", "amount up", "amount double descending", "JMSPriorty", "JMSReplyTo", "a b c d"]
)
def test_wrong_keys_are_refused(written: str) -> None:
    """T15"""
    with pytest.raises(NotAllowed, match="must be"):
        KeyText().read(written)
    assert not KeyText().fits(written)
