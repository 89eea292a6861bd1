"""A data file that is written and not in a log yet.

Features: C5, T8 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import dataclass

COMPRESSED_BODIES = "jmsqCompressedBodies"  # among the statistics of a file; Delta readers ignore it


@dataclass(frozen=True)
class StagedFile:
    """It has rows but no sequence numbers. `stats` are Delta's statistics, as JSON text. `placed`: the units of order that are on
    this member if they are new (unit_paths.py)."""

    path: str
    member: int
    rows: int
    bytes: int
    modified_ms: int
    stats: str
    placed: frozenset[str] = frozenset()

    @property
    def token(self) -> str:
        """The unique part of the file's name, with which the ids of its messages begin."""
        return self.path.removeprefix(f"m{self.member}-").removesuffix(".parquet")

    @property
    def has_compressed(self) -> bool:
        """Bodies of some messages are compressed."""
        return f'"{COMPRESSED_BODIES}":true' in self.stats

    def add_action(self, first_sequence: int, *, data_change: bool) -> dict[str, dict[str, object]]:
        return {
            "add": {
                "path": self.path,
                "size": self.bytes,
                "modificationTime": self.modified_ms,
                "dataChange": data_change,
                "partitionValues": {"member": str(self.member), "first_sequence": str(first_sequence)},
                "stats": self.stats,
            }
        }
