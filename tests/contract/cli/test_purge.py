"""C14: `jmsq purge`: what it drops, what it leaves, what it asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.harness.domains.commands import Jmsq, files_of, lines


def test_purge_drops_the_backlog_but_not_claimed_messages(in_doubt: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    jmsq("send", "invoices", "--text", "x", "--count", "4")
    assert js("purge", "invoices", "--yes") == {
        "destination": "invoices",
        "dropped": 4,
        "claimed": 3,
        "deleted_messages": 4,
        "deleted_files": 1,
    }
    (stat,) = js("stat", "invoices")["destinations"]
    assert (stat["sent"], stat["backlog"], stat["claimed"], stat["stored_messages"]) == (7, 3, 3, 3)
    acks = js("acks", "invoices")
    assert [(r["consumer"], r["messages"], r["ranges"]) for r in acks["rows"]] == [("jmsq purge", 4, "4-7")]
    assert acks["members"][0]["messages"] == 4
    jmsq("claims", "--release", in_doubt)
    text = jmsq("purge", "invoices", "--yes").stdout
    assert "dropped 3 message(s) of invoices" in text
    assert "deleted 1 file(s)" in text
    jmsq("receive", "invoices", "--timeout", "0", code=3)
    assert [r["messages"] for r in js("acks", "invoices", "--limit", "1")["rows"]] == [3]


def test_purge_asks_for_confirmation(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    jmsq("send", "orders", "--text", "x", "--count", "6")
    refused = jmsq("purge", "orders", input="n\n", code=1)
    assert "Drop 6 message(s) of orders?" in refused.stderr
    assert refused.stdout == ""
    assert js("stat", "orders")["destinations"][0]["backlog"] == 6
    assert "nothing was done" in jmsq("purge", "orders", input="", code=1).stderr
    assert "Drop 3 message(s) of orders, member 1?" in jmsq("purge", "orders", "--member", "1", input="y\n").stderr
    assert js("stat", "orders")["destinations"][0]["backlog"] == 3


def test_purge_of_acknowledged_messages_drops_nothing(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    jmsq("send", "invoices", "--text", "a")
    jmsq("send", "invoices", "--text", "b")
    jmsq("receive", "invoices")
    assert js("purge", "invoices", "--acknowledged-only") == {
        "destination": "invoices",
        "dropped": 0,
        "claimed": 0,
        "deleted_messages": 1,
        "deleted_files": 1,
    }
    assert [m["text"] for m in lines(jmsq("browse", "invoices", "--all", "--json"))] == ["b"]


def test_purge_of_one_subscription(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    for name in ("a", "b"):
        jmsq("receive", "prices", "--subscription", name, "--timeout", "0", code=3)
    jmsq("send", "prices", "--text", "x", "--count", "5")
    assert js("purge", "prices", "--subscription", "a", "--yes")["dropped"] == 5
    assert {r["subscription"]: r["backlog"] for r in js("subscriptions", "prices")} == {"a": 0, "b": 5}
    assert js("purge", "prices", "--yes") | {"deleted_files": 1} == {
        "destination": "prices",
        "dropped": 5,
        "claimed": 0,
        "deleted_messages": 5,
        "deleted_files": 1,
    }


def test_purge_refuses_the_subscription_of_a_queue(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """C10, C13: and keeps the backlog."""
    jmsq("send", "invoices", "--text", "x", "--count", "5")
    refused = jmsq("purge", "invoices", "--subscription", "nonsense", "--yes", code=1)
    assert refused.stderr == (
        "jmsq: invoices is a queue and has no subscription 'nonsense': leave the subscription out, or name a topic\n"
    )
    assert js("stat", "invoices")["destinations"][0]["backlog"] == 5


def test_dry_run_of_a_purge(in_doubt: str, root: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """C13, C14: tells exactly what the purge then does."""
    jmsq("send", "invoices", "--text", "x", "--count", "4")
    before = files_of(root)
    promised = js("purge", "invoices", "--dry-run")
    text = jmsq("purge", "invoices", "--dry-run", "--yes").stdout
    kept = js("purge", "invoices", "--acknowledged-only", "--dry-run")
    assert files_of(root) == before
    assert text == (
        "would drop 4 message(s) of invoices\n"
        "would leave 3 message(s) that consumers have claimed (jmsq claims invoices)\n"
        "would delete 1 file(s) with 4 finished message(s)\n"
    )
    assert (kept["dropped"], kept["deleted_files"], kept["dry_run"]) == (0, 0, True)
    assert promised == {**js("purge", "invoices", "--yes"), "dry_run": True}


def test_dry_run_of_a_purge_of_one_subscription(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """C10, C13, C14: the file stays for the other subscription."""
    for name in ("a", "b"):
        jmsq("receive", "prices", "--subscription", name, "--timeout", "0", code=3)
    jmsq("send", "prices", "--text", "x", "--count", "5")
    assert jmsq("purge", "prices", "--subscription", "a", "--member", "0", "--dry-run").stdout == (
        "would drop 5 message(s) of prices, subscription a, member 0\nwould delete 0 file(s) with 0 finished message(s)\n"
    )
    assert js("purge", "prices", "--dry-run")["dropped"] == 10
    assert {r["subscription"]: r["backlog"] for r in js("subscriptions", "prices")} == {"a": 5, "b": 5}
