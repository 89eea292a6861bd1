"""Backup and restore on every store: what a restored consumer finds, and what is refused (C19)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import spark_jms
from spark_jms.admin import backup as backups
from spark_jms.admin.backup import MANIFEST, back_up, restore
from spark_jms.admin.backup_files import RECORDS
from spark_jms.claims.upkeep.views import opened_store
from spark_jms.cli.__main__ import cli
from spark_jms.client import Context
from spark_jms.errors import BackupError, DomainError, FormatVersionError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep import purge as purging
from spark_jms.log.upkeep.clean_up import clean_up
from spark_jms.store import ForeignOwnerError, StoreInUseError
from spark_jms.testing import memory_domain
from tests.harness.services.daemons import Daemons

Received = dict[str, tuple[bool, int]]  # text -> redelivered, delivery count


def backed_up(root: str, target: Path) -> None:
    domain = Domain(root)
    with opened_store(domain) as store:
        back_up(domain, store, str(target))


def drained(root: str, destination: str, **named: Any) -> Received:
    with spark_jms.connect(root) as context:
        consumer = context.consumer(destination, **named)
        found: Received = {}
        while message := consumer.receive(timeout=0.2):
            found[message.text] = (message.redelivered, message.delivery_count)
            message.acknowledge()
        return found


def send(context: Context, destination: str, *texts: str) -> None:
    context.producer(destination).send_many({"text": text} for text in texts)


def acknowledge(context: Context, destination: str, *texts: str, **named: Any) -> None:
    with context.consumer(destination, prefetch=1, **named) as consumer:
        for text in texts:
            message = consumer.receive(timeout=5)
            assert message is not None
            assert message.text == text
            message.acknowledge()


def test_restored_domain_has_the_unfinished_messages_flagged(client_root: str, tmp_path: Path) -> None:
    """C19: queue and topic; finished messages stay finished, sequences and the acknowledgement table continue."""
    with spark_jms.connect(client_root) as context:
        context.consumer("prices", subscription="billing").close()
        send(context, "orders", "a", "b", "c", "d")
        send(context, "prices", "p", "q")
        acknowledge(context, "orders", "a", "b")
        acknowledge(context, "prices", "p", subscription="billing")
        backed_up(client_root, tmp_path / "backup")
        acknowledge(context, "orders", "c")
    restored = tmp_path / "restored"
    restore(str(tmp_path / "backup"), str(restored), "file")
    assert drained(str(restored), "orders") == {"c": (True, 2), "d": (True, 2)}
    assert drained(str(restored), "prices", subscription="billing") == {"q": (True, 2)}
    with spark_jms.connect(restored) as context:
        send(context, "orders", "e")
        message = context.consumer("orders").receive(timeout=5)
        assert message is not None
        assert (message.text, message.sequence, message.redelivered) == ("e", 5, False)
        message.acknowledge()
    rows = CliRunner().invoke(cli, ["acks", "orders", "--root", str(restored), "--json"])
    assert sum(row["messages"] for row in json.loads(rows.output)["rows"]) == 5


@pytest.mark.parametrize(
    ("source", "target"), [("replicated", "replicated"), ("replicated", "file"), ("file", "replicated")]
)
def test_backup_moves_between_replicated_and_file_store(
    source: str, target: str, replicated: Daemons, tmp_path: Path
) -> None:
    """C19, R2: record sets leave the memory of the daemons, and come back into another store of theirs."""
    old, new = (replicated.uri() if store == "replicated" else store for store in (source, target))
    with memory_domain(old, orders="queue", prices="topic") as root, spark_jms.connect(root) as context:
        context.consumer("prices", subscription="billing").close()
        send(context, "orders", "a", "b", "c")
        send(context, "prices", "p", "q")
        acknowledge(context, "orders", "a")
        acknowledge(context, "prices", "p", subscription="billing")
        backed_up(root, tmp_path / "backup")
    restored = str(tmp_path / "restored")
    restore(str(tmp_path / "backup"), restored, new)
    assert Domain(restored).store == new
    assert drained(restored, "orders") == {"b": (True, 2), "c": (True, 2)}
    assert drained(restored, "prices", subscription="billing") == {"q": (True, 2)}


def test_backup_between_store_and_tables_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C19: the window between the two: messages are sent, finished, purged, and their files deleted; a subscription appears."""
    with memory_domain("file", orders="queue", prices="topic") as root, spark_jms.connect(root) as context:
        send(context, "orders", "a", "b")
        send(context, "orders", "c")
        read = backups.stored_records

        def then_others_work(store: Any, server: str) -> Any:
            records = read(store, server)
            acknowledge(context, "orders", "a", "b")
            send(context, "orders", "d")
            context.consumer("prices", subscription="late").close()
            send(context, "prices", "p")
            log = Domain(root).log("orders")
            assert purging.purge(log, lambda name, member, picks: picks.last <= 2).purged_files == 1
            clean_up(log, now=now_ms() + 10 * log.snapshot.destination.file_grace_ms)
            return records

        monkeypatch.setattr(backups, "stored_records", then_others_work)
        backed_up(root, tmp_path / "backup")
    restored = str(tmp_path / "restored")
    restore(str(tmp_path / "backup"), restored)
    assert drained(restored, "orders") == {"c": (True, 2), "d": (True, 2)}
    assert drained(restored, "prices", subscription="late") == {"p": (True, 2)}


