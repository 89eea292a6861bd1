"""C14: `jmsq stat`, once and watching."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.harness.domains.commands import Jmsq, lines


def test_stat(domain: str, in_doubt: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    jmsq("send", "orders", "--text", "x", "--count", "10")
    document = js("stat")
    assert document["root"] == domain
    stats = {s["destination"]: s for s in document["destinations"]}
    assert [m["last_sequence"] for m in stats["orders"]["members"]] == [5, 5]
    orders, invoices = stats["orders"], stats["invoices"]
    assert (orders["sent"], orders["backlog"], orders["claimed"], orders["files"], orders["version"]) == (
        10,
        10,
        0,
        2,
        1,
    )
    assert orders["oldest"] <= document["time"]
    assert stats["prices"]["oldest"] is None
    assert orders["bytes"] == sum(m["bytes"] for m in orders["members"]) > 0
    assert (invoices["backlog"], invoices["claimed"]) == (3, 3)
    assert stats["prices"]["subscriptions"] == []
    assert [s["destination"] for s in js("stat", "prices", "orders")["destinations"]] == ["prices", "orders"]
    text = jmsq("stat").stdout
    for word in ("Destinations", "Members", "distributed-queue", "backlog", "consumers", "version"):
        assert word in text


def test_stat_estimates_the_memory_of_headers(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """T7: 512 bytes for a message of a queue; of a topic 256, and 256 for each subscription that has not finished it."""

    def estimate(destination: str) -> int:
        (found,) = js("stat", destination)["destinations"]
        return int(found["header_estimate_bytes"])

    assert (estimate("orders"), estimate("prices")) == (0, 0)
    jmsq("send", "orders", "--text", "x", "--count", "10")
    jmsq("receive", "orders", "--max", "3")
    assert estimate("orders") == 7 * 512
    for name in ("a", "b", "c"):
        jmsq("receive", "prices", "--subscription", name, "--timeout", "0", code=3)
    jmsq("send", "prices", "--text", "x", "--count", "2")
    assert estimate("prices") == 2 * (256 + 3 * 256) == 2 * 1024
    jmsq("receive", "prices", "--subscription", "b", "--max", "1")
    assert estimate("prices") == 2 * 256 + 5 * 256
    assert "headers" in jmsq("stat").stdout


def test_watching_shows_rates(domain: str, jmsq: Jmsq, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_jms.cli import statistics

    monkeypatch.setattr(statistics.time, "sleep", lambda _: jmsq("send", "invoices", "--text", "x"))
    looks = lines(jmsq("stat", "invoices", "--watch=1s", "--times", "3", "--json"))
    assert [look["destinations"][0]["backlog"] for look in looks] == [0, 1, 2]
    assert looks[0]["destinations"][0]["rates"] is None
    assert looks[1]["destinations"][0]["rates"]["sent_per_s"] > 0
    assert "sent/s" in jmsq("stat", "--times", "2", "--watch").stdout


def test_stat_shows_the_skew_of_this_hosts_clock(domain: str, jmsq: Jmsq, monkeypatch: pytest.MonkeyPatch) -> None:
    """C17: with its bounds, and whether it is tolerated."""
    assert "the clock of this host is" in jmsq("stat").stdout.splitlines()[-1]
    clock = json.loads(jmsq("--json", "stat").stdout)["clock"]
    assert clock["least_ms"] <= clock["most_ms"] < 600_000
    monkeypatch.setattr("spark_jms.log.tables.storage.now_ms", lambda: 3_600_000)
    shown = jmsq("stat").stdout.splitlines()[-1]
    assert "ms behind" in shown
    assert "beyond what is tolerated" in shown
