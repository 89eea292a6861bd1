"""A streaming query that sends to a destination whose quota is full (T1, T2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

import spark_jms
from spark_jms import apply
from spark_jms.testing import wait_until

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

    from tests.spark.conftest import Bench

LIMIT_S = 60
MODULE = {
    "quotas": {"few": {"messagesMaximum": 25}},
    "destinations": {"limited": {"kind": "queue", "quota": "few"}},
}


def forward(bench: Bench, **options: object) -> StreamingQuery:
    source = bench.stream("jobs", maxMessagesPerTrigger=10)
    writer = bench.options(source.writeStream, "limited", checkpointLocation=str(bench.path / "ck"), **options)
    started: StreamingQuery = writer.trigger(availableNow=True).start()
    return started


def sent(bench: Bench) -> list[int]:
    return sorted(int(row.text) for row in bench.browse("limited").select("text").collect())


def test_query_waits_for_room_in_a_quota(bench: Bench) -> None:
    """T1, T2: it fails by name at its time-out and loses nothing; stopped while it waits, it withdraws; and it continues once a
    consumer has made room."""
    apply(bench.root, MODULE)
    bench.send(bench.numbers(1, 40), "jobs")
    with pytest.raises(PySparkException, match="QuotaExceededError"):
        forward(bench, sendTimeout="1 s").awaitTermination()
    assert sent(bench) == list(range(1, 21))
    query = forward(bench, sendTimeout="10 s")
    ledger = bench.domain.quotas.ledgers("few")[0]
    wait_until(lambda: bool(ledger.read().state.waiting), LIMIT_S, what="the batch to wait for room")
    query.stop()  # Spark interrupts no commit, so this takes as long as the batch waits
    assert bench.domain.quotas.now(ledger).state.waiting == []
    assert sent(bench) == list(range(1, 21))
    query = forward(bench)
    received = []
    with spark_jms.connect(bench.root) as context, context.consumer("limited", acknowledge="individual") as consumer:
        while len(received) < 40 and (message := consumer.receive(timeout=LIMIT_S)) is not None:
            received.append(int(message.text or ""))
            message.acknowledge()
    query.awaitTermination()
    assert sorted(received) == list(range(1, 41))
    assert sent(bench) == []
