"""Clean-up: removed data files after the grace, the beginning of the log, files of dead senders (C13)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from attrs import evolve
from deltalake import DeltaTable

from spark_jms.errors import UnreadableTableError
from spark_jms.log.tables.checkpoints import LOG, Checkpoint, LogListing, checkpoint_path, commit_path
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.storage import LocalStorage, now_ms
from spark_jms.log.upkeep import clean_up as log_clean_up
from spark_jms.log.upkeep import housekeeping
from spark_jms.log.upkeep.clean_up import CleanUp, checkpoint, clean_up, first_checkpoint
from spark_jms.log.upkeep.compaction import compact
from spark_jms.log.upkeep.housekeeping import HousekeepingRounds
from tests.contract.log.tables.test_delta_log import ORDERS, fresh, local_table, put, staged, texts

MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
GRACE_MS = HOUR_MS


@pytest.fixture
def table(tmp_path: Path) -> DeltaLog:
    return DeltaLog(local_table(tmp_path / "domain", evolve(ORDERS, members=1, kind="queue")), "orders")


def age(table: DeltaLog, path: str, by_ms: int) -> None:
    file = Path(table.storage.uri) / path
    when = file.stat().st_mtime - by_ms / 1000
    os.utime(file, (when, when))


def data_files(table: DeltaLog) -> set[str]:
    return {info.path for info in table.storage.list("") if info.path.endswith(".parquet") and LOG not in info.path}


def compacted(table: DeltaLog, sends: int = 10) -> set[str]:
    """Files that left the log now."""
    before = set(table.refresh().files)
    for i in range(sends):
        put(table, f"{i}")
    compact(table)
    return (before | data_files(table)) - set(table.refresh().files)


# -- removed data files -------------------------------------------------------------------------------------------------------
def test_removed_files_are_deleted_after_the_grace(table: DeltaLog) -> None:
    """C13: not before, whichever process cleans up then, and never an active file."""
    removed = compacted(table)
    now = now_ms()
    clean_up(table, now=now + GRACE_MS - MINUTE_MS)
    assert removed < data_files(table)
    assert clean_up(fresh(table), now=now + GRACE_MS + MINUTE_MS).deleted_files >= len(removed)
    assert data_files(table) == set(table.refresh().files)
    assert not [info.path for info in table.storage.list("_removed")]


def test_grace_counts_from_the_removal_in_any_later_process(table: DeltaLog) -> None:
    """C13: a file written long ago and removed now stays for the grace, although the log that tells it is deleted and a new
    process cleans up from a Delta checkpoint."""
    for i in range(10):
        put(table, f"{i}")
    for path in table.refresh().files:
        age(table, path, 2 * DAY_MS)
    removed = set(table.snapshot.files)
    compact(table)
    clean_up(table)
    for _ in range(2):
        checkpoint(table, every=1)
        put(table, "more")
    for version in range(table.snapshot.version - 1):
        table.storage.delete(commit_path(version))
    clean_up(fresh(table))
    assert removed < data_files(table)
    clean_up(fresh(table), now=now_ms() + GRACE_MS + MINUTE_MS)
    assert not removed & data_files(table)


def test_files_removed_before_this_version_are_kept_for_the_grace(table: DeltaLog) -> None:
    """C13: an earlier version of spark-jms, or delta-rs, kept tombstones in the Delta checkpoint."""
    for i in range(10):
        put(table, f"{i}")
    for path in table.refresh().files:
        age(table, path, 2 * DAY_MS)
    removed = set(table.snapshot.files)
    compact(table)
    DeltaTable(table.storage.uri).create_checkpoint()
    put(table, "more")
    for version in range(table.snapshot.version):
        table.storage.delete(commit_path(version))
    clean_up(fresh(table))
    assert removed < data_files(table)
    clean_up(fresh(table), now=now_ms() + GRACE_MS + MINUTE_MS)
    assert not removed & data_files(table)


def test_a_round_costs_what_it_deletes(table: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """C13: clean-up lists no folder but in its first round and once an hour, and reads each commit once."""
    clean = CleanUp(table)
    clean.run()
    listed, read = [], []
    list_files, get = LocalStorage.list, LocalStorage.get

    def listing(self: LocalStorage, prefix: str) -> object:
        listed.append(prefix)
        return list_files(self, prefix)

    def reading(self: LocalStorage, path: str) -> bytes | None:
        read.append(path)
        return get(self, path)

    compacted(table)
    monkeypatch.setattr(LocalStorage, "list", listing)
    monkeypatch.setattr(LocalStorage, "get", reading)
    clean.run()
    assert len([path for path in read if path.endswith(".json")]) <= 13
    read.clear()
    for _ in range(5):
        clean.run()
    assert len(read) <= 5 * 3
    assert listed == []
    clean.run(now=now_ms() + GRACE_MS + MINUTE_MS)
    assert listed[0] == LOG
    assert data_files(table) == set(table.refresh().files)


def test_files_of_dead_senders_are_deleted(table: DeltaLog) -> None:
    """C13: an hour after they were written, and files that wait for the grace are not taken for them."""
    (dead,) = staged(table, ["never sent"])
    removed = compacted(table) - {dead.path}
    for path in (dead.path, *removed):
        age(table, path, 2 * HOUR_MS)
    clean_up(table)
    assert not table.storage.exists(dead.path)
    assert removed < data_files(table)


# -- the log ------------------------------------------------------------------------------------------------------------------
def with_checkpoints(table: DeltaLog, hours: list[int]) -> None:
    """A checkpoint at each version from 1 on, as many hours old."""
    for number, old in enumerate(hours, 1):
        put(table, f"{number}")
        checkpoint(table, every=1)
        age(table, commit_path(number), old * HOUR_MS)
        age(table, checkpoint_path(number), old * HOUR_MS)


def test_log_begins_at_a_checkpoint_older_than_its_retention(table: DeltaLog) -> None:
    """C13: a reader finds every version of the last day, and the table the same as before."""
    with_checkpoints(table, [50, 40, 25, 20, 1])
    expected = texts(table)
    clean_up(table)
    listing = LogListing.of(table.storage)
    assert listing.commits == (3, 4, 5)
    assert [found.version for found in listing.checkpoints] == [3, 4, 5]
    assert texts(fresh(table)) == texts(table) == expected
    assert DeltaTable(table.storage.uri, version=3).version() == 3  # time travel within the retention


def test_number_of_log_files_is_bounded(table: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """C13: beyond the last versions, and a minute, log files go although they are young."""
    monkeypatch.setattr(log_clean_up, "KEPT_VERSIONS", 20)
    clean, most = CleanUp(table), 0
    for i in range(100):
        put(table, f"{i}")
        if i % 5 == 0:
            checkpoint(table, every=1)
            clean.run(now=now_ms() + i * MINUTE_MS)
            listing = LogListing.of(table.storage)
            most = max(most, len(listing.commits) + len(listing.checkpoints))
    assert 20 < most <= 20 + 10 + 10
    assert len(texts(fresh(table))) == 100
    assert LogListing.of(table.storage).commits[-1] == 100


def test_checkpoints_of_every_round_are_deleted(table: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """C13: rounds write a Delta checkpoint much more often than they clean up; none is left behind the log's beginning."""
    monkeypatch.setattr(log_clean_up, "KEPT_VERSIONS", 20)
    monkeypatch.setattr(log_clean_up, "KEPT_MS", -1)
    monkeypatch.setattr(housekeeping, "checkpoint", lambda log, report: checkpoint(log, report, every=1))
    clock = [0.0]
    rounds = HousekeepingRounds({"messages": table}, lambda *_: False, lambda: clock[0])
    for i in range(60):
        put(table, f"{i}")
        clock[0] += 6.0
        rounds.round()
    assert rounds.monitor.health.failures == {}
    listing = LogListing.of(table.storage)
    assert len(listing.commits) <= 20 + 22
    assert min(found.version for found in listing.checkpoints) >= listing.commits[0]


