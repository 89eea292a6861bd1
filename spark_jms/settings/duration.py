"""Durations as people write them: `500 ms`, `30 s`, `15 minutes`, `1 day`, or a timedelta; a bare number is milliseconds."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
_DURATION = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([a-z]*)\s*\Z")


def parse_duration_ms(written: object, bare_unit: str = "ms") -> int:
    """Milliseconds. A bare number is in `bare_unit`. ValueError says what is accepted."""
    if isinstance(written, timedelta) and written >= timedelta():
        return round(written / timedelta(milliseconds=1))
    match = None if isinstance(written, bool) else _DURATION.match(str(written).lower())
    if match is None or (match[2] or bare_unit) not in _UNITS_MS:
        raise ValueError(f"{written!r} is not a duration: write a number and ms, s, m, h or days, such as '30 s'")
    return round(float(match[1]) * _UNITS_MS[match[2] or bare_unit])


def show_duration(duration_ms: float, thousands: str = "") -> str:
    """In the largest unit that gives a whole number: `7 days`, `15 min`, `0`. `parse_duration_ms` reads it back."""
    for name, unit_ms in (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if duration_ms and duration_ms % unit_ms == 0:
            count = int(duration_ms // unit_ms)
            return f"{count:{thousands}} {'day' if name == 'days' and count == 1 else name}"
    return f"{round(duration_ms):{thousands}} ms" if duration_ms else "0"
