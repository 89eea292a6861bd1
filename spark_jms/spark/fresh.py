"""A view or DataFrame over `format("jmsq")` that shows the current backlog.

Spark 4.2 keeps the partitions that a Python reader has planned with the table of the plan (`PythonDataSourceV2.readInfo`), for
all reads of every view and DataFrame made from it. They are planned once, on the driver: to plan in the tasks instead would make
each executor open the store, and give each task a snapshot of its own. `REFRESH TABLE` does not reach them. So this clears
what Spark keeps, and the next read plans again: one snapshot for all its tasks, as the first read had.

Features: C1 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from spark_jms.errors import IllegalStateException


def fresh(frame: DataFrame) -> DataFrame:
    """The same DataFrame, whose next read shows the current messages, claims or positions; so does the next read of the views
    and DataFrames that it is derived from. For a view: `fresh(spark.table("backlog"))`. No other thread may begin to read them
    meanwhile. Raises IllegalStateException if it cannot reach the planned partitions, as with Spark Connect, and if Spark has
    cached the messages."""
    from py4j.protocol import Py4JError

    try:
        sources = list(_sources(frame._jdf.queryExecution().analyzed()))
        for source in sources:
            source.setReadInfo(None)
        again = frame.select("*")  # a DataFrame that was collected keeps its physical plan, with the old partitions
        cached = not frame.isStreaming and len(sources) > len(
            list(_sources(again._jdf.queryExecution().withCachedData()))
        )
    except (AttributeError, TypeError, Py4JError) as error:
        raise IllegalStateException(
            f"this Spark does not let its planned partitions be cleared ({error}): recreate the view or DataFrame, with "
            'CREATE OR REPLACE TEMPORARY VIEW or spark.read.format("jmsq")'
        ) from error
    if cached:
        raise IllegalStateException(
            "what this DataFrame or view reads is cached, and fresh() cannot renew a cache: call unpersist() on the cached "
            "DataFrame, or UNCACHE TABLE, and then fresh() again"
        )
    return again


def _sources(plan: Any) -> Iterator[Any]:
    """Of `format("jmsq")`, in the plan and its subqueries."""
    plans = [plan, *_items(plan.subqueriesAll())]
    for leaf in (leaf for one in plans for leaf in _items(one.collectLeaves())):
        if leaf.getClass().getSimpleName() == "DataSourceV2Relation" and leaf.table().name() == "jmsq":
            field = leaf.table().getClass().getDeclaredField("ds")
            field.setAccessible(True)
            yield field.get(leaf.table())


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]
