"""Routing of messages to members (C4, D2)."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.destinations.routing import Routing, route, split
from spark_jms.core.ordering.units_of_order import SLOTS, slot_of

groups = st.lists(st.one_of(st.none(), st.text(max_size=4)), max_size=60)


@given(groups, st.integers(1, 7), st.integers(0, 1000), st.sampled_from(["round-robin", "random"]))
def test_units_of_order_stay_in_one_member(ids: list[str | None], members: int, turn: int, policy: str) -> None:
    """C4: each row goes to exactly one member, a unit of order to one, and each member keeps the order of the rows."""
    column = pa.array(ids, pa.string())
    where = route(Routing(1, members, policy), column, turn)
    assert len(where) == len(ids)
    assert all(0 <= m < members for m in where.tolist())
    seen: dict[str, int] = {}
    for group, member in zip(ids, where.tolist(), strict=True):
        if group is not None:
            assert seen.setdefault(group, member) == member
    batch = pa.RecordBatch.from_arrays([pa.array(range(len(ids)), pa.int64())], names=["n"])
    parts = split(batch, where)
    assert [m for m, _ in parts] == sorted({m for m, _ in parts}) or len({m for m, _ in parts}) == len(parts)
    got = {m: part.column("n").to_pylist() for m, part in parts}
    assert got == {m: [row for row, member in enumerate(where.tolist()) if member == m] for m in set(where.tolist())}


@given(st.integers(0, 500), st.integers(1, 9), st.integers(0, 50))
def test_round_robin_balances_within_one(rows: int, members: int, turn: int) -> None:
    """D2: the shares of two members of a batch differ by at most one message."""
    counts = Counter(route(Routing(1, members), pa.nulls(rows, pa.string()), turn).tolist())
    shares = [counts.get(m, 0) for m in range(members)]
    assert max(shares) - min(shares) <= 1


def test_round_robin_alternates_single_messages() -> None:
    """D2: single messages of a producer go to the members in turn."""
    assert [route(Routing(1, 4), pa.nulls(1, pa.string()), turn).tolist() for turn in range(5)] == [
        [0],
        [1],
        [2],
        [3],
        [0],
    ]


def test_weighted_routing_follows_weights() -> None:
    """D2: weighted routing follows the weights; a member with weight 0 gets nothing."""
    counts = Counter(route(Routing(1, 3, "weighted", (1, 0, 3)), pa.nulls(8000, pa.string()), 5).tolist())
    assert counts.get(1, 0) == 0
    assert 2.5 < counts[2] / counts[0] < 3.5


def test_added_members_do_not_move_units_of_order() -> None:
    """C4: a unit of order keeps its member when a destination grows from 2 to 5 members."""
    ids = pa.array([f"g{i}" for i in range(500)])
    assert route(Routing(1, 2), ids, 0) == route(Routing(2, 5, slot_members=2), ids, 9)
    assert all(slot_of(group_id) < SLOTS for group_id in ids.tolist())


@pytest.mark.parametrize(
    "bad", [{"members": 0}, {"members": 2, "policy": "x"}, {"members": 2, "policy": "weighted", "weights": (1,)}]
)
def test_impossible_routes_are_refused(bad: dict[str, object]) -> None:
    """C4: an impossible route raises ValueError."""
    with pytest.raises(ValueError):
        Routing(1, **bad)  # type: ignore[arg-type]
