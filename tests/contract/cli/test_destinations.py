"""C14, C16: `jmsq apply` and `jmsq list`: what they change, print and refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_jms import apply, connect
from spark_jms.log.destinations.domain import Domain
from tests.harness.domains.commands import Jmsq


def test_list_shows_temporary_destinations_when_asked(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """C14, C15: other commands hide them, and refuse one that is named; anyone can send to it."""
    with connect(domain, housekeeping=False) as context:
        queue = context.create_temporary_queue()
        (row,) = js("list", "--temporary")
        assert (row["name"], row["kind"], row["live"]) == (queue.name, "queue", True)
        assert queue.name in jmsq("list", "--temporary").stdout
        assert queue.name not in jmsq("list").stdout + jmsq("stat").stdout
        assert "another context" in jmsq("stat", queue.name, code=1).stderr
        jmsq("send", queue.name, "--text", "from a shell")
        assert [message.text for message in context.browser(queue.name)] == ["from a shell"]
    assert "no temporary destinations" in jmsq("list", "--temporary").stdout


def test_apply_makes_changes_and_refuses(root: str, tmp_path: Path, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    file = tmp_path / "module.yaml"
    file.write_text("destinations:\n  orders: {kind: distributed-queue, members: 2}\n")
    assert js("apply", str(file)) == [
        {"destination": "orders", "what": "created", "detail": "distributed-queue, 2 member(s)"}
    ]
    assert js("apply", str(file))[0]["what"] == "unchanged"
    file.write_text("destinations:\n  orders: {kind: distributed-queue, members: 4}\n  prices: {kind: topic}\n")
    changes = js("apply", str(file))
    assert [(c["destination"], c["what"]) for c in changes] == [("orders", "changed"), ("prices", "created")]
    assert changes[0]["detail"] == "members: 2 -> 4"
    # the members that were added have messages: they stay
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send_many({"text": "x"} for _ in range(40))
    file.write_text("destinations:\n  orders: {kind: distributed-queue, members: 3}\n")
    refused = jmsq("apply", str(file), code=1)
    assert refused.stdout == ""
    assert re.match(r"jmsq: .*member 3 still holds messages.*jmsq purge", refused.stderr)
    error = json.loads(jmsq("apply", str(file), "--json", code=1).stderr)["error"]
    assert error["type"] == "MemberRemovalError"
    # emptied, they go; and the others still have theirs
    assert js("purge", "orders", "--member", "3", "--yes")["dropped"] == 10
    assert js("apply", str(file))[0]["detail"] == "members: 4 -> 3"
    assert js("stat", "orders")["destinations"][0]["backlog"] == 30
    file.write_text("destinations:\n  orders: {kind: distributed-queue, members: 1}\n")
    jmsq("purge", "orders", "--yes")
    assert "was made with 2 members" in jmsq("apply", str(file), code=1).stderr


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("servers: [a]", True),
        ("servers: [a], template: t", False),
        ("servers: [a], forwarding: partitioned", False),
        ("servers: [a], forwarding: replicated", False),
        ("members: 2", False),
    ],
)
def test_apply_tells_of_forwarding_that_is_left_out(
    root: str, tmp_path: Path, jmsq: Jmsq, js: Callable[..., Any], keys: str, told: bool
) -> None:
    """D6, D7: once, when the topic is created: WebLogic's default is the other one, and it cannot be changed."""
    file = tmp_path / "module.yaml"
    file.write_text(
        "servers: {a: {store: file}}\ntemplates: {t: {forwarding: partitioned}}\n"
        f"destinations: {{prices: {{kind: distributed-topic, {keys}}}, orders: {{kind: queue}}}}\n"
    )
    found = {change["destination"]: change["detail"] for change in js("apply", str(file))}
    assert ("forwarding is left out, so it is partitioned" in found["prices"]) == told
    assert "forwarding" not in found["orders"]
    assert "forwarding is left out" not in jmsq("apply", str(file)).output


def test_invalid_module_file_changes_nothing(root: str, tmp_path: Path, jmsq: Jmsq) -> None:
    file = tmp_path / "module.yaml"
    file.write_text("destinations:\n  a: {kind: queue}\n  b: {kind: quue}\n")
    assert jmsq("apply", str(file), code=1).stderr.startswith(f"jmsq: {file}:3: destinations.b.kind is 'quue'")
    assert list(Path(root).iterdir()) == []


def test_list(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    found = {d["name"]: d for d in js("list")}
    assert found["orders"] == {
        "name": "orders",
        "kind": "distributed-queue",
        "members": 2,
        "routing": "round-robin",
        "maxMessageSize": 10 * 2**20,
        "retention": "0",
        "inDoubtTimeout": "1 min",
        "fileGrace": "1 h",
        "acknowledgementRetention": "7 days",
        "durability": "process",
        "redeliveryLimit": -1,
        "redeliveryDelay": "0",
        "destinationKeys": [],
        "servers": [],
        "forwarding": "partitioned",
        "storeEnabled": True,
        "unitOfWorkHandlingPolicy": "PassThrough",
        "promotedProperties": [],
        "resetDeliveryCountOnForward": True,
        "unitOfOrderRouting": "hash",
        "messageLoggingEnabled": False,
        "messagesLimitOverride": -1,
        "messagingPerformancePreference": 25,
        "storeMessageCompressionEnabled": False,
        "messageCompressionOptions": "GZIP_DEFAULT_COMPRESSION",
        "expirationPolicy": "Discard",
        "expirationLoggingPolicy": "",
        "bytesThresholdHigh": -1,
        "bytesThresholdLow": -1,
        "messagesThresholdHigh": -1,
        "messagesThresholdLow": -1,
        "subscriptions": [],
        "epoch": 1,
    }
    assert sorted(found) == ["invoices", "orders", "prices"]
    text = jmsq("list").stdout
    assert "distributed-queue" in text
    assert "10.0 MiB" in text


def test_setting_that_is_left_out_returns_to_its_default(root: str) -> None:
    """C3: also one whose default is none, such as the error destination."""
    errors = {"errors": {"kind": "queue"}}
    apply(root, {"destinations": {**errors, "jobs": {"kind": "queue", "errorDestination": "errors"}}})
    assert Domain(root).log("jobs").refresh().destination.error_destination == "errors"
    apply(root, {"destinations": {**errors, "jobs": {"kind": "queue"}}})
    assert Domain(root).log("jobs").refresh().destination.error_destination is None
    (change, *_) = apply(root, {"destinations": {"jobs": {"kind": "queue"}}})
    assert change.what == "unchanged"
