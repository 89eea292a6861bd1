"""Which consumers may use a subscription together, and how the uses are stored (C10)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.destinations.subscriptions import ActiveSubscription, alone_name, is_durable, shared_name
from spark_jms.errors import FormatVersionError, RecordSetError, SubscriptionInUseError

SESSIONS = st.sampled_from("abcd")
STEPS = st.lists(st.tuples(st.sampled_from(["join", "leave", "die"]), SESSIONS, st.booleans()), max_size=30)


@given(STEPS)
def test_exclusive_consumer_is_always_the_only_one(steps: list[tuple[str, str, bool]]) -> None:
    """C10: an exclusive consumer joins only an unused subscription, and nobody joins one that has it."""
    used, model = ActiveSubscription("s"), dict[str, bool]()
    for what, session, exclusive in steps:
        if what == "join" and session not in model:
            if model and (exclusive or any(model.values())):
                with pytest.raises(SubscriptionInUseError, match="nothing was subscribed"):
                    used.joined(session, exclusive=exclusive)
            else:
                used, model = used.joined(session, exclusive=exclusive), {**model, session: exclusive}
        elif what == "leave":
            used = used.left(session)
            model.pop(session, None)
        elif what == "die":
            used = used.among(model.keys() - {session})
            model.pop(session, None)
        assert dict(used.users) == model
        assert not any(model.values()) or len(model) == 1


@given(
    st.dictionaries(SESSIONS, st.booleans()),
    st.none() | st.dictionaries(st.integers(0, 9), st.integers(0, 2**40)),
    st.none() | st.text(max_size=20),
    st.integers(0, 2**50),
    st.none() | st.frozensets(st.integers(0, 9)),
)
def test_use_is_stored_as_it_is(
    users: dict[str, bool],
    floors: dict[int, int] | None,
    selector: str | None,
    created_ms: int,
    only: frozenset[int] | None,
) -> None:
    """C10, C16: in format 2 only if it takes some members alone, which an earlier spark-jms would take for all."""
    one = ActiveSubscription("~s", users, floors, selector, created_ms, only)
    assert ActiveSubscription.from_bytes("~s", one.to_bytes()) == one
    assert json.loads(one.to_bytes())["v"] == (1 if only is None else 2)
    assert one.as_subscription().floors == (floors or {})


MEMBERS = st.none() | st.frozensets(st.integers(0, 3), min_size=1)


@given(st.lists(MEMBERS, min_size=1, max_size=6))
def test_subscription_begins_on_a_member_with_its_first_consumer_there(joining: list[frozenset[int] | None]) -> None:
    """C10, C13: it keeps what was sent since then, and nothing of a member that no consumer took."""
    entry = ActiveSubscription("~s", only=joining[0])
    begun: dict[int, int] = {}
    for time, members in enumerate(joining, 1):
        before, entry = entry if time > 1 else None, entry.taking(members)
        begun = {m: time for m in range(4) if members is None or m in members} | begun
        if before is None or before.only != entry.only:
            entry = entry.with_floors(dict.fromkeys(range(4), time), before)
        subscription = entry.as_subscription()
        assert {m: subscription.floor(m, 99) for m in range(4)} == {m: begun.get(m, 99) for m in range(4)}


def test_names_tell_what_ends_with_its_consumers() -> None:
    """C10: names of tables' subscriptions do not begin with `~`; numbers are used again."""
    assert is_durable("billing")
    assert is_durable("-")
    assert not is_durable(shared_name("billing"))
    assert [alone_name(set()), alone_name({"~~1", "~~3"}), alone_name({"~1"})] == ["~~1", "~~2", "~~1"]
    assert not is_durable(alone_name(set()))


def test_unreadable_use_is_named() -> None:
    """C10, C16"""
    for data in (b"{", b"[]", b'{"v":1}', b'{"v":1,"users":5,"floors":null,"selector":null,"created_ms":0}'):
        with pytest.raises(RecordSetError, match="subscription s "):
            ActiveSubscription.from_bytes("s", data)
    with pytest.raises(FormatVersionError):
        ActiveSubscription.from_bytes("s", b'{"v":3}')
