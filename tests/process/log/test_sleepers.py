"""A process sleeps (SIGSTOP, a suspended machine) between two steps of a send while housekeeping runs (C5, C13)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.errors import CommitConflictError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.data_files import staged_grace_ms
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending.send import number, send
from spark_jms.log.tables.checkpoints import commit_path
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.files import DataFile
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep import compaction
from spark_jms.log.upkeep.clean_up import clean_up
from spark_jms.log.upkeep.compaction import compact
from tests.harness.domains.feed import QUEUE, make_queue


def staged(log: DeltaLog) -> list[StagedFile]:
    writer = MessageWriter(log.storage, log.refresh().destination, turn=0)
    writer.write(pa.RecordBatch.from_arrays([pa.array(["a", "b"])], names=["text"]))
    return writer.close()


def test_files_deleted_by_clean_up_are_not_committed(tmp_path: Path) -> None:
    """The sender slept longer than the grace; clean-up took its files for a dead sender's."""
    log = make_queue(tmp_path).log(QUEUE)
    files = staged(log)
    clean_up(log, now=now_ms() + 2 * log.refresh().destination.file_grace_ms)
    with pytest.raises(CommitConflictError, match="clean-up"):
        send(log, files, log.snapshot.route_id)
    assert not log.refresh().files


def test_clean_up_keeps_fresh_staged_files(tmp_path: Path) -> None:
    """Files staged a moment ago can be committed, whatever the grace of removed files."""
    log = make_queue(tmp_path, file_grace_ms=0).log(QUEUE)
    files = staged(log)
    clean_up(log, now=now_ms() + 1000)
    assert send(log, files, log.snapshot.route_id).version > 0
    assert all((tmp_path / QUEUE / file.path).exists() for file in files)


def test_files_too_old_for_clean_up_are_not_committed(tmp_path: Path) -> None:
    """The files exist, but clean-up may have listed them already and be about to delete them."""
    log = make_queue(tmp_path, file_grace_ms=0).log(QUEUE)
    age_ms = staged_grace_ms(log.refresh().destination) // 2 + 1000
    files = [replace(file, modified_ms=file.modified_ms - age_ms) for file in staged(log)]
    with pytest.raises(CommitConflictError, match="clean-up"):
        send(log, files, log.snapshot.route_id)
    assert not log.refresh().files


def test_compaction_is_given_up_when_its_file_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction slept between writing its file and committing it: the original files stay."""
    log = make_queue(tmp_path).log(QUEUE)
    for _ in range(40):
        send(log, staged(log), log.refresh().route_id)
    before = set(log.refresh().files)
    merge = compaction.merged

    def slow_merge(log: DeltaLog, run: list[DataFile]) -> StagedFile:
        merged = merge(log, run)
        clean_up(log, now=now_ms() + 2 * log.refresh().destination.file_grace_ms)
        return merged

    monkeypatch.setattr(compaction, "merged", slow_merge)
    compact(log)
    assert set(log.refresh().files) == before
    assert all((tmp_path / QUEUE / path).exists() for path in before)


@pytest.mark.parametrize("deleted", [[21], [20, 21], list(range(22))], ids=["own", "both", "all"])
def test_cleaned_up_version_is_not_reused(tmp_path: Path, deleted: list[int]) -> None:
    """A writer slept at version 20. Others continued the log, wrote a checkpoint, and clean-up deletes old files, in any
    order."""
    make_queue(tmp_path)
    sleeper, other = Domain(str(tmp_path)).log(QUEUE), Domain(str(tmp_path)).log(QUEUE)
    while other.refresh().version < 60:
        if other.snapshot.version == 20:
            sleeper.refresh()
        send(other, staged(other), other.snapshot.route_id)
    assert sleeper.snapshot.version == 20
    DeltaTable(tmp_path / QUEUE).create_checkpoint()
    for version in deleted:
        (tmp_path / QUEUE / commit_path(version)).unlink()
    actions = number(sleeper.snapshot, staged(sleeper), now_ms()).actions
    assert not sleeper.append(sleeper.snapshot, "WRITE", actions, {})
    assert not (tmp_path / QUEUE / commit_path(21)).exists()
    assert sleeper.refresh().version == 60
