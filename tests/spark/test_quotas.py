"""A streaming query that sends to a destination whose quota has no room (T1, T2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from spark_jms import apply, connect
from spark_jms.admin.quota import quotas
from spark_jms.testing import wait_until

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

    from tests.spark.conftest import Bench

LIMIT_S = 120


def full(bench: Bench, messages: int) -> None:
    apply(
        bench.root,
        {
            "quotas": {"small": {"messagesMaximum": messages}},
            "destinations": {"full": {"kind": "queue", "quota": "small"}},
        },
    )


def forward(bench: Bench, **options: object) -> StreamingQuery:
    checkpoint = str(bench.path / "ck")
    writer = bench.options(bench.stream("jobs").writeStream, "full", checkpointLocation=checkpoint, **options)
    started: StreamingQuery = writer.trigger(availableNow=True).start()
    return started


def waiting(bench: Bench) -> list[str]:
    return [one.by for row in quotas(bench.domain, ["small"]) for one in row.requests if one.state == "waiting"]


def test_query_waits_for_room_and_can_be_stopped(bench: Bench) -> None:
    """T1, T2, T3: `jmsq quota` shows its batch; stopping the query withdraws it, a time-out fails it by name, and the next start
    sends the batch once."""
    full(bench, 10)
    with connect(bench.root) as context:
        context.producer("full").send_many({"text": str(n)} for n in range(1, 6))
        context.producer("jobs").send_many({"text": str(n)} for n in range(6, 12))
    try:
        query = forward(bench)
        wait_until(lambda: waiting(bench) != [], LIMIT_S)
        assert waiting(bench)[0].startswith(f"query {query.id}, batch ")
        query.stop()
        wait_until(lambda: waiting(bench) == [], LIMIT_S)
        with pytest.raises(PySparkException, match="QuotaExceededError"):
            forward(bench, sendTimeout="100 ms").awaitTermination()
    finally:
        full(bench, 11)
    forward(bench).awaitTermination()
    assert sorted(int(row.text) for row in bench.browse("full").select("text").collect()) == list(range(1, 12))
