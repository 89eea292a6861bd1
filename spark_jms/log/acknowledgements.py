"""The Delta table of a destination's acknowledgements: its columns (C14)."""

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
