"""Which statistics of our files other programs may use. Pure.

Each file has statistics of some columns, which our planner, purge and expiration need: bounds of JMSXGroupID where its values are
short, of a promoted property where it is complete, and so on. Delta allows that: a column without bounds may have any values.
Programs on delta-rs do not: in a file that has bounds of one column, a column without bounds is NULL to them, so a filter on it
finds no row. Delta's own property of the table names the columns whose statistics count, and all programs respect it. So it
names those of which every file has bounds: never NULL, and numbers, which have them whatever their value.

Features: C3 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from spark_jms.core.message import ORDINAL
from spark_jms.log.acknowledgements import ACKNOWLEDGED

PROPERTY = "delta.dataSkippingStatsColumns"
BOUNDED_COLUMNS = (ORDINAL, "JMSTimestamp", "JMSPriority", "JMSExpiration", "JMSDeliveryTime", ACKNOWLEDGED)


def shown_statistics(columns: Collection[str]) -> dict[str, str]:
    """The property of a table with these columns."""
    return {PROPERTY: ",".join(name for name in BOUNDED_COLUMNS if name in columns)}


def lacking_property(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The property, if this metaData action has none or another one: an earlier release made the table, or another program has
    changed it."""
    columns = {str(field["name"]) for field in json.loads(str(metadata["schemaString"]))["fields"]}
    shown = shown_statistics(columns)
    return shown if shown.items() - (metadata.get("configuration") or {}).items() else {}
