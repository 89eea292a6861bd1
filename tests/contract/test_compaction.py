"""Compaction beside senders, purge and other compactions (C13)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from spark_jms.log import compaction
from spark_jms.log.compaction import compact
from spark_jms.log.data_file import DataFile
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.purge import purge
from spark_jms.log.staged_file import StagedFile
from spark_jms.log.subscriptions import create_subscription
from tests.contract.test_log import fresh, local_table, put, texts


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
    merge, changes = compaction._merge, [change]

    def merge_with_change(log: DeltaLog, run: list[DataFile]) -> StagedFile:
        walked = [file.path for file in run]
        staged = merge(log, run)
        while changes:
            changes.pop()(table if same_log else fresh(table))
        assert [file.path for file in run] == walked
        return staged

    expected = texts(table)
    monkeypatch.setattr(compaction, "_merge", merge_with_change)
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
