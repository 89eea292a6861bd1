"""C14: topics by command, `jmsq subscriptions` and `jmsq subscriptions drop`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_jms import connect
from spark_jms.core.destinations.destination import Destination
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.testing.inside import domain_of
from tests.harness.domains.commands import Jmsq, files_of, lines


def test_topics_and_their_subscriptions(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    jmsq("send", "prices", "--text", "before")
    jmsq("receive", "prices", "--subscription", "late", "--timeout", "0", code=3)
    jmsq("send", "prices", "--text", "after")
    early = lines(
        jmsq("receive", "prices", "--subscription", "early", "--starting-position", "earliest", "--max", "2", "--json")
    )
    assert [m["text"] for m in early] == ["before", "after"]
    assert [m["text"] for m in lines(jmsq("browse", "prices", "--subscription", "late", "--json"))] == ["after"]
    rows = {r["subscription"]: r for r in js("subscriptions", "prices")}
    assert {name: row["backlog"] for name, row in rows.items()} == {"early": 0, "late": 1}
    assert js("subscriptions", "--drop", "prices/late") == {"dropped": "prices/late", "backlog": 1}
    assert [r["subscription"] for r in js("subscriptions", "prices")] == ["early"]
    # a new subscription of the old name starts where the option says
    again = lines(
        jmsq("receive", "prices", "--subscription", "late", "--starting-position", "earliest", "--max", "2", "--json")
    )
    assert [m["text"] for m in again] == ["before", "after"]
    assert "no subscription 'gone'" in jmsq("subscriptions", "--drop", "prices/gone", code=1).stderr
    assert "only a topic" in jmsq("subscriptions", "--drop", "orders/x", code=1).stderr
    assert "DEST/NAME" in jmsq("subscriptions", "--drop", "prices", code=2).stderr


def test_subscription_in_use_is_not_dropped(domain: str, jmsq: Jmsq) -> None:
    with connect(domain, housekeeping=False) as context:
        context.consumer("prices", subscription="billing").receive(0)
        assert (
            "subscription billing of prices is in use by"
            in jmsq("subscriptions", "--drop", "prices/billing", code=1).stderr
        )
    assert "dropped subscription billing" in jmsq("subscriptions", "--drop", "prices/billing").stdout


def test_dry_run_of_dropping_a_subscription(domain: str, root: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """C10, C14"""
    jmsq("receive", "prices", "--subscription", "late", "--timeout", "0", code=3)
    jmsq("send", "prices", "--text", "x")
    before = files_of(root)
    what = "subscription late of prices with a backlog of 1 message(s)\n"
    assert jmsq("subscriptions", "--drop", "prices/late", "--dry-run").stdout == f"would drop {what}"
    assert js("subscriptions", "--drop", "prices/late", "--dry-run") == {
        "dropped": "prices/late",
        "backlog": 1,
        "dry_run": True,
    }
    assert files_of(root) == before
    done = jmsq("subscriptions", "--drop", "prices/late")
    assert (done.stderr, done.stdout) == (f"jmsq: dropping {what}", f"dropped {what}")


def test_limits_of_subscriptions(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """T4, C14: `subscriptions`, `stat` and `describe` show them, and housekeeping applies them; without a limit nothing is
    shown."""
    jmsq("receive", "prices", "--subscription", "late", "--timeout", "0", code=3)
    assert "deleted" not in jmsq("subscriptions", "prices").stdout
    assert "Limits of subscriptions" not in jmsq("stat", "prices").stdout
    with connect(domain, housekeeping=False) as context:
        apply_destinations(
            domain_of(context), [Destination("prices", "topic", messages_limit_override=2)], lambda d, m: False
        )
        context.producer("prices").send_many({"text": str(n)} for n in range(5))
    jmsq("housekeep", "prices", "--once")
    (row,) = js("subscriptions", "prices")
    assert (row["backlog"], row["subscription_messages_limit"], row["subscription_limit_deleted_count"]) == (2, 2, 3)
    assert "deleted" in jmsq("subscriptions", "prices").stdout
    shown = jmsq("stat", "prices").stdout
    assert "Limits of subscriptions" in shown
    assert "SubscriptionLimitDeletedCount" in shown
    assert "messagesLimitOverride" in jmsq("describe", "prices").stdout
