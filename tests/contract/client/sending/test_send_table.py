"""Sending Arrow tables from the plain client (C2, C4, C5, C11)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_jms.client import Context
from spark_jms.errors import DuplicateTransactionError, JmsqError, MessageFormatError, MessageSizeError
from spark_jms.testing.inside import domain_of


def test_send_table_sends_every_row_in_one_commit(context: Context) -> None:
    """C2, C11: each row is a message; typed properties come from a struct."""
    properties = pa.array([{"color": "red", "n": n} for n in range(3)])
    table = pa.table(
        {"text": ["a", "b", "c"], "properties": properties, "JMSPriority": pa.array([1, None, 9], pa.int8())}
    )
    version = domain_of(context).log("orders").refresh().version
    producer = context.producer("orders")
    report = producer.send_table(table)
    assert (report.messages, report.commits, report.duplicate) == (3, 1, False)
    assert list(report.sequences[0]) == [(1, 3)]
    assert domain_of(context).log("orders").refresh().version == version + 1
    got = list(context.browser("orders"))
    assert [(m.text, m.priority, m.properties) for m in got] == [
        ("a", 1, {"color": "red", "n": 0}),
        ("b", 4, {"color": "red", "n": 1}),
        ("c", 9, {"color": "red", "n": 2}),
    ]
    statistics = producer.statistics()
    assert (statistics.messages, statistics.commits) == (3, 1)
    assert statistics.bytes > 3


def test_send_table_keeps_units_of_order(context: Context) -> None:
    """C4: over many batches of a reader."""
    batches = [
        pa.record_batch({"text": [f"{n}"], "JMSXGroupID": [f"g{n % 3}"], "JMSXGroupSeq": pa.array([n], pa.int32())})
        for n in range(60)
    ]
    report = context.producer("spread").send_table(pa.RecordBatchReader.from_batches(batches[0].schema, batches))
    assert (report.messages, report.commits) == (60, 1)
    got = sorted(context.browser("spread"), key=lambda m: (m.member, m.sequence))
    for group in ("g0", "g1", "g2"):
        own = [m for m in got if m.group_id == group]
        assert len({m.member for m in own}) == 1
        assert [m.group_seq for m in own] == sorted(m.group_seq or 0 for m in own)


def test_send_table_with_a_transaction_sends_once(context: Context) -> None:
    """C5, M1"""
    batch = pa.record_batch({"body": [b"x", b"y"]})
    producer = context.producer("orders")
    assert producer.send_table(batch, transaction=("loader", 1)).messages == 2
    again = producer.send_table(batch, transaction=("loader", 1))
    assert (again.messages, again.duplicate) == (0, True)
    assert len(list(context.browser("orders"))) == 2
    with pytest.raises(DuplicateTransactionError):
        producer.send_table(batch, transaction=("loader", -1))


def test_send_table_without_rows_writes_nothing(context: Context) -> None:
    """C11"""
    version = domain_of(context).log("orders").refresh().version
    report = context.producer("orders").send_table(pa.table({"text": pa.array([], pa.string())}))
    assert (report.messages, report.commits, report.duplicate) == (0, 0, False)
    assert domain_of(context).log("orders").refresh().version == version


@pytest.mark.parametrize(
    ("kind", "says", "table"),
    [
        (MessageFormatError, "unknown message column", pa.table({"txt": ["x"]})),
        (MessageFormatError, "needs a `text`", pa.table({"JMSType": ["x"]})),
        (MessageFormatError, "has both", pa.table({"text": ["x"], "body": [b"x"]})),
        (MessageFormatError, "is not an Arrow table", [{"text": "x"}]),
        (MessageFormatError, "JMSPriority is 10", pa.table({"text": ["x"], "JMSPriority": [10]})),
        (MessageSizeError, "maxMessageSize", pa.table({"text": ["ok", "x" * 11]})),
    ],
)
def test_send_table_refuses_the_whole_table(context: Context, kind: type[JmsqError], says: str, table: Any) -> None:
    """C2, C11: nothing of it is sent, and no file stays."""
    with pytest.raises(kind, match=says):
        context.producer("small").send_table(table)
    assert list(context.browser("small")) == []
    assert not list(Path(context.root, "small").glob("*.parquet"))
