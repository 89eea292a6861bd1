"""`jmsq pause` and `jmsq resume` (T14, C14)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spark_jms
from spark_jms import admin, connect
from spark_jms.admin.servers import pause_server, resume_server
from spark_jms.core.destinations.pause import CONSUMPTION, INSERTION, OPERATIONS, PRODUCTION
from spark_jms.errors import DomainError, FormatVersionError, OptionError, ProductionPausedError
from spark_jms.log.destinations.domain import Domain
from spark_jms.metrics.declared import _paused as paused_metrics
from tests.harness.domains.commands import Jmsq
from tests.harness.domains.servers import queue_on


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


# -- a server as a whole ----------------------------------------------------------------------------------------------------------
def on_servers(root: str, **more: Any) -> None:
    module = queue_on("a", "b")
    prices = {"kind": "distributed-topic", "servers": ["a", "b"], "forwarding": "replicated"}
    module["destinations"] |= {"prices": prices, "plain": {"kind": "queue"}, **more}
    spark_jms.apply(root, module)


def paused(root: str, name: str) -> list[tuple[str, int | None, str | None]]:
    return [(p.operation, p.member, p.server) for p in Domain(root).log(name).refresh().destination.pauses.all]


def test_server_is_paused_as_a_whole(root: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """T14, D1: production, insertion and consumption of all members on it; senders use the others, and the commands show it."""
    on_servers(root)
    document = js("pause", "--server", "a")
    assert document == {
        "server": "a",
        "paused": list(OPERATIONS),
        "changed": ["orders", "prices"],
        "consumed": ["prices"],
    }
    assert paused(root, "orders") == [(operation, 0, "a") for operation in OPERATIONS]
    assert paused(root, "prices") == [(PRODUCTION, 0, "a"), (INSERTION, 0, "a")]
    assert paused(root, "plain") == []
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send_many([{"text": "x"}] * 4)
        assert {message.member for message in context.browser("orders")} == {1}
        with pytest.raises(
            ProductionPausedError, match=r"production of server a; .* `jmsq resume --server a --production`"
        ):
            context.producer("a@orders").send(text="x")
    assert "0 (server a)" in jmsq("stat", "orders").stdout
    assert "member 0 (server a): production is paused since" in jmsq("describe", "orders").stdout
    shown = jmsq("resume", "--server", "a", "--production", "--insertion").stdout
    assert "server a: consumption is paused; changed: orders, prices" in shown
    assert "prices: consumption continues" in shown
    assert "nothing is paused; changed: orders" in jmsq("resume", "--server", "a").stdout
    assert paused(root, "orders") == paused(root, "prices") == []


def test_pauses_of_server_and_destination_end_each_by_itself(root: str) -> None:
    """T14: a member is paused while one of the two stands; and a pause that stands keeps its time."""
    on_servers(root)
    domain = Domain(root)
    with admin.connect(root) as administrator:
        administrator.pause("orders", CONSUMPTION, members=[0])
        first = administrator.pause_server("a", CONSUMPTION)
        assert (first.paused, first.changed) == ((CONSUMPTION,), ("orders",))
        assert administrator.pause_server("a", CONSUMPTION).changed == ()
        since = {p.server: p.since_ms for p in domain.log("orders").refresh().destination.pauses.all}
        administrator.pause_server("a", CONSUMPTION, PRODUCTION)
        assert {
            p.server: p.since_ms
            for p in domain.log("orders").refresh().destination.pauses.all
            if p.operation == CONSUMPTION
        } == since
        administrator.resume("orders")
        assert paused(root, "orders") == [(PRODUCTION, 0, "a"), (CONSUMPTION, 0, "a")]
        administrator.pause("orders", CONSUMPTION, members=[0])
        administrator.resume_server("a")
        assert paused(root, "orders") == [(CONSUMPTION, 0, None)]


def test_destination_that_comes_to_a_paused_server_is_paused_there(root: str) -> None:
    """T14, D1: one that is created, one that gets a member there, one that leaves it; `home` is a server like any other, and
    temporary destinations are not concerned."""
    on_servers(root)
    domain = Domain(root)
    pause_server(domain, "b", [CONSUMPTION])
    pause_server(domain, "home", [PRODUCTION])
    on_servers(
        root,
        new={"kind": "queue", "servers": ["b"]},
        moved={"kind": "distributed-queue", "servers": ["a"]},
        here={"kind": "queue"},
    )
    assert paused(root, "new") == [(CONSUMPTION, 0, "b")]
    assert paused(root, "moved") == []
    assert paused(root, "here") == paused(root, "plain") == [(PRODUCTION, 0, "home")]
    on_servers(root, moved={"kind": "distributed-queue", "servers": ["a", "b"]})
    assert paused(root, "moved") == [(CONSUMPTION, 1, "b")]
    on_servers(root, moved={"kind": "distributed-queue", "servers": ["a"]})
    assert paused(root, "moved") == []
    with connect(root, housekeeping=False) as context:
        context.producer(context.create_temporary_queue().name).send(text="x")
        with pytest.raises(ProductionPausedError):
            context.producer("here").send(text="x")
    resume_server(domain, "home")
    assert paused(root, "here") == []


def test_interrupted_pause_of_a_server_is_finished_by_the_next(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T14: by the same command, or by `apply` for the destinations that it changes."""
    on_servers(root)
    domain = Domain(root)

    def killed(self: Domain) -> list[str]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Domain, "registered", killed)
        with pytest.raises(KeyboardInterrupt):
            pause_server(domain, "a", [PRODUCTION])
    assert paused(root, "orders") == []
    assert pause_server(domain, "a", [PRODUCTION]).changed == ("orders", "prices")