def test_log_is_kept_when_its_new_beginning_cannot_be_read(table: DeltaLog) -> None:
    """C13: a damaged checkpoint is no reason to delete what could replace it."""
    with_checkpoints(table, [50, 40])
    whole = table.storage.get(checkpoint_path(2)) or b""
    table.storage.put(checkpoint_path(2), whole[:100])
    age(table, checkpoint_path(2), 40 * HOUR_MS)
    with pytest.raises(UnreadableTableError, match="0002.checkpoint.parquet cannot be read"):
        clean_up(table)
    assert LogListing.of(table.storage).commits == (0, 1, 2)


def test_log_without_checkpoint_never_expires(table: DeltaLog) -> None:
    """C13"""
    for i in range(3):
        put(table, f"{i}")
    for version in range(4):
        age(table, commit_path(version), 90 * DAY_MS)
    clean_up(table)
    assert LogListing.of(table.storage).commits == (0, 1, 2, 3)


def test_first_checkpoint_rule() -> None:
    """C13: the newest one that is older than the retention, or far enough behind and a minute old."""
    now = 10 * DAY_MS

    def begins_at(newest: int, *ages: tuple[int, int]) -> int | None:
        found = first_checkpoint([Checkpoint(v, (), now - old) for v, old in ages], newest, DAY_MS, now)
        return found and found.version

    assert begins_at(9000) is None
    assert begins_at(9000, (50, 2 * DAY_MS), (100, DAY_MS + 1), (200, DAY_MS)) == 200  # 8,800 versions behind
    assert begins_at(5000, (50, 2 * DAY_MS), (100, DAY_MS + 1), (200, DAY_MS)) == 100
    assert begins_at(9000, (3999, 2 * MINUTE_MS), (4000, 2 * MINUTE_MS)) == 3999
    assert begins_at(9000, (3000, 2 * MINUTE_MS), (3999, MINUTE_MS)) == 3000
    assert begins_at(90, (50, HOUR_MS)) is None
