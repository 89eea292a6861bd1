"""Delta checkpoints that we write, read by delta-rs (C3, C13)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from spark_jms.errors import UnreadableTableError
from spark_jms.log.destinations.declarations import create_subscription
from spark_jms.log.tables.checkpoints import LAST_CHECKPOINT, LogListing, checkpoint_path, commit_path, write_checkpoint
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.upkeep.clean_up import checkpoint
from spark_jms.log.upkeep.compaction import compact
from spark_jms.log.upkeep.purge import purge
from tests.contract.log.tables.test_delta_log import fresh, local_table, put, texts


@pytest.fixture
def table(tmp_path: Path) -> DeltaLog:
    return DeltaLog(local_table(tmp_path / "domain"), "orders")


def seen_by_delta_rs(table: DeltaLog) -> dict[tuple[int, int], str]:
    columns = ["member", "first_sequence", "ordinal", "text"]
    rows = DeltaTable(table.storage.uri).to_pyarrow_table(columns=columns).to_pylist()
    return {(row["member"], row["first_sequence"] + row["ordinal"]): row["text"] for row in rows}


def test_checkpoint_alone_is_read_by_delta_rs_and_by_us(table: DeltaLog) -> None:
    """C3, C13: every kind of action is in the file, and it is all that the commits before it were."""
    create_subscription(table, "s", lambda snapshot: {0: 0, 1: 0})
    for i in range(12):
        put(table, f"{i}-a", f"{i}-b")
    assert compact(table).compacted_files
    assert purge(table, lambda name, member, sequences: member == 0).purged_files
    put(table, "last", "the last")
    checkpoint(table, every=1)
    version, expected = table.snapshot.version, texts(table)
    for old in range(version + 1):
        table.storage.delete(commit_path(old))
    assert seen_by_delta_rs(table) == expected == texts(fresh(table))
    ours, theirs = fresh(table).snapshot, DeltaTable(table.storage.uri)
    assert (theirs.version(), theirs.metadata().id) == (version, table.snapshot.metadata["id"])
    assert theirs.metadata().configuration == table.snapshot.metadata["configuration"]
    assert theirs.metadata().partition_columns == ["member", "first_sequence"]
    assert {theirs.transaction_version(app) for app in table.snapshot.transactions} != {None}
    assert ours.transactions == table.snapshot.transactions
    assert len(table.snapshot.removed_ms) > 0 == len(ours.removed_ms)
    assert ours.destination == table.snapshot.destination
    assert (theirs.protocol().min_reader_version, theirs.protocol().min_writer_version) == (1, 2)


def test_log_continues_behind_a_checkpoint_of_delta_rs(table: DeltaLog) -> None:
    """C3: theirs and ours take turns."""
    for i in range(3):
        put(table, f"{i}-a", f"{i}-b")
        DeltaTable(table.storage.uri).create_checkpoint()
        put(fresh(table), f"{i}-c", f"{i}-d")
        checkpoint(fresh(table), every=1)
    assert seen_by_delta_rs(table) == texts(fresh(table))


def test_older_checkpoint_does_not_move_the_pointer_back(table: DeltaLog) -> None:
    """C13: two processes write checkpoints at once."""
    put(table, "a", "b")
    older = table.snapshot
    put(table, "c", "d")
    checkpoint(table, every=1)
    write_checkpoint(table.storage, older)
    assert json.loads(table.storage.get(LAST_CHECKPOINT) or b"")["version"] == older.version + 1
    assert [found.version for found in LogListing.of(table.storage).checkpoints] == [older.version, older.version + 1]


def test_checkpoint_of_a_table_with_unknown_features_is_refused(table: DeltaLog) -> None:
    """C3: another program has given the table features whose state a checkpoint of ours would lose."""
    put(table, "a")
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["domainMetadata"]}
    actions = ({"commitInfo": {"engineInfo": "other", "operation": "UPGRADE"}}, {"protocol": protocol})
    table.storage.create(commit_path(2), "\n".join(json.dumps(a) for a in actions).encode())
    put(table, "b")
    with pytest.raises(UnreadableTableError, match="writer version 7.*domainMetadata.*undo"):
        checkpoint(table, every=1)
    assert not table.storage.exists(checkpoint_path(table.snapshot.version))
