"""Compaction beside senders, purge and other compactions (C13)."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.log.destinations.declarations import create_subscription
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.files import DataFile
from spark_jms.log.upkeep import compaction
from spark_jms.log.upkeep.compaction import compact
from spark_jms.log.upkeep.purge import purge
from tests.contract.log.tables.test_delta_log import fresh, local_table, put, texts


@pytest.fixture
def table(tmp_path: Path) -> DeltaLog:
    return DeltaLog(local_table(tmp_path / "domain"), "orders")


def purge_front(log: DeltaLog) -> None:
    purge(log, lambda subscription, member, sequences: sequences.last <= 3)


@pytest.mark.parametrize(
    "change",
    [lambda log: put(log, "new-a", "new-b"), purge_front, compact],
    ids=["send", "purge", "another compaction"],
)
@pytest.mark.parametrize("same_log", [True, False], ids=["same log object", "another process"])
def test_compaction_keeps_every_message_while_the_table_changes(
    table: DeltaLog, monkeypatch: pytest.MonkeyPatch, change: Callable[[DeltaLog], object], same_log: bool
) -> None:
    """C13: compaction walks the files of one immutable snapshot; what commits between its reading and its own commit, also
    through the same log object, neither changes its lists nor loses or doubles a message."""
    create_subscription(table, "s", lambda snapshot: {0: 0, 1: 0})
    for i in range(20):
        put(table, f"{i}-a", f"{i}-b")
    merge, changes = compaction.merged, [change]

    def merge_with_change(log: DeltaLog, run: list[DataFile]) -> StagedFile:
        walked = [file.path for file in run]
        staged = merge(log, run)
        while changes:
            changes.pop()(table if same_log else fresh(table))
        assert [file.path for file in run] == walked
        return staged

    expected = texts(table)
    monkeypatch.setattr(compaction, "merged", merge_with_change)
    compact(table)
    compact(table)
    left = texts(fresh(table))
    assert left == texts(table)
    gone = {key: text for key, text in expected.items() if key not in left}
    assert all(sequence <= 3 for _, sequence in gone)
    assert bool(gone) == (change is purge_front)
    assert {key: text for key, text in left.items() if key in expected} == {
        key: text for key, text in expected.items() if key not in gone
    }


def test_compaction_keeps_up_in_one_round(table: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """C13: one round merges as many runs as there are, not one for each member."""
    monkeypatch.setattr(compaction, "STEP_FILES", 10)
    for i in range(100):
        put(table, f"{i}-a", f"{i}-b")
    expected = texts(table)
    compact(table, clock_s=lambda: 0.0)
    assert len(table.refresh().files) <= 2 * 8
    assert texts(fresh(table)) == expected


def test_the_log_is_not_locked_while_compaction_reads_and_purge_decides(
    table: DeltaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C13: a sender waits for the commit of housekeeping, and not for its reading, writing and asking of the store."""
    create_subscription(table, "s", lambda snapshot: {0: 0, 1: 0})
    for i in range(20):
        put(table, f"{i}-a", f"{i}-b")

    def sends_meanwhile() -> bool:
        """Another thread can commit through the same log object."""
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            return bool(thread.submit(put, table, "meanwhile").result(timeout=60))

    merge, sent = compaction.merged, []

    def merge_beside_a_sender(log: DeltaLog, run: list[DataFile]) -> StagedFile:
        sent.append(sends_meanwhile())
        return merge(log, run)

    monkeypatch.setattr(compaction, "merged", merge_beside_a_sender)
    assert compact(table).compacted_files == 40

    def is_done(subscription: str, member: int, sequences: object) -> bool:
        sent.append(sends_meanwhile())
        return True

    assert purge(table, is_done).purged_messages >= 40
    assert len(sent) >= 4


def test_purge_decides_again_when_a_subscription_is_made_meanwhile(table: DeltaLog) -> None:
    """C10, C13: the new subscription has not finished the messages that the others have."""
    create_subscription(table, "s", lambda snapshot: {0: 0, 1: 0})
    put(table, "a", "b")
    asked = []

    def is_done(subscription: str, member: int, sequences: object) -> bool:
        if not asked:
            create_subscription(fresh(table), "late", lambda snapshot: {0: 0, 1: 0})
        asked.append(subscription)
        return subscription == "s"

    assert purge(table, is_done).purged_files == 0
    assert "late" in asked
    assert len(texts(fresh(table))) == 2
