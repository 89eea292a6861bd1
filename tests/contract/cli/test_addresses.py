"""`server@destination` on the command line (D3, C14)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import spark_jms
from tests.harness.domains.commands import ON_SERVERS, Jmsq, lines


def test_commands_take_a_member_by_name(servers: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """D3: send, browse, stat, move, purge and receive of one member leave the other one alone."""
    jmsq("send", "a@orders", "--text", "x", "--count", "3")
    jmsq("send", "b@orders", "--text", "y", "--count", "2")
    assert {message["text"] for message in lines(jmsq("browse", "b@orders", "--json"))} == {"y"}
    (shown,) = js("stat", "b@orders")["destinations"]
    assert (shown["destination"], shown["backlog"], [m["member"] for m in shown["members"]]) == ("b@orders", 2, [1])
    assert js("move", "a@orders", "b@orders", "--limit", "1")["moved"] == 1
    assert js("move", "a@orders", "plain", "--limit", "1")["moved"] == 1
    assert js("purge", "a@orders", "--yes")["dropped"] == 1
    assert [m["text"] for m in lines(jmsq("receive", "b@orders", "--max", "9", "--timeout", "1s", "--json"))] == list(
        "yyx"
    )


def test_pause_of_a_member_by_name(servers: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """D3, T14: pause and resume take a member by name; a member that is named twice, or not there, is refused."""
    assert [row["member"] for row in js("pause", "b@orders", "--consumption")["paused"]] == [1]
    assert js("stat", "a@orders")["destinations"][0]["paused"] == []
    assert js("resume", "b@orders")["paused"] == []
    assert "names its member already" in jmsq("pause", "b@orders", "--member", "0", code=1).stderr
    assert "no member on a server 'c'" in jmsq("stat", "c@orders", code=1).stderr
    assert "name the whole destination" in jmsq("purge", "b@orders", "--acknowledged-only", code=2).stderr


def test_receive_and_browse_are_pinned_to_one_member(servers: str, jmsq: Jmsq) -> None:
    """D3: with --pin, receive and browse take one member, whichever it is."""
    for server in "ab":
        jmsq("send", f"{server}@orders", "--text", "x", "--count", "3")
    shown = {message["member"] for message in lines(jmsq("browse", "orders", "--pin", "--json"))}
    assert len(shown) == 1
    taken = lines(jmsq("receive", "orders", "--pin", "--max", "9", "--timeout", "1s", "--json"))
    assert len(taken) == 3
    assert len({message["member"] for message in taken}) == 1


def test_connection_factories_on_the_command_line(servers: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """D2, D3: they are listed, and send, receive and browse take one by name."""
    assert js("list", "--factories") == []
    spark_jms.apply(
        servers, {**ON_SERVERS, "connectionFactories": {"once": {"loadBalancingEnabled": False, "pinReceivers": True}}}
    )
    (shown,) = js("list", "--factories")
    assert (shown["name"], shown["loadBalancingEnabled"], shown["producerLoadBalancingPolicy"]) == (
        "once",
        False,
        "per-member",
    )
    jmsq("send", "orders", "--text", "x", "--count", "2000", "--connection-factory", "once")
    assert {row["member"] for row in js("stat", "orders")["destinations"][0]["members"] if row["backlog"]} in ({0}, {1})
    shown = lines(jmsq("browse", "orders", "--connection-factory", "once", "--json"))
    assert len({message["member"] for message in shown}) <= 1
    assert "no connection factory 'x'" in jmsq("receive", "orders", "--connection-factory", "x", code=1).stderr
    assert "two lists" in jmsq("list", "--factories", "--temporary", code=2).stderr


def test_subscriptions_of_a_replicated_topic(root: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """D6, C10, C14: receive, browse, list and drop take the subscription of a server; on the topic's name only what is not
    durable."""
    prices = {"kind": "distributed-topic", "servers": ["a", "b"], "forwarding": "replicated"}
    spark_jms.apply(root, {"servers": ON_SERVERS["servers"], "destinations": {"prices": prices}})
    assert "make it on one" in jmsq("receive", "prices", "--subscription", "s", "--timeout", "0", code=1).stderr
    for server in "ab":
        jmsq("receive", f"{server}@prices", "--subscription", "s", "--timeout", "0", code=3)
    jmsq("receive", "prices", "--timeout", "0", code=3)
    jmsq("send", "prices", "--text", "x", "--count", "4")
    assert len(lines(jmsq("receive", "a@prices", "--subscription", "s", "--max", "3", "--json"))) == 3
    assert len(lines(jmsq("browse", "a@prices", "--subscription", "s", "--json"))) == 1
    assert len(lines(jmsq("browse", "prices", "--subscription", "b@s", "--json"))) == 4
    rows = js("subscriptions", "prices")
    assert [(row["subscription"], row["member"]) for row in rows] == [("a@s", 0), ("a@s", 1), ("b@s", 0), ("b@s", 1)]
    assert sum(row["backlog"] for row in js("subscriptions", "a@prices")) == 1
    assert {row["subscription"] for row in js("subscriptions", "b@prices")} == {"b@s"}
    assert js("subscriptions", "--drop", "a@prices/s") == {"dropped": "a@prices/s", "backlog": 1}
    assert js("subscriptions", "--drop", "prices/b@s") == {"dropped": "prices/b@s", "backlog": 4}
    assert js("subscriptions", "prices") == []


def test_subscriptions_on_one_server_of_a_partitioned_topic(root: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """D7, C14: its part of each."""
    prices = {"kind": "distributed-topic", "servers": ["a", "b"]}
    spark_jms.apply(root, {"servers": ON_SERVERS["servers"], "destinations": {"prices": prices}})
    jmsq("receive", "prices", "--subscription", "s", "--timeout", "0", code=3)
    jmsq("send", "prices", "--text", "x", "--count", "4")
    assert [(row["member"], row["backlog"]) for row in js("subscriptions", "prices")] == [(0, 2), (1, 2)]
    assert [(row["member"], row["backlog"]) for row in js("subscriptions", "b@prices")] == [(1, 2)]


def test_purge_and_move_of_one_server_of_a_replicated_topic(root: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """D6, C14: `server@topic` names the subscriptions on that server, with their messages in all members; those on other servers
    keep theirs. The consumption of one member, whose messages belong to all of them, is not paused alone (T14)."""
    prices = {"kind": "distributed-topic", "servers": ["a", "b"], "forwarding": "replicated"}
    plain = {"kind": "queue"}
    spark_jms.apply(root, {"servers": ON_SERVERS["servers"], "destinations": {"prices": prices, "plain": plain}})
    for server in "ab":
        jmsq("receive", f"{server}@prices", "--subscription", "s", "--timeout", "0", code=3)
    jmsq("receive", "a@prices", "--subscription", "t", "--timeout", "0", code=3)
    jmsq("send", "prices", "--text", "x", "--count", "4")
    assert js("purge", "a@prices", "--subscription", "s", "--dry-run")["dropped"] == 4
    assert js("purge", "a@prices", "--subscription", "s", "--yes")["dropped"] == 4
    backlog = dict.fromkeys(("a@s", "a@t", "b@s"), 0)
    for row in js("subscriptions", "prices"):
        backlog[row["subscription"]] += row["backlog"]
    assert backlog == {"a@s": 0, "a@t": 4, "b@s": 4}
    assert js("purge", "a@prices", "--yes")["dropped"] == 4
    assert sum(row["backlog"] for row in js("subscriptions", "prices")) == 4
    assert "is not on server a" in jmsq("purge", "a@prices", "--subscription", "b@s", "--yes", code=1).stderr
    assert js("move", "b@prices", "plain", "--subscription", "s")["moved"] == 4
    assert "replicated" in jmsq("pause", "a@prices", code=1).stderr
    assert "cannot be paused alone" in jmsq("pause", "prices", "--member", "0", "--consumption", code=1).stderr
    assert [row["operation"] for row in js("pause", "a@prices", "--production")["paused"]] == ["production"]
    assert js("resume", "a@prices")["paused"] == []


def test_explain_leaves_out_what_a_server_has_missed(root: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """C7, D6: a subscription of a replicated topic skips the non-persistent messages of its server's outage."""
    prices = {"kind": "distributed-topic", "servers": ["a", "b"], "forwarding": "replicated"}
    spark_jms.apply(root, {"servers": ON_SERVERS["servers"], "destinations": {"prices": prices}})
    for server in "ab":
        jmsq("receive", f"{server}@prices", "--subscription", "s", "--timeout", "0", code=3)
    jmsq("server", "stop", "a")
    with spark_jms.connect(root, housekeeping=False) as context, context.producer("prices") as producer:
        for mode in ("PERSISTENT", "NON_PERSISTENT"):
            producer.send(text="x", delivery_mode=mode, priority=7)
    jmsq("server", "start", "a")

    def matching(subscription: str) -> int:
        plan = js("explain", "prices", "JMSPriority > 6", "--subscription", subscription)
        return sum(member["matching"] for member in plan["members"])

    assert (matching("a@s"), matching("b@s")) == (1, 2)


def test_name_that_cannot_exist_is_answered_like_one_that_does_not(servers: str, jmsq: Jmsq) -> None:
    """C14: by the list of the destinations, whatever the command; no module file is at fault."""
    for command in (("stat",), ("send", "--text", "x"), ("browse",), ("purge", "--yes"), ("pause",), ("move", "plain")):
        error = json.loads(jmsq(*command, "../x", "--json", code=1).stderr.splitlines()[-1])["error"]
        assert error["type"] == "InvalidDestinationError"
        assert "(there are: orders, plain)" in error["message"]
