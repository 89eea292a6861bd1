"""Addresses of members, and load balancing of senders, as pure rules (D2, D3, D9)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import attrs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.routing import ANY_MEMBER, Balancing, DestinationAddress, route
from spark_jms.errors import InvalidDestinationError

names = st.sampled_from("abcd")
members_of = st.lists(names, min_size=1, max_size=4, unique=True)


def orders(*servers: str, **more: Any) -> Destination:
    return Destination(name="orders", kind="distributed-queue", members=len(servers), servers=servers, **more)


def routed(balancing: Balancing, declared: Destination, groups: list[str | None], turn: int = 0) -> list[int]:
    return route(balancing.routing(declared), pa.array(groups, pa.string()), turn).to_pylist()


def test_address_names_a_destination_or_its_member() -> None:
    """D3: `orders` is all members, `b@orders` the one on server b; anything else is refused by name."""
    assert DestinationAddress.parse("orders") == DestinationAddress("orders")
    assert DestinationAddress.parse("b@orders") == DestinationAddress("orders", "b")
    assert str(DestinationAddress.parse("b@orders")) == "b@orders"
    declared = orders("a", "b")
    assert DestinationAddress.parse("orders").members(declared) is None
    assert DestinationAddress.parse("b@orders").members(declared) == [1]
    assert DestinationAddress.parse("b@orders").narrowed(declared, ()) == [1]
    assert DestinationAddress.parse("orders").narrowed(declared, (0,)) == [0]
    for wrong, said in (("@orders", "names no member"), ("b@", "names no member"), (5, "is not a destination")):
        with pytest.raises(InvalidDestinationError, match=said):
            DestinationAddress.parse(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidDestinationError, match=r"no member on a server 'c' \(it is on: a, b\)"):
        DestinationAddress.parse("c@orders").members(declared)
    with pytest.raises(InvalidDestinationError, match="names its member already"):
        DestinationAddress.parse("b@orders").narrowed(declared, (0,))
    at_home = Destination(name="orders", kind="distributed-queue", members=3)
    assert DestinationAddress.parse("home@orders").members(at_home) == [0, 1, 2]


def test_address_names_one_of_several_members_on_a_server() -> None:
    """D3, D2: by its number. A server of that very name comes first; a replicated topic has no members by number."""
    at_home = Destination(name="orders", kind="distributed-queue", members=3)
    named = DestinationAddress.parse("home.2@orders")
    assert (named.members(at_home), named.server_in(at_home), named.member_in(at_home)) == ([2], "home", 2)
    assert str(named) == "home.2@orders"
    assert routed(Balancing("home.2"), at_home, ["a", "b", None, None]) == [2] * 4
    with pytest.raises(InvalidDestinationError, match=r"no member 3 on server home \(there are: 0, 1, 2\)"):
        DestinationAddress.parse("home.3@orders").members(at_home)
    for text in ("home.x@orders", "away.1@orders", "home.9999999999@orders"):
        with pytest.raises(InvalidDestinationError, match=r"no member on a server .* \(it is on: home\)"):
            DestinationAddress.parse(text).members(at_home)
    dotted = DestinationAddress.parse("a.1@orders")
    assert dotted.members(orders("a", "a.1")) == [1]
    assert (dotted.server_in(orders("a.1")), dotted.member_in(orders("a.1"))) == ("a.1", None)
    with pytest.raises(InvalidDestinationError, match="no member 1 on server a"):
        dotted.members(orders("a", "b"))
    topic = Destination(name="t", kind="distributed-topic", members=1, servers=("a",), forwarding="replicated")
    with pytest.raises(InvalidDestinationError, match="name a server, a@t"):
        DestinationAddress.parse("a.0@t").members(topic)


@given(members_of, st.data(), st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=20), st.integers(0, 99))
def test_address_takes_every_message(
    servers: list[str], data: st.DataObject, groups: list[str | None], turn: int
) -> None:
    """D3: what is sent to a named server goes to its member, units of order too, also while it is down."""
    named = data.draw(st.sampled_from(servers))
    down = dict.fromkeys(data.draw(st.sets(st.sampled_from(servers))), 1)
    declared = attrs.evolve(orders(*servers), stopped=down)
    assert set(routed(Balancing(named), declared, groups, turn)) <= set(declared.members_on(named))


@given(
    members_of,
    st.data(),
    st.builds(Balancing, st.none(), st.booleans(), st.one_of(st.none(), names), st.one_of(st.none(), st.text())),
    st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=20),
    st.integers(0, 99),
)
def test_preferences_narrow_open_members_and_leave_units_alone(
    servers: list[str], data: st.DataObject, balancing: Balancing, groups: list[str | None], turn: int
) -> None:
    """D2, D9: whatever a sender prefers, its units of order go to their own members, and everything else to members that are
    up, to those on its home server if one is; a sender that is balanced once uses one member."""
    down = dict.fromkeys(data.draw(st.sets(st.sampled_from(servers))), 1)
    declared = attrs.evolve(orders(*servers), stopped=down)
    plain = routed(ANY_MEMBER, declared, groups, turn)
    chosen = routed(balancing, declared, groups, turn)
    free = {member for member, group in zip(chosen, groups, strict=True) if group is None}
    assert [m for m, g in zip(chosen, groups, strict=True) if g] == [m for m, g in zip(plain, groups, strict=True) if g]
    assert free <= set(declared.reachable_members)
    if balancing.home in servers and balancing.home not in down:
        assert free <= set(declared.members_on(balancing.home))
    if balancing.sender is not None:
        assert len(free) <= 1


@given(members_of, st.text(), st.data())
def test_sender_that_is_balanced_once_keeps_its_member(servers: list[str], sender: str, data: st.DataObject) -> None:
    """D2, D9: servers that go down move only the senders whose member is there; a used member is kept when others come."""
    declared, balancing = orders(*servers), Balancing(sender=sender)
    (first,) = routed(balancing, declared, [None])
    down = data.draw(st.sets(st.sampled_from(servers)))
    less = attrs.evolve(declared, stopped=dict.fromkeys(down, 1))
    (second,) = routed(balancing, less, [None], data.draw(st.integers(0, 99)))
    if declared.server_of(first) not in down:
        assert second == first
    more = declared.changed_to(orders(*servers, "x", "y"))
    assert routed(replace(balancing, used=first), more, [None]) == [first]


def test_senders_that_are_balanced_once_share_the_members() -> None:
    """D2: evenly, or by weight."""
    even = Counter(routed(Balancing(sender=str(n)), orders("a", "b"), [None])[0] for n in range(1000))
    assert 400 < even[0] < 600
    weighted = orders("a", "b", "c", routing="weighted", weights=(1, 0, 3))
    found = Counter(routed(Balancing(sender=str(n)), weighted, [None])[0] for n in range(1000))
    assert found[1] == 0
    assert 2 < found[2] / found[0] < 4.5


def test_one_member_of_each_server_is_a_candidate_per_jvm() -> None:
    """D2: Per-JVM: of several members on one server the lowest; with one member on each server both policies are the same."""
    at_home = Destination(name="orders", kind="distributed-queue", members=3)
    assert set(routed(Balancing(per_jvm=True), at_home, [None] * 9)) == {0}
    assert len(set(routed(Balancing(per_jvm=True), at_home, [str(n) for n in range(50)]))) == 3
    assert set(routed(Balancing(per_jvm=True), orders("a", "b"), [None] * 9)) == {0, 1}


def test_weights_belong_to_their_members_per_jvm() -> None:
    """D2: a sender that keeps its member chooses it by that member's own weight."""
    declared = orders("a", "b", routing="weighted", weights=(1, 9))
    found = Counter(Balancing(per_jvm=True, sender=str(n)).keeping(declared).used for n in range(300))
    assert found[1] > 2 * found[0], found


def test_address_of_all_members_changes_no_route() -> None:
    """D3, T10: `home@orders` of a destination without servers is all of it, so units of order go where they always do."""
    grown = Destination(name="orders", kind="distributed-queue", members=5, slot_members=3)
    groups: list[str | None] = [str(n) for n in range(50)]
    assert routed(Balancing("home"), grown, groups) == routed(ANY_MEMBER, grown, groups)


def test_member_that_is_leaving_takes_messages_while_all_others_are_down() -> None:
    """D4, D9: a send does not fail while a server is up."""
    declared = attrs.evolve(orders("a", "b", "c"), leaving=frozenset({1}))
    assert set(routed(ANY_MEMBER, declared, [None] * 9)) == {0, 2}
    assert set(routed(ANY_MEMBER, attrs.evolve(declared, stopped={"a": 1}), [None] * 9)) == {2}
    assert set(routed(ANY_MEMBER, attrs.evolve(declared, stopped={"a": 1, "c": 1}), [None] * 9)) == {1}
