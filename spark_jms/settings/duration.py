"""Durations are written by one rule everywhere.

in text      a number with ms, s, min, h or days: '500 ms', '10 s', '15 minutes', '1 day'. On the command line, in the
             module file and in options of Spark a number alone is refused (0 is 0 in any unit). Where the name of a
             setting ends in its unit (`retry_limit_s`, RS_HEARTBEAT_MS), a number alone has that unit.
in Python    such a text, a timedelta, or a number of seconds

They are whole milliseconds, rounded; only 0 is 0, since for most settings it means another thing than a short time.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta

DurationLike = str | timedelta | float

_UNITS_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
_DURATION = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([a-z]*)\s*\Z")


def parse_duration_ms(written: object, bare_unit: str = "") -> int:
    """Milliseconds. A bare number other than 0 needs a `bare_unit`. ValueError says what is accepted."""
    if isinstance(written, timedelta) and written >= timedelta():
        return whole_ms(written / timedelta(milliseconds=1))
    match = None if isinstance(written, bool) else _DURATION.match(str(written).lower())
    if match is None or (match[2] and match[2] not in _UNITS_MS):
        raise ValueError(f"{written!r} is not a duration: write a number and ms, s, min, h or days, such as '30 s'")
    unit = match[2] or bare_unit
    if not unit and float(match[1]):
        raise ValueError(f"{written} has no unit: write {match[1]}s for seconds, or {match[1]} with ms, min, h or days")
    return whole_ms(float(match[1]) * _UNITS_MS[unit or "s"])


def whole_ms(duration_ms: float) -> int:
    """Of a duration, 0 or more."""
    return max(round(duration_ms), 1) if duration_ms else 0


def duration_s(value: DurationLike) -> float:
    """The seconds of a duration given in Python. ValueError says what is accepted."""
    if isinstance(value, str):
        return parse_duration_ms(value) / 1000
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is not a duration: give '30 s', a timedelta, or a number of seconds, 0 or more")
    return float(value)


def show_duration(duration_ms: float, thousands: str = "") -> str:
    """In the largest unit that gives a whole number: `7 days`, `15 min`, `0`. `parse_duration_ms` reads it back."""
    for name, unit_ms in (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if duration_ms and duration_ms % unit_ms == 0:
            count = int(duration_ms // unit_ms)
            return f"{count:{thousands}} {'day' if name == 'days' and count == 1 else name}"
    return f"{round(duration_ms):{thousands}} ms" if duration_ms else "0"
