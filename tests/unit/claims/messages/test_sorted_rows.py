"""The rows of a claim in the order of delivery, over buckets (T7, T15)."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_jms.claims.messages import fetch
from spark_jms.claims.messages.fetch import in_order
from spark_jms.core.ordering.sort_order import SortOrder
from spark_jms.log.messages.data_files import StoredRows
from spark_jms.log.messages.paging import MessageBuffer

ORDER = SortOrder.of(["JMSPriority descending"])


def stored(first: int, count: int) -> StoredRows:
    numbers = range(first, first + count)
    columns = {
        "JMSPriority": pa.array([number % 10 for number in numbers], pa.int32()),
        "JMSXGroupID": pa.nulls(count, pa.string()),
        "text": pa.array(["x" * 1_000] * count),
    }
    return pa.RecordBatch.from_pydict(columns), pa.array(numbers, pa.int64())


def rows() -> Iterator[StoredRows]:
    yield stored(1, 20)
    yield stored(21, 20)


@pytest.mark.parametrize("left", [[stored(1, 20), stored(21, 20)], [stored(21, 20)], [stored(21, 0)], []])
def test_messages_that_the_first_pass_does_not_find_are_delivered(
    left: list[StoredRows], monkeypatch: pytest.MonkeyPatch
) -> None:
    """T7, T15: a purge takes files between two reads, or all of them; what was read already is delivered, the found ones in order."""
    monkeypatch.setattr(fetch, "_BYTES", 1_000)
    buffer = MessageBuffer(20_000)
    found = in_order(rows(), ORDER, {}, lambda columns: [(b.select(columns), s) for b, s in left], lambda: buffer)
    numbers = [number for _, sequences in found for number in sequences.to_pylist()]
    assert sorted(numbers) == list(range(1, 41))
    known = {number for _, sequences in left for number in sequences.to_pylist()}
    weights = [number % 10 for number in numbers if number in known]
    assert weights == sorted(weights, reverse=True)
    assert buffer.statistics().memory_bytes == buffer.statistics().paged_bytes == 0
    buffer.close()
