"""Where the positions of a subscription are (D6, D7, C10): subscription_name.py, subscription_place.py, and server_for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.subscriptions import (
    ActiveSubscription,
    ClientIdentity,
    alone_name,
    check_durable,
    check_kept,
    is_durable,
    kept_at,
    on_server,
    record_server,
    record_servers,
    recorded_on,
    server_for,
    server_of_subscription,
    shared_name,
)
from spark_jms.errors import InvalidDestinationError, ModuleFileError

names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,8}", fullmatch=True)
identities = st.builds(ClientIdentity, st.none() | names, st.sampled_from(["restricted", "unrestricted"]))
PARTITIONED = Destination("t", "distributed-topic", 3, servers=("a", "b", "c"))
REPLICATED = Destination("t", "distributed-topic", 3, servers=("a", "b", "c"), forwarding="replicated")


@given(identities, names, names, st.sets(st.integers(1, 5)))
def test_server_is_read_from_every_kind_of_name(
    identity: ClientIdentity, name: str, server: str, used: set[int]
) -> None:
    """D6, C10: durable or not, with a client id or without; and names of other topics tell none."""
    kept = identity.kept(name)
    own = alone_name({f"~~{server}@{number}" for number in used}, server)
    for one in (on_server(server, kept), shared_name(kept, server), own):
        assert server_of_subscription(one) == server
    for one in (kept, shared_name(kept), alone_name(set())):
        assert server_of_subscription(one) is None
    assert (is_durable(on_server(server, kept)), is_durable(shared_name(kept, server)), is_durable(own)) == (
        True,
        False,
        False,
    )
    assert int(own.split("@")[1]) not in used
    check_kept(kept)
    check_kept(on_server(server, kept))


@pytest.mark.parametrize("wrong", ["a@", "@a", "a@b@c", "a:b@c", "~a@b", "a@b c"])
def test_wrong_names_are_refused(wrong: str) -> None:
    """C10, D6"""
    with pytest.raises(ModuleFileError):
        check_kept(wrong)


@given(st.sampled_from("abc"), st.sampled_from(["b@billing", "~b@billing", "~~b@1"]))
def test_each_record_set_is_on_one_server(server: str, name: str) -> None:
    """D6, D7: of a replicated topic on the subscription's, of a partitioned one on the member's."""
    assert (
        {record_server(REPLICATED, name, member) for member in range(3)}
        == {"b"}
        == set(record_servers(REPLICATED, name))
    )
    assert recorded_on(REPLICATED, server, name) == ([0, 1, 2] if server == "b" else [])
    assert [record_server(PARTITIONED, "billing", member) for member in range(3)] == record_servers(
        PARTITIONED, "billing"
    )
    assert recorded_on(PARTITIONED, server, "billing") == ["abc".index(server)]


def test_subscription_is_kept_on_the_server_that_the_consumer_names() -> None:
    """D6, D3: `b@t` and billing, `t` and b@billing are the same; a partitioned topic knows no such thing."""
    assert kept_at(REPLICATED, "b", "billing") == kept_at(REPLICATED, None, "b@billing") == "b@billing"
    assert kept_at(REPLICATED, "b", "b@billing") == "b@billing"
    assert kept_at(PARTITIONED, "b", "billing") == "billing"
    check_durable(REPLICATED, "b@billing")
    check_durable(PARTITIONED, "billing")
    for declared, name in ((REPLICATED, "billing"), (REPLICATED, "x@billing"), (PARTITIONED, "b@billing")):
        with pytest.raises(InvalidDestinationError):
            check_durable(declared, name)


def test_new_use_goes_to_its_subscription_or_home_or_to_the_emptiest_server() -> None:
    """D6, D2: consumers that name a subscription share it while its server answers."""

    def known(**users: int) -> dict[str, ActiveSubscription]:
        return {
            name: ActiveSubscription(name, {f"{name} {n}": False for n in range(count)})
            for name, count in users.items()
        }

    entries = known(**{"~b@s": 3, "~~a@1": 1, "c@billing": 2})
    assert server_for("s", entries, ["a", "b", "c"]) == "b"
    assert server_for("s", entries, ["a", "c"]) == "a"
    assert server_for(None, entries, ["b", "c", "a"]) == "a"
    assert server_for(None, entries, ["b", "c"]) == "c"
    assert server_for(None, {}, ["b", "c"]) == "b"
    assert server_for(None, entries, ["b", "c", "a"], home="b") == server_for("x", entries, ["b", "c"], home="b") == "b"
    assert server_for(None, entries, ["a", "c"], home="b") == "a"
    assert server_for("s", entries, ["a", "b"], home="a") == "b"
