"""Points of time in messages: milliseconds since 1970 UTC. Pure.

    given                                      it becomes
    a time with a zone, after 1970             its millisecond; a fraction counts as a whole one
    a time at or before the beginning of 1970  an error: 0 means never, or at once
    a time without a zone                      an error: it is another moment in each zone

So no message comes before its time, and no life becomes none. Durations are rounded by settings/duration.py.

Features: C2 (docs/FEATURES.md)
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.errors import MessageFormatError

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MOST_S = (2**63 - 1) // 1000
_OF_UNIT = {"us": 1_000, "ns": 1_000_000}  # in a millisecond
MOMENT_COLUMNS = ("JMSExpiration", "JMSDeliveryTime")
_TOO_EARLY = "must be after the beginning of 1970: leave it out for a message without it"


def moment_ms(name: str, column: str, moment: object) -> int:
    """Of the argument `name`, which sets `column`. Raises MessageFormatError."""
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise MessageFormatError(
            f"{name} is {moment!r}, but must be a datetime with a time zone, such as "
            "datetime(2030, 1, 31, 8, tzinfo=timezone.utc)"
        )
    found = -((_EPOCH - moment) // timedelta(milliseconds=1))
    if found <= 0:
        raise MessageFormatError(f"{name} is {moment!r}, but {column} {_TOO_EARLY}")
    return found


def moment(milliseconds: int) -> datetime | None:
    """None for 0, and for what no datetime can hold: beyond the year 9999, such as Java's greatest long for "never"."""
    if not milliseconds:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None


def moments_ms(name: str, times: pa.TimestampArray) -> pa.Int64Array:
    """Of a column with a time zone. Raises MessageFormatError, which names row and column."""
    unit, numbers = times.type.unit, times.view(pa.int64())
    if unit == "s":
        try:
            numbers = pc.multiply_checked(numbers, 1000)
        except pa.ArrowInvalid:
            wide = pc.or_(pc.greater(numbers, _MOST_S), pc.less(numbers, -_MOST_S))
            _refuse(name, times, wide, "which does not fit milliseconds in 64 bits")
    elif unit in _OF_UNIT:
        whole = pc.divide(numbers, _OF_UNIT[unit])
        numbers = pc.add(whole, pc.cast(pc.greater(numbers, pc.multiply(whole, _OF_UNIT[unit])), pa.int64()))
    early = pc.less_equal(numbers, 0)
    if pc.any(early).as_py():
        _refuse(name, times, early, f"but {_TOO_EARLY}")
    return numbers


def _refuse(name: str, times: pa.TimestampArray, bad: Any, why: str) -> None:
    row = pc.index(bad, True).as_py()
    value = times.view(pa.int64())[row].as_py()
    raise MessageFormatError(f"row {row}: {name} is {value:,} {times.type.unit} since 1970, {why}")
