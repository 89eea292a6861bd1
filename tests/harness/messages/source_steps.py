"""The streaming source as Spark drives it, step by step, without a Spark session."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_jms.spark.source import JmsqStreamReader
from spark_jms.testing.domain import wait_until

LIMIT = ReadMaxRows(1000)


def next_offset(source: JmsqStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    """The end of the next batch after `start`."""
    ends: list[dict[str, Any]] = []
    wait_until(lambda: bool(ends.append(source.latestOffset(start, LIMIT)) or ends[-1] != start))  # type: ignore[func-returns-value]
    return ends[-1]


def texts_of(source: JmsqStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """Of a batch, sorted."""
    partitions = source.partitions(start, end)
    return sorted(row["text"] for one in partitions for batch in source.read(one) for row in batch.to_pylist())
