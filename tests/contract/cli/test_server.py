"""`jmsq server`, and the other commands while a server is away (D1, M10, C14)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spark_jms
from spark_jms.admin.servers import list_servers
from spark_jms.claims.servers import stores
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.servers import ServerEntry
from spark_jms.settings.table import MissingExtraError
from spark_jms.store import StoreError
from spark_jms.store.errors import shown_uri
from spark_jms.store.kinds import opening
from spark_jms.testing.domain import wait_until
from tests.harness.domains.commands import Jmsq, files_of
from tests.harness.domains.servers import Away


def test_servers_are_listed_and_one_that_is_away_named(servers: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """D1, M10, C14: each server with its members and whether its store answers; while one is away, `stat` still tells about the
    others, and counts everything in the table of the away one as unfinished."""
    jmsq("send", "orders", "--text", "x", "--count", "4")
    rows = js("server", "list")
    assert [(row["server"], row["members"], row["away"]) for row in rows] == [
        ("home", ["plain/0"], ""),
        ("a", ["orders/0"], ""),
        ("b", ["orders/1"], ""),
    ]
    jmsq("receive", "orders", "--max", "4", "--timeout", "10s")
    with Away(servers, "b"):
        assert "StoreNotFoundError" in js("server", "list")[2]["away"]
        (shown,) = js("stat", "orders")["destinations"]
        assert [(row["member"], row["backlog"], row["away"]) for row in shown["subscriptions"]] == [
            (0, 0, False),
            (1, 2, True),
        ]
        assert not js("claims")
    assert sum(row["backlog"] for row in js("stat", "orders")["destinations"][0]["subscriptions"]) == 0
    assert [row["state"] for row in js("server", "list")] == ["up", "up", "up"]
    assert js("server", "stop", "b") == {"server": "b", "state": "down", "changed": ["orders"]}
    stopped = js("server", "list")[2]
    assert (stopped["state"], stopped["stopped"] is None, stopped["lapsed"]) == ("down", False, None)
    assert "stopped since" in jmsq("server", "list").stdout
    assert "server b is up; changed: orders" in jmsq("server", "start", "b").stdout
    assert "cannot be stopped" in jmsq("server", "stop", "home", code=1).stderr
    jmsq("drop", "orders", "--yes")
    assert "orders" not in jmsq("list").stdout


def test_starting_a_server_that_was_never_stopped_changes_nothing(servers: str, jmsq: Jmsq) -> None:
    """D4, C14: also in a domain in which no server was stopped before."""
    assert "server b is up; changed: nothing" in jmsq("server", "start", "b").stdout


def test_server_that_is_away_is_listed_as_down(servers: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """D4, C14: the list has the state, the reason with its beginning, and the age of the lease."""
    with spark_jms.connect(servers, housekeeping=False) as context, context.consumer("orders"):
        wait_until(lambda: js("server", "list")[2]["lease_age_s"] is not None)
        Away(servers, "b").__enter__()  # to the end of the test
        wait_until(lambda: js("server", "list")[2]["state"] == "down")
    row = js("server", "list")[2]
    assert row["stopped"] is None
    assert row["lapsed"] is not None
    assert "StoreNotFoundError" in row["away"]
    shown = jmsq("server", "list").stdout
    assert "away since" in shown
    assert "s old" in shown


def test_server_list_tells_servers_from_an_away_home(servers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C14, M10: the servers are asked although the domain's own store is away."""
    real, domain = opening.open_store, Domain(servers)

    def opened(uri: str, **more: Any) -> Any:
        if uri == domain.store_uri:
            raise StoreError("home is away")
        return real(uri, **more)

    monkeypatch.setattr(stores, "open_store", opened)
    away = {row.server: row.away for row in list_servers(domain)}
    assert "home is away" in away["home"]
    assert away["b"] == ""


def test_passwords_of_stores_are_not_shown(servers: str, jmsq: Jmsq) -> None:
    """D1, C14: neither the list nor an error about a store's URI has a password in it."""
    secret = "s3cret"
    uri = f"jdbc:sqlite://u:{secret}@localhost{servers}/x.db?sslpassword={secret}"
    Domain(servers).servers.add("p", ServerEntry(uri))
    said = jmsq("server", "list")
    assert "u:***@localhost" in said.stdout
    module = Path(servers) / "module.yaml"
    module.write_text(f"destinations: {{q: {{kind: queue}}}}\nservers: {{p: {{store: '{uri}2'}}}}\n")
    changed = jmsq("apply", str(module), code=1)
    assert "cannot be changed" in changed.stderr
    module.write_text(f"destinations: {{q: {{kind: queue}}}}\nservers: {{p: {{store: 'mysql://u:{secret}@h/d'}}}}\n")
    wrong = jmsq("apply", str(module), code=1)
    assert "mysql://u:***@h/d" in wrong.stderr
    for one in (said, changed, wrong):
        assert secret not in one.stdout + one.stderr


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("jdbc:postgresql://u:p@h:5/d?password=x&a=b", "jdbc:postgresql://u:***@h:5/d?password=***&a=b"),
        ("postgresql://u:p/@q@h/d", "postgresql://u:***@h/d"),
        ("jdbc:postgresql://u@h/d", "jdbc:postgresql://u@h/d"),
        ("replicated:///a/b?store=x", "replicated:///a/b?store=x"),
        ("/plain/path", "/plain/path"),
    ],
)
def test_shown_uri_has_no_password(uri: str, shown: str) -> None:
    """C14: everything else of the URI stays."""
    assert shown_uri(uri) == shown


def test_extra_that_one_server_lacks_is_named(
    servers: str, js: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C11, C14: the others are listed although this host lacks what the store of b needs."""
    real, away = opening.open_store, Domain(servers).server_uri("b")

    def opened(uri: str, **more: Any) -> Any:
        if uri == away:
            raise MissingExtraError("postgresql", "sqlalchemy")
        return real(uri, **more)

    monkeypatch.setattr(stores, "open_store", opened)
    missing = "sqlalchemy is not installed: pip install 'spark-jms[postgresql]'"
    assert [(row["server"], row["away"]) for row in js("server", "list")] == [("home", ""), ("a", ""), ("b", missing)]


@pytest.mark.parametrize("name", ["", ".", "..", "../domain.json", "../servers/a", "a/b", "x\0", "n" * 300, "\udcff"])
def test_name_that_is_a_path_names_no_server_and_no_quota(servers: str, jmsq: Jmsq, name: str) -> None:
    """D1, T1, C14: a name is no path. The command reads, changes and blames no other file of the domain."""
    before = files_of(servers)
    for command in (("server", "stop"), ("server", "start")):
        assert f"has no server {name!r} (there are: home, a, b)" in jmsq(*command, name, code=1).stderr
    for command in (("quota", "show"), ("quota", "entries"), ("quota", "history")):
        assert f"has no quota {name!r} (there are: none)" in jmsq(*command, name, code=1).stderr
    assert files_of(servers) == before
