"""A process of Spark that plans and commits batch after batch, driven by hand: no session, no JVM."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from spark_jms import apply
from spark_jms.admin.destinations import drop_destination
from spark_jms.core.destinations.routing import ANY_MEMBER
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.limits.quota_ledger import QuotaLedger
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.spark import sink
from spark_jms.spark.options import parse_options
from spark_jms.spark.sink import JmsqWriter, StagedMessage
from spark_jms.store import open_store

SCHEMA = StructType([StructField("text", StringType())])
MODULE = {
    "quotas": {"large": {"messagesMaximum": 100}},
    "destinations": {"orders": {"kind": "queue", "quota": "large"}},
}


def send_batch(root: Path, text: str) -> None:
    writer = JmsqWriter(parse_options({"root": str(root), "destination": "orders"}), SCHEMA, False)
    files = MessageWriter(Domain(str(root)).log("orders").storage, writer.destination, 0)
    files.write(pa.RecordBatch.from_pydict({"text": [text]}))
    writer.commit([StagedMessage(0, "", writer.route_id, files.close(), ANY_MEMBER)])


def last_sequence(root: Path) -> int:
    return Domain(str(root)).log("orders").refresh().last_sequence(0)


def test_second_batch_reads_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C4, T1: a process loads the destination's log and the ledger of its quota once, not for each batch."""
    apply(str(tmp_path), MODULE)
    loads: Counter[str] = Counter()

    def count(kind: type[Any]) -> None:
        inner = kind.load

        def load(self: Any) -> Any:
            loads[kind.__name__] += 1
            return inner(self)

        monkeypatch.setattr(kind, "load", load)

    count(DeltaLog)
    count(QuotaLedger)
    send_batch(tmp_path, "a")
    assert loads == {"DeltaLog": 1, "QuotaLedger": 1}
    send_batch(tmp_path, "b")
    assert loads == {"DeltaLog": 1, "QuotaLedger": 1}
    assert last_sequence(tmp_path) == 2


def test_modules_are_frozen_after_planning_and_after_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C5: PySpark's daemon collects garbage after each plan and each commit, too; it does not scan what is loaded for good."""
    apply(str(tmp_path), MODULE)
    frozen: list[str] = []
    monkeypatch.setattr(sink, "freeze_loaded", lambda: frozen.append("frozen"))
    JmsqWriter(parse_options({"root": str(tmp_path), "destination": "orders"}), SCHEMA, False)
    assert len(frozen) == 1
    send_batch(tmp_path, "a")
    assert len(frozen) == 3


def test_batch_is_sent_to_a_destination_that_was_created_again(tmp_path: Path) -> None:
    """C4, C17: the process knows the table that was dropped; neither its plan nor its commit follows it."""
    apply(str(tmp_path), MODULE)
    send_batch(tmp_path, "a")
    domain = Domain(str(tmp_path))
    with open_store(domain.store_uri) as store:
        drop_destination(domain, store, "orders", force=True)
    apply(str(tmp_path), MODULE)
    send_batch(tmp_path, "b")
    send_batch(tmp_path, "c")
    assert last_sequence(tmp_path) == 2


def test_commit_finds_a_destination_that_another_process_planned_for(tmp_path: Path) -> None:
    """C4: planned by a process that has just started; the one that commits knew the table before."""
    apply(str(tmp_path), MODULE)
    send_batch(tmp_path, "a")
    known = dict(sink.open_domains)
    shutil.rmtree(tmp_path / "orders")
    (tmp_path / "_jmsq" / "destinations" / "orders").unlink()
    apply(str(tmp_path), MODULE)
    sink.open_domains.clear()
    writer = JmsqWriter(parse_options({"root": str(tmp_path), "destination": "orders"}), SCHEMA, False)
    files = MessageWriter(Domain(str(tmp_path)).log("orders").storage, writer.destination, 0)
    files.write(pa.RecordBatch.from_pydict({"text": ["b"]}))
    sink.open_domains.update(known)
    writer.commit([StagedMessage(0, "", writer.route_id, files.close(), ANY_MEMBER)])
    assert last_sequence(tmp_path) == 1


def test_batch_is_sent_to_a_domain_that_was_created_again(tmp_path: Path) -> None:
    """C14: another domain in the same place is opened, with its own quotas and destinations."""
    root = tmp_path / "root"
    apply(str(root), MODULE)
    send_batch(root, "a")
    first = sink.domain_at(str(root))
    shutil.rmtree(root)
    apply(str(root), MODULE)
    send_batch(root, "b")
    assert last_sequence(root) == 1
    assert sink.domain_at(str(root)).id != first.id
