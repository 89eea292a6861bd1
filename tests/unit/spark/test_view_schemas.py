"""The schemas that Spark gets of the views, and the rows that the views have (C13)."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from spark_jms.claims.upkeep.life_cycle_view import EventRow
from spark_jms.claims.upkeep.usage import UsageHistoryRow
from spark_jms.claims.upkeep.views import AcknowledgementRow, ClaimRow, SubscriptionRow
from spark_jms.spark.browser import VIEW_SCHEMAS

ROWS: dict[str, Any] = {
    "acknowledgements": AcknowledgementRow,
    "claims": ClaimRow,
    "subscriptions": SubscriptionRow,
    "events": EventRow,
    "usage": UsageHistoryRow,
}


@pytest.mark.parametrize("view", VIEW_SCHEMAS)
def test_a_view_has_a_column_for_each_field_of_its_rows(view: str) -> None:
    """C13: a field without a column fails every query of the view."""
    columns = [column.split()[0] for column in VIEW_SCHEMAS[view].split(", ")]
    assert columns == [field.name for field in fields(ROWS[view])]
