"""Spark aborts a write whose commit failed: files that may be in the log must stay (C5). Found by after-send-commit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import StringType, StructType

from spark_jms.core.destinations.routing import ANY_MEMBER
from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.spark.options import parse_options
from spark_jms.spark.sink import JmsqStreamWriter, StagedMessage
from tests.harness.domains.feed import QUEUE, make_queue


def staged(domain: Domain, turn: int) -> list[StagedFile]:
    log = domain.log(QUEUE)
    writer = MessageWriter(log.storage, log.refresh().destination, turn=turn)
    writer.write(pa.RecordBatch.from_arrays([pa.array(["a", "b"])], names=["text"]))
    return writer.close()


def test_abort_after_the_commit_keeps_its_files(tmp_path: Path) -> None:
    """The worker died between the commit and its report; Spark aborts with the messages of all tasks."""
    domain = make_queue(tmp_path)
    options = parse_options({"root": str(tmp_path), "destination": QUEUE})
    files = staged(domain, 0)
    messages = [StagedMessage(0, "query", domain.log(QUEUE).snapshot.route_id, files, ANY_MEMBER)]
    writer = JmsqStreamWriter(options, StructType().add("text", StringType()), overwrite=False)
    writer.commit([*messages], 0)
    writer.abort([*messages], 0)
    assert all((tmp_path / QUEUE / file.path).exists() for file in files)


def test_abort_without_all_tasks_deletes_staged_files(tmp_path: Path) -> None:
    """The message of a task is missing, so nothing was committed: the files of the other tasks are deleted at once."""
    domain = make_queue(tmp_path)
    options = parse_options({"root": str(tmp_path), "destination": QUEUE})
    files = staged(domain, 0)
    writer = JmsqStreamWriter(options, StructType().add("text", StringType()), overwrite=False)
    writer.abort([StagedMessage(0, "query", writer.route_id, files, ANY_MEMBER), None], 0)
    assert not any((tmp_path / QUEUE / file.path).exists() for file in files)
