"""`jmsq pause` and `jmsq resume` (T14, C14)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.harness.domains.commands import Jmsq


def test_pause_and_resume(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """T14, C14: all three by default; `stat` and `describe` show them."""
    assert "production" in jmsq("pause", "orders").stdout
    document = js("describe", "orders")[0]
    assert [row["operation"] for row in document["paused"]] == ["production", "insertion", "consumption"]
    assert "paused" in jmsq("send", "orders", "--text", "x", code=1).stderr
    text = jmsq("stat", "orders").stdout
    assert "Paused by an administrator" in text
    assert "orders: consumption is paused since" in jmsq("describe", "orders").stdout
    document = js("resume", "orders")
    assert (document["changed"], document["paused"]) == (True, [])
    assert "Paused" not in jmsq("stat", "orders").stdout
    jmsq("send", "orders", "--text", "x")


def test_pause_of_one_operation_and_member(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """T14, C14"""
    document = js("pause", "orders", "--member", "1", "--consumption")
    assert [(row["operation"], row["member"]) for row in document["paused"]] == [("consumption", 1)]
    assert "nothing of orders is paused" in jmsq("resume", "orders", "--member", "1").stdout
    assert "members 0 to 1" in jmsq("pause", "orders", "--member", "2", code=1).stderr
