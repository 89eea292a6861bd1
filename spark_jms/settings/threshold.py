"""Pairs of thresholds, high and low, of destinations and servers.

Features: T5 (docs/FEATURES.md)
"""

from __future__ import annotations

NO_THRESHOLD = -1


def wrong_pair(name: str, high: int, low: int) -> str | None:
    """What does not fit in the thresholds `<name>ThresholdHigh` and `…Low`; None: nothing."""
    if high == NO_THRESHOLD:
        return None if low == NO_THRESHOLD else f"{name}ThresholdLow is {low}, but {name}ThresholdHigh is missing"
    if high < 2:
        return f"{name}ThresholdHigh is {high}, but must be -1 (no threshold), or 2 or more"
    if not 1 <= low < high:
        given = "missing" if low == NO_THRESHOLD else str(low)
        return f"{name}ThresholdLow is {given}, but must be 1 to {high - 1}: below {name}ThresholdHigh"
    return None
