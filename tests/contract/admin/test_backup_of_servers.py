"""Backup and restore of a domain whose servers have stores of their own (C19, M10)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import spark_jms
from spark_jms.admin import backup as backups
from spark_jms.admin.backup import MANIFEST, back_up, restore
from spark_jms.admin.servers import pause_server, start_server, stop_server
from spark_jms.claims.servers.stores import state_of
from spark_jms.claims.upkeep.views import opened_store, subscriptions
from spark_jms.cli.__main__ import cli
from spark_jms.errors import BackupError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.clean_up import clean_up
from spark_jms.log.upkeep.purge import purge
from spark_jms.store import StoreInUseError
from tests.harness.domains.servers import Away, applied

SERVERS = {name: {"store": "file"} for name in ("a", "b")}
MODULE: dict[str, Any] = {
    "servers": SERVERS,
    "destinations": {
        "orders": {"kind": "distributed-queue", "servers": ["home", "a", "b"]},
        "prices": {"kind": "distributed-topic", "servers": ["a", "b"], "forwarding": "replicated"},
    },
}
Received = dict[str, bool]  # text -> redelivered


@pytest.fixture
def root(tmp_path: Path) -> str:
    return applied(tmp_path, MODULE)


@pytest.fixture
def backup(tmp_path: Path) -> str:
    return str(tmp_path / "backup")


def backed_up(root: str, target: str) -> None:
    with opened_store(Domain(root)) as store:
        back_up(Domain(root), store, target)


def send(root: str, destination: str, *texts: str) -> None:
    with spark_jms.connect(root, housekeeping=False) as context:
        for text in texts:
            context.producer(destination).send(text=text)


def received(root: str, destination: str, count: int, **named: Any) -> Received:
    """So many messages, which must come; no waiting for more."""
    found: Received = {}
    with (
        spark_jms.connect(root, housekeeping=False) as context,
        context.consumer(destination, prefetch=1, **named) as consumer,
    ):
        while len(found) < count:
            message = consumer.receive(timeout=60)
            assert message is not None, f"{len(found)} of {count} came"
            assert message.text not in found
            found[message.text] = message.redelivered
            message.acknowledge()
    return found


def backlog(root: str, destination: str) -> int:
    with opened_store(Domain(root)) as store:
        return sum(row.backlog for row in subscriptions(Domain(root), store, destination))


def texts(name: str, count: int) -> list[str]:
    return [f"{name}{n}" for n in range(count)]


def test_restored_domain_has_the_positions_of_all_servers(root: str, backup: str, tmp_path: Path) -> None:
    """C19, M10: what was finished on any server stays finished, the rest comes flagged, and sequences continue."""
    with spark_jms.connect(root, housekeeping=False) as context:
        context.consumer("a@prices", subscription="billing").close()
    send(root, "orders", *texts("o", 9))
    send(root, "prices", *texts("p", 4))
    done = received(root, "orders", 5)
    known = received(root, "a@prices", 1, subscription="billing")
    backed_up(root, backup)
    received(root, "orders", 2)
    restored = str(tmp_path / "restored")
    restore(backup, restored)
    assert Domain(restored).servers.names() == ["a", "b"]
    assert (backlog(restored, "orders"), backlog(restored, "prices")) == (4, 3)
    assert received(restored, "orders", 4) == dict.fromkeys(set(texts("o", 9)) - done.keys(), True)
    assert received(restored, "a@prices", 3, subscription="billing") == dict.fromkeys(
        set(texts("p", 4)) - known.keys(), True
    )
    send(restored, "orders", "later")
    assert received(restored, "orders", 1) == {"later": False}
    assert (backlog(restored, "orders"), backlog(restored, "prices")) == (0, 0)


def test_messages_finished_between_the_stores_and_the_tables_are_flagged(
    root: str, backup: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C19, M10: others work after each store was read: they finish, send, and purge."""
    send(root, "orders", *texts("o", 12))
    read = backups.stored_records

    def then_others_work(store: Any, server: str) -> Any:
        found = read(store, server)
        received(root, "orders", 3)
        send(root, "orders", f"after-{server}")
        log = Domain(root).log("orders")
        if server == "b":
            with opened_store(Domain(root)) as every:
                snapshot = log.refresh()
                purge(log, lambda name, member, picks: state_of(every, snapshot, name, member).is_done(picks))
            clean_up(log, now=now_ms() + 10 * log.snapshot.destination.file_grace_ms)
        return found

    monkeypatch.setattr(backups, "stored_records", then_others_work)
    backed_up(root, backup)
    left = received(root, "orders", 6)
    assert backlog(root, "orders") == 0
    restored = str(tmp_path / "restored")
    restore(backup, restored)
    found = received(restored, "orders", backlog(restored, "orders"))
    assert found.keys() >= left.keys(), "nothing is lost"
    assert all(found.values())


