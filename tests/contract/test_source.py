"""The Spark source, driven by hand as Spark drives it: no session, no JVM (C5, C9, C10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_jms import connect
from spark_jms.checkpoint import views
from spark_jms.core.batch import Batch
from spark_jms.log.domain import Domain
from spark_jms.spark.options import parse_options
from spark_jms.spark.source import JmsqStreamReader, read_partition
from spark_jms.testing import memory_domain

LIMIT = ReadMaxRows(1000)
Offset = dict[str, Any]


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain("file", orders="queue", prices="topic") as where:
        yield where


def reader(root: str, destination: str = "orders", **options: str) -> JmsqStreamReader:
    return JmsqStreamReader(parse_options({"root": root, "destination": destination, **options}))


def send(root: str, *texts: str, to: str = "orders") -> None:
    with connect(root, housekeeping=False) as context:
        context.producer(to).send_many({"text": text} for text in texts)


def rows(source: JmsqStreamReader, start: Offset, end: Offset) -> list[tuple[str, int]]:
    """What the tasks of this batch read: text and delivery count."""
    out = []
    for partition in source.partitions(start, end):
        for batch in read_partition(partition):  # type: ignore[arg-type]
            out += [(r["text"], r["JMSXDeliveryCount"]) for r in batch.to_pylist()]
    return out


def first_batch(source: JmsqStreamReader) -> Offset:
    """The initial offset, as it is logged with the first batch."""
    start = source.initialOffset()
    assert source.latestOffset(start, LIMIT) == start
    assert rows(source, start, start) == []
    return start


# -- the first offset ----------------------------------------------------------------------------------------------------
def test_nothing_is_claimed_before_the_consumer_has_a_name(root: str) -> None:
    """C5, C9: a query that dies before its first offset is logged leaves nothing in doubt; the next gets all, unflagged."""
    send(root, "a", "b")
    ghost = reader(root)
    ghost.latestOffset(ghost.initialOffset(), LIMIT)
    ghost.stop()  # Spark never logged what it said
    domain = Domain(root)
    with views.opened_store(domain) as store:
        assert views.claims(domain, store, "orders") == []
    source = reader(root)
    start = first_batch(source)
    end = source.latestOffset(start, LIMIT)
    assert rows(source, start, end) == [("a", 1), ("b", 1)]
    source.stop()


def test_a_query_that_died_before_its_first_claim_was_logged(root: str) -> None:
    """C5, C9: its name is in the log, so it forgets the claim and makes it again: at once and unflagged."""
    send(root, "a")
    dying = reader(root)
    start = first_batch(dying)
    claimed = dying.latestOffset(start, LIMIT)
    dying.stop()
    again = reader(root)
    end = again.latestOffset(start, LIMIT)
    assert Batch.from_json(end).consumer == Batch.from_json(claimed).consumer
    assert end["claim"] != claimed["claim"]
    assert rows(again, start, end) == [("a", 1)]
    again.stop()