def test_one_figure_for_a_member_that_is_paused_twice(root: str) -> None:
    """T14, M5: Prometheus refuses two of the same labels."""
    on_servers(root)
    with admin.connect(root) as administrator:
        administrator.pause_server("a", CONSUMPTION)
        administrator.pause("orders", CONSUMPTION, members=[0])
        row = administrator.statistics("orders")
    assert len(row.paused) == 2
    sample: Any = type("Sample", (), {"destinations": [row]})
    assert [value.labels for value in paused_metrics(sample)] == [("orders", "0", CONSUMPTION)]


def test_wrong_pause_of_a_server_is_refused(root: str, jmsq: Jmsq) -> None:
    """T14, C14: by name, before anything changes; and a damaged file can be mended."""
    on_servers(root)
    domain = Domain(root)
    with pytest.raises(DomainError, match="no server 'z'"):
        pause_server(domain, "z")
    with pytest.raises(OptionError, match="operations are"):
        pause_server(domain, "a", ["sleep"])
    assert "one of the two" in jmsq("pause", code=2).stderr
    assert "one of the two" in jmsq("pause", "orders", "--server", "a", code=2).stderr
    assert "leave --member out" in jmsq("resume", "--server", "a", "--member", "0", code=2).stderr
    assert "jmsq pause --server home" in jmsq("server", "stop", "home", code=1).stderr
    pause_server(domain, "a", [PRODUCTION])
    Path(root, "_jmsq/paused-servers/a").write_text("[")
    with pytest.raises(DomainError, match="jmsq resume --server a"):
        pause_server(domain, "a", [PRODUCTION])
    assert resume_server(domain, "a").changed == ("orders", "prices")
    assert paused(root, "orders") == []


def test_pause_of_a_server_is_refused_by_releases_that_do_not_know_it(root: str) -> None:
    """T14, C16: as any later scope is by this one."""
    on_servers(root)
    pause_server(Domain(root), "a", [CONSUMPTION])
    pauses = Domain(root).log("orders").refresh().destination.pauses
    (stored,) = pauses.to_json()
    assert stored["scope"] == "server"
    assert type(pauses).from_json([stored]) == pauses
    with pytest.raises(FormatVersionError, match="install a later"):
        type(pauses).from_json([{**stored, "scope": "cluster"}])