def test_backup_needs_every_server(root: str, backup: str) -> None:
    """C19, M10: a server that is away is named, and there is no half backup."""
    send(root, "orders", *texts("o", 3))
    with Away(root, "b"):
        with pytest.raises(BackupError, match="store of server b cannot be read"):
            backed_up(root, backup)
        with pytest.raises(BackupError, match="not a complete backup"):
            restore(backup, f"{root}-restored")
    backed_up(root, backup)


def test_stopped_server_is_stopped_in_the_restored_domain(root: str, backup: str) -> None:
    """C19, D4: also for destinations that come later, until it is started there."""
    send(root, "orders", *texts("o", 6))
    stop_server(Domain(root), "b")
    backed_up(root, backup)
    start_server(Domain(root), "b")
    restored = f"{root}-restored"
    restore(backup, restored)
    domain = Domain(restored)
    assert domain.servers.stopped().keys() == {"b"}
    assert domain.log("orders").refresh().destination.down.keys() == {"b"}
    start_server(domain, "b")
    assert received(restored, "orders", 6).keys() == set(texts("o", 6))
    assert Domain(root).servers.stopped() == {}


def test_restored_servers_have_their_leases(root: str, backup: str, tmp_path: Path) -> None:
    """C19, D4: the length of a lease is a setting of the server."""
    spark_jms.apply(root, {**MODULE, "servers": {"b": {"store": "file", "lease": "3 s"}}})
    backed_up(root, backup)
    restore(backup, str(tmp_path / "again"))
    assert Domain(str(tmp_path / "again")).servers.entry("b").lease_ms == 3_000


def test_restore_names_the_stores_of_servers(root: str, backup: str, tmp_path: Path) -> None:
    """C14, C19: each may get another store; unknown, shared and used ones are refused by name."""
    send(root, "orders", *texts("o", 6))
    backed_up(root, backup)
    restored, other = str(tmp_path / "restored"), f"jdbc:sqlite:///{tmp_path}/other.db"
    run = CliRunner().invoke
    for given, said in (
        ("x=file", "has no server x"),
        (f"a={restored}/_jmsq/stores/b", "would share the store"),
        (f"a={restored}//_jmsq/stores/../stores/b", "would share the store"),
        (f"a={restored}/orders", "would be inside the root"),
        (f"a={root}/_jmsq/stores/a", "holds"),
        ("a", "must be NAME=URI"),
    ):
        send(root, "orders", "more")
        received(root, "orders", 1)  # the used one differs from the backup
        done = run(cli, ["restore", backup, "--root", restored, "--force", "--server-store", given])
        assert done.exit_code != 0
        assert said in done.output or isinstance(done.exception, StoreInUseError), done.output
    made = run(cli, ["restore", backup, "--root", restored, "--force", "--server-store", f"a={other}"])
    assert made.exit_code == 0, made.output
    assert f"server a {other}; server b file" in made.output
    assert Domain(restored).servers.entry("a").store == other
    assert received(restored, "orders", 6).keys() == set(texts("o", 6))


def test_backup_says_its_format(tmp_path: Path) -> None:
    """C18, C19: earlier versions of spark-jms, which do not know its record sets, refuse it by name."""
    root = str(tmp_path / "plain")
    spark_jms.apply(root, {"destinations": {"orders": {"kind": "queue"}}})
    backed_up(root, str(tmp_path / "copy"))
    manifest = json.loads((tmp_path / "copy" / MANIFEST).read_text())
    assert manifest["formatVersion"] == 5
    assert not manifest["servers"]


@pytest.mark.parametrize("limited", [True, False])
def test_settings_of_servers_are_restored(tmp_path: Path, backup: str, limited: bool) -> None:
    """C19, T5, T8, T14: thresholds and compression, and what is paused; the backup has them."""
    thresholds = {"messagesThresholdHigh": 10, "messagesThresholdLow": 5}
    more = {**thresholds, "storeMessageCompressionEnabled": True} if limited else {}
    root = applied(tmp_path, {**MODULE, "servers": {"a": {"store": "file", **more}, "b": {"store": "file"}}})
    if limited:
        pause_server(Domain(root), "a", ["consumption", "production"])
    backed_up(root, backup)
    assert json.loads((Path(backup) / MANIFEST).read_text())["formatVersion"] == 5
    restore(backup, str(tmp_path / "restored"))
    servers = Domain(str(tmp_path / "restored")).servers
    assert servers.entry("a") == Domain(root).servers.entry("a")
    assert bool(servers.entry("a").thresholds) is limited
    assert servers.paused() == Domain(root).servers.paused()
    assert bool(servers.paused()) is limited
    assert not servers.entry("b").thresholds
