"""Durations as people write them: `500ms`, `30 s`, `15 minutes`, `1 day`; a bare number is milliseconds."""

from __future__ import annotations

import re

_UNITS_MS = {
    "ms": 1,
    "millisecond": 1,
    "s": 1000,
    "sec": 1000,
    "second": 1000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*\Z")


def parse_duration_ms(text: object) -> int:
    """Milliseconds. ValueError says what is accepted."""
    match = _DURATION.match(str(text).lower()) if not isinstance(text, bool) else None
    unit = match.group(2).removesuffix("s") or ("s" if match and match.group(2) == "s" else "") if match else None
    if match and unit == "m" and match.group(2) == "ms":
        unit = "ms"
    if match is None or (unit and unit not in _UNITS_MS):
        raise ValueError(f"{text!r} is not a duration: write a number and ms, s, m, h or days, such as '30 s'")
    return round(float(match.group(1)) * _UNITS_MS[unit or "ms"])
