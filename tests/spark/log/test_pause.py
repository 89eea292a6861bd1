"""A streaming query that sends to a destination which an administrator pauses (T14)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from spark_jms.admin.destinations import pause, resume
from spark_jms.core.destinations.pause import CONSUMPTION, INSERTION, PRODUCTION
from spark_jms.testing import wait_until

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

    from tests.spark.conftest import Bench

LIMIT_S = 60


def forward(bench: Bench, *, available_now: bool = True) -> StreamingQuery:
    writer = bench.options(bench.stream("jobs").writeStream, "orders", checkpointLocation=str(bench.path / "ck"))
    started: StreamingQuery = (writer.trigger(availableNow=True) if available_now else writer).start()
    return started


def sent(bench: Bench) -> list[int]:
    return sorted(int(row.text) for row in bench.browse("orders").select("text").collect())


def test_query_fails_by_name_and_continues_after_the_resume(bench: Bench) -> None:
    """T14, C5: production paused fails a query that sends, with its checkpoint good; consumption paused ends AvailableNow
    with nothing; and a batch that insertion holds back is sent once, after the resume, by the query that waits."""
    bench.send(bench.numbers(1, 20), "jobs")
    pause(bench.domain, "orders", [PRODUCTION])
    with pytest.raises(PySparkException, match="ProductionPausedError"):
        forward(bench).awaitTermination()
    assert sent(bench) == []
    resume(bench.domain, "orders")
    forward(bench).awaitTermination()
    assert sent(bench) == list(range(1, 21))

    bench.send(bench.numbers(21, 30), "jobs")
    pause(bench.domain, "jobs", [CONSUMPTION])
    forward(bench).awaitTermination()
    assert sent(bench) == list(range(1, 21))
    resume(bench.domain, "jobs")

    pause(bench.domain, "orders", [INSERTION])
    files = set(bench.path.glob("domain-*/orders/*.parquet"))
    query = forward(bench)
    wait_until(lambda: set(bench.path.glob("domain-*/orders/*.parquet")) != files, LIMIT_S)
    assert sent(bench) == list(range(1, 21))
    assert query.isActive
    resume(bench.domain, "orders")
    query.awaitTermination()
    assert sent(bench) == list(range(1, 31))


def test_query_that_waits_for_insertion_can_be_stopped(bench: Bench) -> None:
    """T14: its batch is sent once by the next start."""
    bench.send(bench.numbers(1, 10), "jobs")
    pause(bench.domain, "orders", [INSERTION])
    query = forward(bench, available_now=False)
    wait_until(lambda: any(bench.path.glob("domain-*/orders/*.parquet")), LIMIT_S)
    query.stop()
    assert not query.isActive
    resume(bench.domain, "orders")
    forward(bench).awaitTermination()
    assert sent(bench) == list(range(1, 11))
