"""High marks and bytes received, without a watcher (T17, C14)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_jms import connect
from spark_jms.admin.statistics import HIGH_MARKS, high_marks
from spark_jms.client import Context
from spark_jms.core.limits.usage_history import FORMAT_VERSION
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import LocalStorage
from tests.harness.domains.commands import Jmsq


def marks(document: Any) -> dict[tuple[str, ...], dict[str, Any]]:
    """Name, then member or subscription, if it is one's -> the row."""
    rows = document["high_marks"]
    return {
        tuple(str(one[of]) for of in ("server", "destination", "member", "subscription") if one[of] is not None): one
        for one in rows
    }


def look(jmsq: Jmsq) -> None:
    jmsq("services", "--once", "--only", "lag")


def drain(context: Context, destination: str, messages: int) -> None:
    with context.consumer(destination) as consumer:
        for _ in range(messages):
            message = consumer.receive(10)
            assert message is not None
            message.acknowledge()


def test_marks_stay_when_the_messages_are_finished(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """T17: of destination, member, subscription and server; with the bytes of their files, and what was received."""
    with connect(domain, housekeeping=False) as context:
        look(jmsq)
        context.producer("invoices").send_many([{"body": bytes(1_000)}] * 8)
        stored = js("stat", "invoices")["destinations"][0]["bytes"]
        with context.consumer("invoices", prefetch=3) as consumer:
            assert consumer.receive(10) is not None
            look(jmsq)
        drain(context, "invoices", 8)
        look(jmsq)
        context.producer("invoices").send(text="x")
        look(jmsq)
    found = marks(js("stat"))
    total = found[("invoices",)]
    assert (total["messages"], total["pending"], total["bytes"]) == (8, 3, stored)
    for key in (("invoices", "0"), ("invoices", "-")):
        assert {of: found[key][of] for of in ("messages", "pending", "bytes")} == {
            of: total[of] for of in ("messages", "pending", "bytes")
        }
    assert found[("home",)]["messages"] == 8
    everything = js("stat", "invoices")["destinations"][0]["bytes"]
    assert total["received_bytes"] == found[("invoices", "0")]["received_bytes"] == everything
    assert found[("orders",)]["messages"] == 0


def test_stat_shows_marks_of_the_named_destinations(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """T17, C14"""
    assert js("stat")["high_marks"] == []
    assert "Most at once" not in jmsq("stat").stdout
    look(jmsq)
    assert "Most at once, as jmsq services has seen it" in jmsq("stat").stdout
    assert {key[0] for key in marks(js("stat", "invoices"))} == {"invoices"}
    assert {key[0] for key in marks(js("stat"))} == {"orders", "prices", "invoices", "home"}


def test_reset_begins_again(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """T17: of one destination, then of all with the servers."""
    with connect(domain, housekeeping=False) as context:
        look(jmsq)
        for name in ("invoices", "orders"):
            context.producer(name).send_many([{"text": "x"}] * 4)
        look(jmsq)
        drain(context, "invoices", 4)
    assert js("stat", "invoices", "--reset") == {"root": domain, "reset": ["invoices"]}
    assert ("invoices",) not in marks(js("stat"))
    look(jmsq)
    found = marks(js("stat"))
    assert (found[("invoices",)]["messages"], found[("invoices",)]["received_bytes"]) == (0, 0)
    assert found[("orders",)]["messages"] == 4
    assert found[("home",)]["messages"] == 8
    assert "begin again" in jmsq("stat", "--reset").stdout
    assert js("stat")["high_marks"] == []
    assert "--reset" in jmsq("stat", "--reset", "--watch", "1s", code=2).stderr


def test_look_without_a_change_writes_nothing(domain: str, jmsq: Jmsq, monkeypatch: pytest.MonkeyPatch) -> None:
    """T17"""
    look(jmsq)
    written: list[str] = []
    put = LocalStorage.put
    monkeypatch.setattr(LocalStorage, "put", lambda self, path, data: (written.append(path), put(self, path, data))[1])
    look(jmsq)
    assert HIGH_MARKS not in written
    with connect(domain, housekeeping=False) as context:
        context.producer("orders").send(text="x")
    look(jmsq)
    assert HIGH_MARKS in written


def test_damaged_file_begins_again_and_a_newer_one_stays(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """T17: neither prevents a look or `jmsq stat`."""
    file = Path(domain) / HIGH_MARKS
    for damage in ("{", "[]", '{"formatVersion": 1}', '{"formatVersion": 1, "destinations": 3, "servers": {}}'):
        file.write_text(damage)
        assert js("stat")["high_marks"] == []
    look(jmsq)
    assert js("stat")["high_marks"]
    newer = json.dumps({"formatVersion": FORMAT_VERSION + 1})
    file.write_text(newer)
    look(jmsq)
    assert js("stat")["high_marks"] == []
    jmsq("stat", "--reset")
    assert file.read_text() == newer


def test_subscriptions_that_are_not_durable_have_no_marks(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """T17: they come and go; those of the topic have their messages."""
    with (
        connect(domain, housekeeping=False) as context,
        context.consumer("prices"),
        context.consumer("prices", subscription="billing"),
    ):
        context.producer("prices").send(text="x")
        look(jmsq)
    found = marks(js("stat", "prices"))
    assert set(found) == {("prices",), ("prices", "0"), ("prices", "billing")}
    assert (found[("prices",)]["messages"], found[("prices", "billing")]["messages"]) == (2, 1)


def test_away_server_raises_no_mark(servers: str, jmsq: Jmsq) -> None:
    """T17, M10: everything in the table counts as unfinished while its record sets cannot be read."""
    with connect(servers, housekeeping=False) as context:
        context.producer("orders").send_many([{"text": "x"}] * 4)
        drain(context, "orders", 4)
    folder = Path(servers) / "_jmsq" / "stores" / "a"
    folder.rename(folder.with_name("lost"))
    look(jmsq)
    found = high_marks(Domain(servers))
    assert {row.destination for row in found if row.destination} == {"plain"}
    assert not [row for row in found if row.server], "what the servers hold is not known"


def test_marks_are_metrics(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """T17, M5"""
    look(jmsq)
    with connect(domain, housekeeping=False) as context:
        context.producer("invoices").send_many([{"text": "x"}] * 3)
    look(jmsq)
    found = {(one["name"], *one["labels"].values()): one["value"] for one in js("metrics", "--once")}
    row = marks(js("stat"))[("invoices", "0")]
    assert found["jmsq_destination_messages_high", "invoices", "0"] == row["messages"] == 3
    assert found["jmsq_destination_pending_messages_high", "invoices", "0"] == 0
    assert found["jmsq_destination_bytes_high", "invoices", "0"] == row["bytes"] > 0
    assert found["jmsq_destination_received_bytes_total", "invoices", "0"] == row["received_bytes"] == row["bytes"]
    assert found["jmsq_subscription_messages_high", "invoices", "-"] == 3
    assert found["jmsq_server_messages_high", "home"] == 3
