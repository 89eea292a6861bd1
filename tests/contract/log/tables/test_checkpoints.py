"""Reading a log from its Delta checkpoints: the hint, the listing, commits of other programs (C3, C5)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from spark_jms.core.messages.ranges import Ranges
from spark_jms.errors import ForeignWriteError, UnreadableTableError
from spark_jms.log.tables.checkpoints import LOG, NEWEST_OWN_COMMIT, LogListing, commit_path, newest_checkpoint_version
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.upkeep.clean_up import checkpoint
from tests.contract.log.tables.test_delta_log import fresh, local_table, put, texts

HINT = f"{LOG}/_last_checkpoint"


@pytest.fixture
def table(tmp_path: Path) -> DeltaLog:
    return DeltaLog(local_table(tmp_path / "domain"), "orders")


def filled(table: DeltaLog, sends: int) -> None:
    for i in range(sends):
        put(table, f"{i}-a", f"{i}-b")


def clean_before(table: DeltaLog, version: int) -> None:
    for old in range(version):
        table.storage.delete(commit_path(old))


# -- commits of other programs ------------------------------------------------------------------------------------------------
def foreign_delete(table: DeltaLog) -> None:
    DeltaTable(table.storage.uri).delete("member = 0")


def foreign_write(table: DeltaLog) -> None:
    rows = DeltaTable(table.storage.uri).to_pyarrow_table()
    write_deltalake(table.storage.uri, rows.slice(0, 1), mode="append")


@pytest.mark.parametrize("change", [foreign_delete, foreign_write])
@pytest.mark.parametrize("hint", ["kept", "lost"])
def test_foreign_commit_is_refused_after_its_checkpoint(
    table: DeltaLog, change: Callable[[DeltaLog], None], hint: str
) -> None:
    """C5: a Delta checkpoint has no commitInfo; a DELETE or WRITE of another program before it is refused all the same,
    and after Delta's RESTORE the messages are there again, for a new reader too."""
    filled(table, 3)
    before = texts(table)
    change(table)
    DeltaTable(table.storage.uri).create_checkpoint()
    if hint == "lost":
        table.storage.delete(HINT)
    for _ in range(2):
        with pytest.raises(ForeignWriteError, match=r"version 4 \((DELETE|WRITE) by .*Restore the table to version 3"):
            put(fresh(table), "x")
    DeltaTable(table.storage.uri).restore(3)
    assert texts(fresh(table)) == before
    DeltaTable(table.storage.uri).create_checkpoint()
    assert texts(fresh(table)) == before
    assert put(fresh(table), "c", "d") == {0: Ranges.of((4, 4)), 1: Ranges.of((4, 4))}


def test_foreign_commit_is_refused_when_the_log_before_its_checkpoint_is_cleaned_up(table: DeltaLog) -> None:
    """C5: the error names the version although no older state can be read any more."""
    filled(table, 3)
    foreign_delete(table)
    DeltaTable(table.storage.uri).create_checkpoint()
    clean_before(table, 4)
    with pytest.raises(ForeignWriteError, match=r"version 4 \(DELETE"):
        fresh(table).refresh()


def test_foreign_commit_is_refused_in_a_table_of_an_earlier_version(table: DeltaLog) -> None:
    """C5: its commits do not note their version, so all that are in the log are judged."""
    filled(table, 3)
    for version in range(1, 4):
        lines = (table.storage.get(commit_path(version)) or b"").splitlines()
        kept = [line for line in lines if NEWEST_OWN_COMMIT.encode() not in line]
        assert len(kept) == len(lines) - 1
        table.storage.put(commit_path(version), b"\n".join(kept) + b"\n")
    DeltaTable(table.storage.uri).create_checkpoint()
    assert len(fresh(table).refresh().files) == 6
    foreign_delete(table)
    DeltaTable(table.storage.uri).create_checkpoint()
    with pytest.raises(ForeignWriteError, match=r"version 4 \(DELETE"):
        fresh(table).refresh()


