"""What housekeeping has done.

Features: C13 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class HousekeepingReport:
    """Counts, added up over the rounds of one destination."""

    purged_files: int = 0
    purged_messages: int = 0
    compacted_files: int = 0
    checkpoints: int = 0
    deleted_files: int = 0
    expired_messages: int = 0
