"""Where members are (D1, T10): core/placement.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.servers import Placement, placed_on
from spark_jms.core.ordering.units_of_order import SLOTS

servers = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True)


def owners(placement: Placement) -> list[int]:
    return [placement.slots[slot % len(placement.slots)] for slot in range(SLOTS)]


@given(st.lists(servers, min_size=2, max_size=8))
def test_ids_are_given_once_and_slots_leave_only_removed_members(declared: list[list[str]]) -> None:
    """D1, T10: over any changes of the servers a member keeps its id and its slots while its server stays, an id never comes
    back, and every slot has a member."""
    placement = Placement.first(declared[0])
    gone: set[int] = set()
    for wanted in declared[1:]:
        after = placed_on(wanted, placement.members, placement.slots, placement.next_id)
        assert [server for _, server in after.members] == wanted
        kept = {member for member, server in placement.members if server in wanted}
        assert {m: s for m, s in after.members if m in kept} == {m: s for m, s in placement.members if m in kept}
        gone |= set(placement.ids) - kept
        assert not gone & set(after.ids)
        for before, now in zip(owners(placement), owners(after), strict=True):
            assert now == before if before in kept else now in after.ids
        assert len(after.slots) <= SLOTS
        assert Placement.from_json(after.to_json()) == after
        placement = after


def test_slots_of_a_removed_member_are_shared_out() -> None:
    """T10: its heirs get equal shares, within one."""
    after = placed_on("acd", Placement.first("abcd").members, (0, 1, 2, 3), 4)
    counts = [owners(after).count(member) for member in after.ids]
    assert max(counts) - min(counts) <= 2
    assert sum(counts) == SLOTS


@pytest.mark.parametrize(
    "wrong",
    [
        ((), 1, (0,)),
        (((0, "a"), (0, "b")), 1, (0,)),
        (((0, "a"), (1, "a")), 2, (0,)),
        (((0, "a"), (3, "b")), 3, (0,)),
        (((0, "a"),), 1, (1,)),
        (((0, "a"),), 1, ()),
    ],
)
def test_impossible_placements_are_refused(wrong: tuple[tuple[tuple[int, str], ...], int, tuple[int, ...]]) -> None:
    """D1"""
    with pytest.raises(ValueError, match=r".+"):
        Placement(*wrong)


def test_placement_is_stored_with_the_table() -> None:
    """D1: with format version 2, which earlier versions of spark-jms refuse by name; a table without servers keeps version 1."""
    placed = Destination("orders", "distributed-queue", 2, servers=("a", "b"))
    stored = placed.to_configuration()
    assert stored["jmsq.formatVersion"] == "2"
    assert Destination.from_configuration(stored, "x") == placed
    assert Destination("orders", "queue").to_configuration()["jmsq.formatVersion"] == "1"