def test_harmless_foreign_commit_is_accepted_after_its_checkpoint(table: DeltaLog) -> None:
    """C5: a changed property is no change of messages."""
    filled(table, 2)
    DeltaTable(table.storage.uri).alter.set_table_properties({"delta.appendOnly": "false"})
    DeltaTable(table.storage.uri).create_checkpoint()
    assert put(fresh(table), "c", "d") == {0: Ranges.of((3, 3)), 1: Ranges.of((3, 3))}


# -- the hint -----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("hint", [None, b"", b"{}", b"[]", b'{"version": "x"}', b'{"version": 3}', b'{"version": 99}'])
def test_lost_or_wrong_hint_changes_nothing(table: DeltaLog, hint: bytes | None) -> None:
    """C3: with version 0 cleaned up, `_last_checkpoint` may be lost, damaged, late or early: the listing decides."""
    filled(table, 3)
    checkpoint(table, every=1)
    filled(table, 3)
    checkpoint(table, every=1)
    clean_before(table, 7)
    expected = texts(table)
    if hint is None:
        table.storage.delete(HINT)
    else:
        table.storage.put(HINT, hint)
    assert texts(fresh(table)) == expected
    put(fresh(table), "last")
    assert len(texts(fresh(table))) == len(expected) + 1
    if hint != b'{"version": 99}':  # a version that no log reached: nothing can be committed below it
        assert checkpoint(fresh(table), every=1).checkpoints == 1
    assert len(texts(fresh(table))) == len(expected) + 1


def test_lost_hint_does_not_let_a_sleeper_use_a_version_again(table: DeltaLog) -> None:
    """C5: the commit that the sleeper missed is cleaned up, and no hint tells of the checkpoint behind it."""
    sleeper = fresh(table)
    filled(sleeper, 1)
    asleep = sleeper.snapshot
    filled(table, 5)
    checkpoint(table, every=1)
    clean_before(table, 6)
    table.storage.delete(HINT)
    assert not sleeper.append(asleep, "WRITE", [], {})
    assert not table.storage.exists(commit_path(2))
    assert put(sleeper, "c", "d") == {0: Ranges.of((7, 7)), 1: Ranges.of((7, 7))}


def test_damaged_newest_checkpoint_is_replaced_by_an_older_one(table: DeltaLog) -> None:
    """C5: the commit files behind the older checkpoint lead to the same version. Without them nothing older is taken for
    the newest state."""
    filled(table, 3)
    checkpoint(table, every=1)
    filled(table, 3)
    checkpoint(table, every=1)
    clean_before(table, 3)
    expected = texts(table)
    table.storage.put(f"{LOG}/{6:020d}.checkpoint.parquet", b"PAR1")
    assert texts(fresh(table)) == expected
    table.storage.delete(commit_path(5))
    with pytest.raises(UnreadableTableError, match="0006.checkpoint.parquet cannot be read"):
        fresh(table).refresh()


def test_missing_commit_file_is_named(table: DeltaLog) -> None:
    """C5: a gap in the log is not taken for its end."""
    filled(table, 4)
    table.storage.delete(commit_path(2))
    with pytest.raises(UnreadableTableError, match="00000002.json is missing"):
        fresh(table).refresh()


def test_log_listing_takes_complete_checkpoints_only(table: DeltaLog) -> None:
    """C3: a checkpoint in parts counts when all its parts are there."""
    filled(table, 2)
    stem = f"{LOG}/{2:020d}.checkpoint"
    table.storage.put(f"{stem}.{1:010d}.{2:010d}.parquet", b"")
    assert LogListing.of(table.storage).checkpoints == ()
    table.storage.put(f"{stem}.{2:010d}.{2:010d}.parquet", b"")
    listing = LogListing.of(table.storage)
    assert listing.commits == (0, 1, 2)
    (found,) = listing.checkpoints
    assert (found.version, len(found.paths), listing.newest) == (2, 2, 2)
    assert newest_checkpoint_version(table.storage) is None  # no hint, and the log is complete
    table.storage.delete(commit_path(0))
    assert newest_checkpoint_version(table.storage) == 2
    table.storage.put(HINT, json.dumps({"version": 2, "parts": 2}).encode())
    assert newest_checkpoint_version(table.storage) == 2