def test_files_deleted_during_the_copy_are_read_from_a_newer_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C19, C13: the backup takes longer than fileGrace."""
    with memory_domain("file", orders="queue") as root, spark_jms.connect(root) as context:
        send(context, "orders", "a")
        send(context, "orders", "b")
        copy, copied = backups.copy, []

        def slow_copy(source: Any, path: str, target: Any, to: str) -> Any:
            if not copied and to.startswith("domain/orders"):
                log = Domain(root).log("orders")
                assert purging.purge(log, lambda name, member, picks: picks.last <= 1).purged_files == 1
                clean_up(log, now=now_ms() + 10 * log.snapshot.destination.file_grace_ms)
            copied.append(path)
            return copy(source, path, target, to)

        monkeypatch.setattr(backups, "copy", slow_copy)
        backed_up(root, tmp_path / "backup")
    restore(str(tmp_path / "backup"), str(tmp_path / "restored"))
    assert drained(str(tmp_path / "restored"), "orders") == {"b": (True, 2)}


def cut_manifest(backup: Path) -> None:
    (backup / MANIFEST).write_bytes((backup / MANIFEST).read_bytes()[:-20])


def change_records(backup: Path) -> None:
    (backup / RECORDS).write_bytes((backup / RECORDS).read_bytes() + b"\n")


def change_data(backup: Path) -> None:
    file = next((backup / "domain" / "orders").glob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-1] + b"x")


@pytest.mark.parametrize(
    ("damage", "error", "match"),
    [
        (lambda backup: (backup / MANIFEST).unlink(), BackupError, "not a complete backup"),
        (cut_manifest, BackupError, "backup.json is damaged"),
        (change_records, BackupError, "records.jsonl has .* use another backup"),
        (change_data, BackupError, "parquet has .* use another backup"),
        (
            lambda backup: (backup / MANIFEST).write_text('{"formatVersion": 99}'),
            FormatVersionError,
            "a newer spark-jms wrote",
        ),
    ],
)
def test_damaged_backup_is_refused_and_makes_no_domain(
    tmp_path: Path, damage: Callable[[Path], Any], error: type[Exception], match: str
) -> None:
    """C19: and the restore can be repeated with --force."""
    backup, restored = tmp_path / "backup", tmp_path / "restored"
    with memory_domain("file", orders="queue") as root, spark_jms.connect(root) as context:
        send(context, "orders", "a")
        backed_up(root, backup)
        backed_up(root, tmp_path / "whole")
    damage(backup)
    with pytest.raises(error, match=match):
        restore(str(backup), str(restored))
    with pytest.raises(DomainError):
        Domain(str(restored))
    restore(str(tmp_path / "whole"), str(restored), force=True)
    assert drained(str(restored), "orders") == {"a": (True, 2)}


def test_places_that_are_not_empty_are_refused(tmp_path: Path) -> None:
    """C19: the target of a backup, the root of a restore, a store with other records, and a domain in use."""
    with memory_domain("file", orders="queue") as root, spark_jms.connect(root) as context:
        send(context, "orders", "a")
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "x").write_text("x")
        for target, match in (("full", "not empty"), (f"{root}/backup", "inside the domain")):
            with pytest.raises(BackupError, match=match):
                backed_up(root, tmp_path / target)
        backed_up(root, tmp_path / "backup")
        context.consumer("orders").receive(timeout=5)
        for force, match in ((False, "into an empty place, or --force"), (True, "is used by")):
            with pytest.raises(BackupError, match=match):
                restore(str(tmp_path / "backup"), root, force=force)
        assert Domain(root).destinations() == ["orders"]
    with memory_domain("memory://backup-other", jobs="queue") as root, spark_jms.connect(root) as context:
        context.consumer("jobs").receive(timeout=0)
        with pytest.raises(StoreInUseError, match=r"holds members.*name an empty store"):
            restore(str(tmp_path / "backup"), str(tmp_path / "restored"), "memory://backup-other")
    other = f"jdbc:sqlite:///{tmp_path}/other.db"
    with memory_domain(other, jobs="queue") as root, spark_jms.connect(root) as context:
        context.consumer("jobs").receive(timeout=0)
    with pytest.raises(ForeignOwnerError, match="One store serves one domain"):
        restore(str(tmp_path / "backup"), str(tmp_path / "restored"), other, force=True)


def test_backup_and_restore_commands(tmp_path: Path) -> None:
    """C14, C19: what they print, with --json and --dry-run too."""
    backup, restored = str(tmp_path / "backup"), str(tmp_path / "restored")
    with memory_domain("file", orders="queue") as root, spark_jms.connect(root) as context:
        send(context, "orders", "a", "b")
        done = CliRunner().invoke(cli, ["backup", backup, "--root", root])
    assert done.exit_code == 0, done.output
    assert "orders: version 1, 2 messages, 2 unfinished" in done.output
    assert "is complete" in done.output
    arguments = ["restore", backup, "--root", restored]
    dry = CliRunner().invoke(cli, [*arguments, "--dry-run"])
    assert (dry.exit_code, Path(restored).exists()) == (0, False), dry.output
    assert "would be restored: 1 destination(s), 2 unfinished message(s)" in dry.output
    done = CliRunner().invoke(cli, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert (report["root"], report["destinations"][0]["backlog"]) == (restored, 2)
    again = CliRunner().invoke(cli, arguments)
    assert again.exit_code == 1
    assert "is not empty" in again.output
    forced = CliRunner().invoke(cli, [*arguments, "--force"])
    assert forced.exit_code == 0, forced.output
    assert "go first" in forced.output
    assert drained(restored, "orders") == {"a": (True, 2), "b": (True, 2)}
