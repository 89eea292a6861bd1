"""The schemas that Spark gets of the views, and the rows that the views have (C13)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pyarrow as pa
import pytest

from spark_jms.claims.upkeep.life_cycle_view import EventRow
from spark_jms.claims.upkeep.usage_history import UsageHistoryRow
from spark_jms.claims.upkeep.views import AcknowledgementRow, ClaimRow, SubscriptionRow
from spark_jms.log.changes.rows import FEED_SCHEMA
from spark_jms.spark.browser import VIEW_SCHEMAS
from spark_jms.spark.changes import CHANGES

ROWS: dict[str, Any] = {
    "acknowledgements": AcknowledgementRow,
    "claims": ClaimRow,
    "subscriptions": SubscriptionRow,
    "events": EventRow,
    "usage": UsageHistoryRow,
}
TYPES = {pa.string(): "string", pa.int32(): "int", pa.int64(): "bigint", pa.timestamp("us", tz="UTC"): "timestamp"}


@pytest.mark.parametrize("view", ROWS)
def test_a_view_has_a_column_for_each_field_of_its_rows(view: str) -> None:
    """C13: a field without a column fails every query of the view."""
    columns = [column.split()[0] for column in VIEW_SCHEMAS[view].split(", ")]
    assert columns == [field.name for field in fields(ROWS[view])]


def test_change_feed_gives_spark_the_columns_that_it_declares() -> None:
    """M12: tasks give Arrow batches, by name and type; every other view has its rows above."""
    assert VIEW_SCHEMAS[CHANGES] == ", ".join(f"{field.name} {TYPES[field.type]}" for field in FEED_SCHEMA)
    assert VIEW_SCHEMAS.keys() == {*ROWS, CHANGES}
