"""Thresholds of a destination or server: when it tells its senders to slow down. Pure.

Each of the two measures, messages and bytes, is armed and unarmed by itself, with a band in between that changes nothing:

                 above high    low to high    below low
    unarmed      armed         unarmed        unarmed
    armed        armed         armed          unarmed

The destination or server is armed while one of its measures is.

Features: T5 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_jms.settings.destination import DestinationSettings, ServerSettings
from spark_jms.settings.threshold import NO_THRESHOLD


@dataclass(frozen=True)
class FlowThreshold:
    """Of one measure: `high` is exceeded, or usage falls below `low`. NO_THRESHOLD: never armed."""

    high: int = NO_THRESHOLD
    low: int = NO_THRESHOLD

    def arms(self, used: int, *, armed: bool) -> bool:
        if self.high == NO_THRESHOLD or used < self.low:
            return False
        return armed or used > self.high


@dataclass(frozen=True)
class FlowThresholds:
    messages: FlowThreshold = FlowThreshold()
    bytes: FlowThreshold = FlowThreshold()

    def __bool__(self) -> bool:
        return self.messages.high != NO_THRESHOLD or self.bytes.high != NO_THRESHOLD

    def to_json(self) -> dict[str, list[int]]:
        return {"messages": [self.messages.high, self.messages.low], "bytes": [self.bytes.high, self.bytes.low]}

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> FlowThresholds:
        """Raises ValueError or TypeError."""
        return FlowThresholds(*(FlowThreshold(*map(int, stored.get(name, ()))) for name in ("messages", "bytes")))


NO_THRESHOLDS = FlowThresholds()


def thresholds_of(settings: DestinationSettings | ServerSettings) -> FlowThresholds:
    return FlowThresholds(
        FlowThreshold(settings.messages_threshold_high, settings.messages_threshold_low),
        FlowThreshold(settings.bytes_threshold_high, settings.bytes_threshold_low),
    )


@dataclass(frozen=True)
class Arming:
    """Which measures are armed."""

    messages: bool = False
    bytes: bool = False

    def __bool__(self) -> bool:
        return self.messages or self.bytes

    def after(self, thresholds: FlowThresholds, messages: int, size: int) -> Arming:
        """By a usage of so many messages and bytes."""
        return Arming(
            thresholds.messages.arms(messages, armed=self.messages), thresholds.bytes.arms(size, armed=self.bytes)
        )


UNARMED = Arming()
