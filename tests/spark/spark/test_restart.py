"""A query that fails in the middle of a batch receives that batch's messages again after its restart (C5, C9)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

if TYPE_CHECKING:
    from tests.spark.conftest import Bench


@pytest.mark.parametrize("fails_in", [0, 1, 2])
def test_failed_batch_is_delivered_again_to_its_query(bench: Bench, fails_in: int) -> None:
    """C5, C9: fails in batch 0, which has no messages and makes Spark ask for the initial offset a second time, in batch
    1, the first with messages, and in a later one."""
    seen: dict[int, list[int]] = {}
    failed = []

    def take(frame: Any, batch_id: int) -> None:
        rows = frame.select("text", "JMSXDeliveryCount").collect()
        if batch_id == fails_in and not failed:
            failed.append([int(r.text) for r in rows])
            raise ValueError("on purpose")
        assert {r.JMSXDeliveryCount for r in rows} <= {1}
        seen[batch_id] = [int(r.text) for r in rows]

    def run() -> None:
        writer = bench.stream("orders", maxMessagesPerTrigger=20).writeStream.foreachBatch(take)
        query = writer.option("checkpointLocation", str(bench.path / "ck")).trigger(availableNow=True).start()
        query.awaitTermination()

    bench.send(bench.numbers(1, 50, partitions=1), "orders")
    with pytest.raises(StreamingQueryException, match="on purpose"):
        run()
    run()
    assert sorted(seen[fails_in]) == sorted(failed[0])
    assert sorted(n for batch in seen.values() for n in batch) == list(range(1, 51))
    assert bench.browse("orders").count() == 0
    claims = bench.browse("orders", view="claims").count()
    assert claims == 0
