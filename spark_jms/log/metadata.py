"""The metaData action by which a destination's declaration enters its table's log.

Features: C3 (docs/FEATURES.md)
"""

from __future__ import annotations

from typing import Any

from spark_jms.core.destination import Destination
from spark_jms.core.promoted_columns import PromotedColumns
from spark_jms.log.snapshot import DROPPED, Snapshot
from spark_jms.log.table_schema import with_columns


def metadata_action(snapshot: Snapshot, destination: Destination) -> dict[str, dict[str, Any]]:
    """The metaData action that makes `destination` the table's declaration. Properties that are promoted now become columns.
    Raises InvalidDestinationError when the table has such a column of another type."""
    stored: dict[str, str] = dict(snapshot.metadata.get("configuration") or {})
    kept = {key: value for key, value in stored.items() if not key.startswith("jmsq.") or key == DROPPED}
    changed = {**kept, **removed_retention(destination), **destination.to_configuration()}
    promoted = PromotedColumns.of(destination.promoted_properties)
    metadata = with_columns(snapshot.metadata, promoted.fields) if promoted else snapshot.metadata
    return {"metaData": {**metadata, "configuration": changed}}


def removed_retention(destination: Destination) -> dict[str, str]:
    """How long a Delta checkpoint remembers removed files: clean-up needs them until the grace is over."""
    return {"delta.deletedFileRetentionDuration": f"interval {max(destination.file_grace_ms // 1000, 1)} seconds"}
