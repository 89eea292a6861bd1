"""The Delta tables beside a destination's own, of its acknowledgements and of its life-cycle log: their columns.

Features: C14, T6 (docs/FEATURES.md)
"""

from __future__ import annotations

import pyarrow as pa

from spark_jms.core.message import ORDINAL

ACKNOWLEDGED = "acknowledged_ms"
ACKNOWLEDGEMENT_SCHEMA = pa.schema(
    [
        (ORDINAL, pa.int64()),
        ("subscription", pa.string()),
        ("consumer", pa.string()),
        ("claim", pa.string()),
        ("epoch", pa.int64()),
        (ACKNOWLEDGED, pa.int64()),
        ("messages", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("ranges", pa.string()),
    ]
)
HAPPENED = "happened_ms"
LIFE_CYCLE_SCHEMA = pa.schema(
    [
        (ORDINAL, pa.int64()),
        ("key", pa.string()),
        ("event", pa.string()),
        (HAPPENED, pa.int64()),
        ("subscription", pa.string()),
        ("consumer", pa.string()),
        ("claim", pa.string()),
        ("messages", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("ranges", pa.string()),
        ("detail", pa.string()),
    ]
)
