"""A data file of a destination as the log names it.

Features: C3 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from spark_jms.core.message import ORDINAL, STATISTICS_COLUMNS
from spark_jms.log.acknowledgements import ACKNOWLEDGED

FILE_NAME = re.compile(r"m(\d+)-[A-Za-z0-9_-]{8,64}\.parquet\Z")
OWN_STATISTICS = (ORDINAL, *STATISTICS_COLUMNS, ACKNOWLEDGED)  # columns of ours; all others are promoted properties


@dataclass(frozen=True)
class FileHint:
    """Where a task finds rows: enough of a DataFile to read it, small enough to travel in a Spark partition."""

    path: str
    first: int
    rows: int
    bytes: int

    @property
    def last(self) -> int:
        return self.first + self.rows - 1


@dataclass(frozen=True)
class DataFile:
    """One active file: rows `first..last` of one member, in order, without gaps."""

    path: str
    member: int
    first: int  # sequence of its first row
    rows: int
    bytes: int
    first_ordinal: int
    modified_ms: int
    stats: str  # JSON as in the log

    @property
    def last(self) -> int:
        return self.first + self.rows - 1

    @property
    def hint(self) -> FileHint:
        return FileHint(self.path, self.first, self.rows, self.bytes)

    @cached_property
    def statistics(self) -> Mapping[str, Mapping[str, Any]]:
        """{"minValues": {...}, "maxValues": {...}, "nullCount": {...}} of the columns that have them."""
        statistics: Mapping[str, Mapping[str, Any]] = json.loads(self.stats)
        return statistics

    @cached_property
    def promoted(self) -> frozenset[str]:
        """The properties that are complete columns of the file (core/promoted_columns.py)."""
        return frozenset(self.statistics.get("nullCount", {})).difference(OWN_STATISTICS)

    @property
    def has_groups(self) -> bool:
        nulls = self.statistics.get("nullCount", {}).get("JMSXGroupID")
        return nulls != self.rows

    @property
    def partition_values(self) -> dict[str, str]:
        """As in the log."""
        return {"member": str(self.member), "first_sequence": str(self.first - self.first_ordinal)}

    def remove_action(self, now_ms: int) -> dict[str, dict[str, object]]:
        """The Delta action that takes this file out of the log, as housekeeping (no change of data)."""
        return {
            "remove": {
                "path": self.path,
                "deletionTimestamp": now_ms,
                "dataChange": False,
                "extendedFileMetadata": True,
                "partitionValues": self.partition_values,
                "size": self.bytes,
            }
        }
