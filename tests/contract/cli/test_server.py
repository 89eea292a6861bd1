"""`jmsq server`, and the other commands while a server is away (D1, M10, C14)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spark_jms
from tests.contract.cli.commands import Jmsq

MODULE = {
    "servers": {"a": {"store": "file"}, "b": {"store": "file"}},
    "destinations": {"orders": {"kind": "distributed-queue", "servers": ["a", "b"]}, "plain": {"kind": "queue"}},
}


@pytest.fixture
def servers(root: str) -> str:
    spark_jms.apply(root, MODULE)
    return root


def test_servers_are_listed_and_one_that_is_away_named(servers: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """D1, M10, C14: each server with its members and whether its store answers; while one is away, `stat` still tells about the
    others, and counts everything in the table of the away one as unfinished."""
    jmsq("send", "orders", "--text", "x", "--count", "4")
    rows = js("server", "list")
    assert [(row["server"], row["members"], row["away"]) for row in rows] == [
        ("home", ["0@plain"], ""),
        ("a", ["0@orders"], ""),
        ("b", ["1@orders"], ""),
    ]
    jmsq("receive", "orders", "--max", "4", "--timeout", "10s")
    stores = Path(servers) / "_jmsq" / "stores"
    (stores / "b").rename(stores / "gone")
    assert "StoreNotFoundError" in js("server", "list")[2]["away"]
    (shown,) = js("stat", "orders")["destinations"]
    assert [(row["member"], row["backlog"], row["holder"]) for row in shown["subscriptions"]] == [
        (0, 0, None),
        (1, 2, "(server b is away)"),
    ]
    assert not js("claims")
    (stores / "gone").rename(stores / "b")
    assert sum(row["backlog"] for row in js("stat", "orders")["destinations"][0]["subscriptions"]) == 0
    assert js("server", "stop", "b") == {"server": "b", "state": "down", "changed": ["orders"]}
    assert js("server", "list")[2]["stopped"] is not None
    assert "stopped since" in jmsq("server", "list").stdout
    assert "server b is up; changed: orders" in jmsq("server", "start", "b").stdout
    assert "cannot be stopped" in jmsq("server", "stop", "home", code=1).stderr
    jmsq("drop", "orders", "--yes")
    assert "orders" not in jmsq("list").stdout
