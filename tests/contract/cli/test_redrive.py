"""C8, C14: `jmsq redrive`: what it brings back, what it says, what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_jms import apply, connect
from tests.harness.domains.commands import Jmsq, files_of
from tests.harness.messages.shorthands import reject_next

MODULE = {
    "destinations": {
        "orders": {"kind": "queue", "redeliveryLimit": 0, "errorDestination": "failed"},
        "failed": {"kind": "queue"},
        "repaired": {"kind": "queue"},
    }
}


@pytest.fixture
def failed(root: str) -> str:
    apply(root, MODULE)
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send_many({"text": f"m{n}", "properties": {"n": n}} for n in range(5))
        with context.consumer("orders") as consumer:
            reject_next(consumer, 5)
            assert consumer.receive(0) is None
    return root


def test_redrive_shows_first_and_then_moves(failed: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    before = files_of(failed)
    assert jmsq("redrive", "failed", "--dry-run").stdout == "would move 5 message(s) of failed to orders\n"
    assert files_of(failed) == before
    done = js("redrive", "failed", "--selector", "n < 2", "--since", "1 h")
    assert done == {"source": "failed", "target": None, "moved": {"orders": 2}, "claimed": 0, "dry_run": False}
    told = jmsq("redrive", "failed", "--to", "repaired", "--limit", "1")
    assert told.stdout == "moved 1 message(s) of failed to repaired (from orders)\n"
    assert "bringing messages of failed back" in told.stderr
    assert [s["backlog"] for s in js("stat")["destinations"]] == [2, 2, 1]
    assert "has no messages to bring back" in jmsq("redrive", "failed", "--until", "2020-01-01T00:00:00Z").stdout


def test_redrive_names_what_it_does_not_understand(failed: str, jmsq: Jmsq) -> None:
    assert (
        "'soon' is not a time: write '2 h' for two hours ago"
        in jmsq("redrive", "failed", "--since", "soon", code=2).stderr
    )
    assert "there is no destination 'nowhere'" in jmsq("redrive", "failed", "--to", "nowhere", code=1).stderr


def test_delayed_messages_are_shown(root: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """C8: a backlog that no consumer gets explains itself."""
    apply(root, MODULE)
    with connect(root, housekeeping=False) as context:
        context.producer("repaired").send(text="x")
        with context.consumer("repaired") as consumer:
            message = consumer.receive(5)
            assert message is not None
            message.reject("1 h")
    (row,) = js("subscriptions", "repaired")
    assert (row["backlog"], row["claimed"], row["delayed"]) == (1, 0, 1)


def test_refused_messages_are_listed_and_taken(root: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """C8, C14: `jmsq stat` has them with the reason, `jmsq subscriptions` counts them; `jmsq move` takes them."""
    destinations = {**MODULE["destinations"], "failed": {"kind": "queue", "maxMessageSize": "100"}}
    apply(root, {"destinations": destinations})
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send_many({"text": text} for text in ("x" * 200, "small"))
        with context.consumer("orders") as consumer:
            reject_next(consumer, 2)
            assert consumer.receive(0) is None
    text = jmsq("stat").stdout
    for word in ("Refused for good", "larger than the maxMessageSize of failed, 100 bytes", "redelivery limit 0"):
        assert word in " ".join(text.split())
    (row,) = js("stat", "orders")["destinations"][0]["refusals"]
    assert (row["ranges"], row["target"], row["rule"]) == ("1", "failed", "maxMessageSize")
    assert "refused" in jmsq("subscriptions", "orders").stdout
    assert [r["refused"] for r in js("subscriptions", "orders")] == [1]
    assert js("move", "orders", "repaired")["moved"] == 1
    assert "Refused for good" not in jmsq("stat").stdout
    assert "refused" not in jmsq("subscriptions", "orders").stdout
