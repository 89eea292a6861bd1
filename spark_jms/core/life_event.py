"""The events of the life-cycle log: life_cycle.py says where they come from.

Features: T6 (docs/FEATURES.md)
"""

from __future__ import annotations

from enum import Enum


class LifeEvent(Enum):
    """`value` stands in the table."""

    SENT = "sent"
    CLAIMED = "claimed"
    ACKNOWLEDGED = "acknowledged"
    RELEASED = "released"
    EXPIRED = "expired"
    REFUSED = "refused"
    SKIPPED = "skipped"
    TRANSFERRED = "transferred"
    REMOVED = "removed"
