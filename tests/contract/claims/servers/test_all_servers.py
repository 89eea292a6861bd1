"""Destinations on all servers of a domain, and servers that are removed (D1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import spark_jms
from spark_jms import connect
from spark_jms.admin.servers import list_servers, pause_server, remove_server, stop_server
from spark_jms.claims.upkeep import views
from spark_jms.cli.__main__ import cli
from spark_jms.errors import DomainError, MemberRemovalError, ModuleFileError
from spark_jms.log.destinations import all_servers
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.servers import Servers
from spark_jms.module import declare, load_module
from tests.harness.domains.servers import Away

LIMIT_S = 30
ALL = {"kind": "distributed-queue", "servers": "all"}


def applied(root: str, *servers: str, **destinations: Any) -> dict[str, str]:
    """What `apply` says of each destination."""
    module = {
        "servers": {name: {"store": "file"} for name in servers},
        "destinations": destinations or {"x": {"kind": "queue"}},
    }
    return {change.destination: change.what for change in spark_jms.apply(root, module)}


def servers_of(root: str, name: str) -> list[str]:
    return Domain(root).log(name).refresh().destination.servers_in_use()


def removed(root: str, server: str) -> list[str]:
    domain = Domain(root)
    with views.opened_store(domain) as store:
        return remove_server(domain, store, server)


def test_destination_on_all_servers_follows_those_that_are_added(root: str) -> None:
    """D1: as a uniform distributed destination that is targeted to a cluster; also when the module that adds one does not name it.
    One that names its servers stays on them."""
    named = {"kind": "distributed-queue", "servers": ["a"]}
    assert applied(root, "a", "b", orders=ALL, named=named) == {"orders": "created", "named": "created"}
    assert servers_of(root, "orders") == ["a", "b"]
    assert applied(root, "a", "b", orders=ALL)["orders"] == "unchanged"
    assert applied(root, "c") == {"x": "created", "orders": "changed", "named": "left"}
    assert servers_of(root, "orders") == ["a", "b", "c"]
    assert servers_of(root, "named") == ["a"]
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send_many([{"text": "x"}] * 6)
        assert {message.member for message in context.browser("orders")} == {0, 1, 2}
    declared = declare(Domain(root).log("orders").refresh().destination)
    assert declared["servers"] == "all"
    (again,) = load_module({"destinations": {"orders": declared}}).destinations
    assert again.servers == ("all",)


def test_domain_without_servers_has_home_alone(root: str) -> None:
    """D1: until the first one is added, and its member is empty."""
    applied(root, orders=ALL)
    assert servers_of(root, "orders") == ["home"]
    applied(root, "a")
    assert servers_of(root, "orders") == ["a"]


def test_running_consumer_has_a_server_that_was_removed_and_added_again(root: str) -> None:
    """D1, M10: its store is another one, which `apply` makes also in a process that had the first one open."""
    applied(root, "a", "b", orders=ALL)
    with connect(root) as context, context.consumer("orders", acknowledge="auto") as consumer:
        for life in ("first", "second"):
            context.producer("b@orders").send(text=life)
            message = consumer.receive(LIMIT_S)
            assert message is not None
            assert message.text == life
            assert consumer.receive(0) is None
            assert removed(root, "b") == ["orders"]
            applied(root, "a", "b", orders=ALL)
            assert Path(root, "_jmsq", "stores", "b").is_dir()
        assert "answers" in [one.reason for one in list_servers(Domain(root)) if one.server == "b"]


def test_server_is_removed_when_it_is_empty(root: str) -> None:
    """D1: those that follow leave it; nothing of it is left, and one that gets its name later begins anew in all."""
    applied(root, "a", "b", orders=ALL, prices={"kind": "distributed-topic", "servers": "all"})
    pause_server(Domain(root), "b", ["consumption"])
    assert removed(root, "b") == ["orders", "prices"]
    domain = Domain(root)
    assert [row.server for row in list_servers(domain)] == ["home", "a"]
    assert not [info.path for info in domain.storage.list("_jmsq") if "/b/" in f"{info.path}/"]
    assert servers_of(root, "orders") == ["a"]
    applied(root, "a", "b", orders=ALL)
    assert Domain(root).log("orders").refresh().destination.member_ids == (0, 2)
    assert not Domain(root).log("orders").snapshot.destination.pauses


@pytest.mark.parametrize("command", ["pause", "stop"])
def test_pause_or_stop_that_meets_a_removal_is_not_left_behind(
    root: str, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """D1, T14: it says that there is no such server, and one that gets its name later is neither paused nor stopped."""
    applied(root, "a", "b", orders=ALL)
    write = getattr(Servers, command)

    def late(self: Servers, *arguments: Any) -> None:
        removed(root, "b")
        write(self, *arguments)

    monkeypatch.setattr(Servers, command, late)
    with pytest.raises(DomainError, match="has no server 'b'"):
        {"pause": pause_server, "stop": stop_server}[command](Domain(root), "b")
    applied(root, "a", "b", orders=ALL)
    with connect(root, housekeeping=False) as context:
        assert context.producer("b@orders").send(text="x").member == 2


def test_server_with_messages_is_refused_and_drains(root: str) -> None:
    """D1: by name; its member gets nothing new, and the repeated command removes it when it is empty."""
    applied(root, "a", "b", orders=ALL)
    with connect(root, housekeeping=False) as context:
        context.producer("b@orders").send(text="there")
        with pytest.raises(MemberRemovalError, match="orders .* member 1 still holds messages.*then repeat this"):
            removed(root, "b")
        context.producer("orders").send_many([{"text": str(n)} for n in range(4)])
        assert {message.member for message in context.browser("orders") if message.text != "there"} == {0}
        with context.consumer("b@orders", acknowledge="auto") as consumer:
            received = consumer.receive(30)
            assert received is not None
            assert received.text == "there"
    assert removed(root, "b") == ["orders"]
    assert servers_of(root, "orders") == ["a"]


def test_removal_that_was_refused_is_taken_back_by_apply(root: str) -> None:
    """D1: the member takes messages again."""
    applied(root, "a", "b", orders=ALL)
    with connect(root, housekeeping=False) as context:
        context.producer("b@orders").send(text="there")
        with pytest.raises(MemberRemovalError):
            removed(root, "b")
        applied(root, "a", "b", orders=ALL)
        context.producer("orders").send_many([{"text": str(n)} for n in range(4)])
        assert {message.member for message in context.browser("orders") if message.text != "there"} == {0, 1}


def test_server_that_a_destination_names_is_not_removed(root: str) -> None:
    """D1: nor `home`, nor one that is not there, nor one whose store is away while something follows it."""
    applied(root, "a", "b", orders=ALL, named={"kind": "queue", "servers": ["b"]})
    with pytest.raises(DomainError, match="because named name"):
        removed(root, "b")
    with pytest.raises(DomainError, match="home is the domain's own store"):
        removed(root, "home")
    with pytest.raises(DomainError, match="no server 'c'"):
        removed(root, "c")
    with connect(root, housekeeping=False) as context:
        context.producer("a@orders").send(text="x")
    with Away(root, "a"), pytest.raises(Exception, match="a"):
        removed(root, "a")
    assert servers_of(root, "orders") == ["a", "b"]
    assert [row.server for row in list_servers(Domain(root))] == ["home", "a", "b"]


def test_interrupted_removal_is_completed_by_the_next(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """D1: and until then no destination comes to the server."""
    applied(root, "a", "b", orders=ALL)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(all_servers, "server_store_uri", killed)
        with pytest.raises(KeyboardInterrupt):
            removed(root, "b")
    assert servers_of(root, "orders") == ["a"]
    with pytest.raises(DomainError, match="server b .* is being removed"):
        applied(root, "a", "b", orders=ALL)
    with pytest.raises(DomainError, match="names server b, which is being removed"):
        applied(root, "a", other={"kind": "queue", "servers": ["b"]})
    assert removed(root, "b") == []
    assert [row.server for row in list_servers(Domain(root))] == ["home", "a"]


def test_destination_that_comes_to_a_server_while_it_is_removed_is_found(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1: by the removal, or by the `apply`."""
    applied(root, "a", "b", orders=ALL)
    late = {"kind": "queue", "servers": ["b"]}
    check, calls = all_servers.check_not_named, []

    def beside(domain: Domain, server: str) -> None:
        calls.append(server)
        check(domain, server)
        if len(calls) == 1:
            applied(root, "a", late=late)

    monkeypatch.setattr(all_servers, "check_not_named", beside)
    with pytest.raises(DomainError, match="because late name"):
        removed(root, "b")
    monkeypatch.undo()
    assert not Domain(root).servers.entry("b").removed
    apply_destinations = spark_jms.log.destinations.declarations.apply_destinations

    def after(*given: Any) -> Any:
        changes = apply_destinations(*given)
        entry = Domain(root).servers.entry("b")
        Domain(root).servers.put("b", all_servers.replace(entry, removed=True))
        return changes

    monkeypatch.setattr(spark_jms.log.destinations.declarations, "apply_destinations", after)
    with pytest.raises(DomainError, match="server b is being removed, and destination other came to it"):
        applied(root, "a", other=late)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "queue", "servers": "all"},
        {"kind": "distributed-queue", "servers": ["all", "a"]},
        {"kind": "distributed-queue", "servers": "all", "routing": "weighted", "weights": [1]},
        {"kind": "distributed-queue", "servers": "some"},
    ],
)
def test_wrong_use_of_all_is_refused(root: str, wrong: dict[str, Any]) -> None:
    """D1, C3"""
    with pytest.raises(ModuleFileError, match=r"destinations\.orders\.servers is .*all"):
        applied(root, "a", orders=wrong)
    with pytest.raises(ModuleFileError, match="stands for all servers"):
        applied(root, "all", orders=ALL)


def test_command_removes_a_server(root: str) -> None:
    """D1, C14"""
    applied(root, "a", "b", orders=ALL)

    def jmsq(*arguments: str) -> Any:
        return CliRunner().invoke(cli, [*arguments, "--root", root])

    with connect(root, housekeeping=False) as context:
        context.producer("b@orders").send(text="x")
    refused = jmsq("server", "remove", "b")
    assert refused.exit_code == 1
    assert "still holds messages" in refused.stderr
    assert jmsq("purge", "b@orders", "--yes").exit_code == 0
    assert jmsq("server", "remove", "b").stdout == "server b is removed; changed: orders\n"
    assert not Path(root, "_jmsq/stores/b").exists()
    assert "no server 'b'" in jmsq("server", "remove", "b").stderr
