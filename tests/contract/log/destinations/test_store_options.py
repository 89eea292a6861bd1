"""What `apply` may change of a store, and what it refuses by name (S6, R7, C18)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import spark_jms
from spark_jms.errors import DomainError
from spark_jms.log.destinations.domain import Domain
from spark_jms.store.jdbc.settings import parse_jdbc
from spark_jms.store.replicated.store import parse_replicated

QUEUE = {"destinations": {"orders": {"kind": "queue"}}}


def applied(root: Path, store: str | None = None, **more: Any) -> Domain:
    spark_jms.apply(str(root), {**QUEUE, **({"store": store} if store else {}), **more})
    return Domain(str(root))


def test_options_of_a_database_change_and_the_positions_stay(tmp_path: Path) -> None:
    """S6: what an engine does when it loses its connection, its limits, where it serves. A process that opens the store afterwards has
    them."""
    root, uri = tmp_path / "root", f"jdbc:sqlite:///{tmp_path}/store.db"
    domain = applied(root, uri)
    with spark_jms.connect(str(root)) as context:
        context.producer("orders").send_many({"text": text} for text in "ab")
        message = context.consumer("orders", prefetch=1).receive(timeout=10)
        assert message is not None
        message.acknowledge()
        changed = f"{uri}?on_connection_loss=retry&retry_limit_s=600&engine_port=0&create_tables=false"
        assert applied(root, changed).store == changed  # while another process has it open
    assert applied(root).store == changed
    assert Domain(str(root)).id == domain.id
    with spark_jms.connect(str(root)) as context:
        message = context.consumer("orders").receive(timeout=10)
        assert message is not None
        assert message.text == "b"
        message.acknowledge()
    found = parse_jdbc(Domain(str(root)).store_uri)  # as every opening reads it
    assert (found.on_connection_loss, found.retry_limit_s, found.create_tables) == ("retry", 600.0, False)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ("jdbc:sqlite:///{0}/other.db?retry_limit_s=600", "path is '{0}/store.db', not '{0}/other.db'"),
        ("jdbc:sqlite:///{0}/store.db?prefix=MQ", "prefix is 'sib', not 'mq'"),
        ("jdbc:sqlite:///{0}/store.db?engine=mine", "engine is '[0-9a-f]+', not 'mine'"),
        ("jdbc:sqlite:///{0}/store.db?permanent_tables=2", "permanent_tables is '1', not '2'"),
        ("jdbc:postgresql://u:secret@db/x", "kind is 'sqlite', not 'postgresql'.*host is '', not 'db'"),
        ("replicated:///{0}/rs", "kind is 'sqlite', not 'replicated'"),
        ("file", "kind is 'sqlite', not 'file'"),
    ],
)
def test_what_identifies_a_store_is_refused_by_name(tmp_path: Path, changed: str, named: str) -> None:
    """S6, C18: nothing is changed, and no password is shown."""
    uri, root = f"jdbc:sqlite:///{tmp_path}/store.db", tmp_path / "root"
    servers = {"a": {"store": f"{uri[:-3]}-a.db"}}
    applied(root, uri, servers=servers)
    with pytest.raises(DomainError, match=f"cannot be changed to .* by apply .*{named.format(tmp_path)}") as refused:
        applied(root, changed.format(tmp_path))
    assert "secret" not in str(refused.value)
    assert Domain(str(root)).store == uri


def test_options_of_a_server_change_and_its_identity_does_not(tmp_path: Path) -> None:
    """S6, D1"""
    root, uri = tmp_path / "root", f"jdbc:sqlite:///{tmp_path}/a.db"
    applied(root, servers={"a": {"store": uri}})
    domain = applied(root, servers={"a": {"store": f"{uri}?statement_limit_s=5", "lease": "20 s"}})
    assert domain.servers.entry("a").store == f"{uri}?statement_limit_s=5"
    assert domain.servers.entry("a").lease_ms == 20_000
    with pytest.raises(DomainError, match=r"server a of .* cannot be changed .*path is .*take another name"):
        applied(root, servers={"a": {"store": f"jdbc:sqlite:///{tmp_path}/b.db"}})
    assert domain.servers.entry("a").store == f"{uri}?statement_limit_s=5"


def test_folder_may_be_written_in_another_way(tmp_path: Path) -> None:
    """C18: a path, a URI, a symbolic link: it is the same folder."""
    root, folder = tmp_path / "root", tmp_path / "store"
    applied(root, str(folder))
    (tmp_path / "link").symlink_to(folder)
    for same in (f"file://{folder}", str(tmp_path / "link")):
        assert applied(root, same).store == same
    with pytest.raises(DomainError, match="path is"):
        applied(root, str(tmp_path / "other"))


def test_region_size_changes_for_new_regions(tmp_path: Path, replicated: Any) -> None:
    """R7: RegionSize and LocalIndex may be changed; the store's name and its Global Directory identify it."""
    uri = replicated.uri(region_mb=4)
    domain = applied(tmp_path / "root", uri)
    changed = applied(tmp_path / "root", uri.replace("region_mb=4", "region_mb=8&localindex=1"))
    assert parse_replicated(changed.store_uri).region_bytes == 8 << 20
    assert (changed.id, parse_replicated(changed.store_uri).localindex) == (domain.id, 1)
    with pytest.raises(DomainError, match="store is .*, not 'other'"):
        applied(tmp_path / "root", f"replicated://{replicated.path}?store=other")
