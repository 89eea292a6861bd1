"""Points of time and durations of messages: rounding, overflow, zero, range and zone, in every way in and out (C2)."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.client.messages.columns import to_columns
from spark_jms.client.messages.encoding import compose, to_batch
from spark_jms.client.messages.message import Message
from spark_jms.core.messages.columns import IN_ARROW, IN_SQL, check_sendable, normalise
from spark_jms.core.messages.types import moment
from spark_jms.errors import MessageFormatError
from spark_jms.settings.types import parse_duration_ms

NOW = 1_700_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
COLUMNS = ["JMSExpiration", "JMSDeliveryTime"]
LONGEST = 2**63 - 1
NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def rows(column: str, values: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(["x"] * len(values)), values], ["text", column])


def times(*values: int | None, unit: str = "us", zone: str | None = "UTC") -> pa.Array:
    return pa.array(values, pa.int64()).cast(pa.timestamp(unit, zone))


def refused(column: str, values: pa.Array) -> str:
    with pytest.raises(MessageFormatError) as caught:
        normalise(rows(column, values), NOW, 100)
    return str(caught.value)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("unit", NANOSECONDS)
@given(number=st.integers(1, LONGEST))
def test_column_of_times_is_rounded_up_to_milliseconds(column: str, unit: str, number: int) -> None:
    """C2: exactly, in any unit and zone; what does not fit is refused by row and column."""
    values = times(None, 1, number, unit=unit, zone="America/New_York")
    expected = -(-number * NANOSECONDS[unit] // 10**6)
    if expected > LONGEST:
        assert refused(column, values) == (
            f"row 2: {column} is {number:,} s since 1970, which does not fit milliseconds in 64 bits"
        )
    else:
        assert normalise(rows(column, values), NOW, 100).column(column)[2].as_py() == expected


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("unit", NANOSECONDS)
@pytest.mark.parametrize("number", [0, -1, -(2**62)])
def test_time_at_the_beginning_of_1970_or_before_is_refused(column: str, unit: str, number: int) -> None:
    """C2: 0 would mean never; the error names row and column."""
    error = refused(column, times(None, 2**40, number, unit=unit))
    assert error.startswith(f"row 2: {column} is {number:,} {unit} since 1970, ")
    assert number == -(2**62) or "but must be after the beginning of 1970" in error


@pytest.mark.parametrize("column", COLUMNS)
def test_number_of_milliseconds_is_taken_as_it_is(column: str) -> None:
    """C2: 0 is never, or at once, as in JMS; below it is refused by row."""
    stored = normalise(rows(column, pa.array([0, 5, LONGEST])), NOW, 100)
    assert stored.column(column).to_pylist() == [0, 5, LONGEST]
    assert refused(column, pa.array([5, -1])).startswith(f"row 1: {column} is -1, but must be 0")
    assert refused(column, pa.array([2**63], pa.uint64())).startswith(f"column {column!r} does not fit bigint")


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("unit", NANOSECONDS)
def test_column_without_a_zone_is_refused_with_the_cast(column: str, unit: str) -> None:
    """C2: in the sender's language."""
    schema = rows(column, times(1, unit=unit, zone=None)).schema
    for advice, cast in (
        (IN_SQL, f"cast({column} as timestamp)"),
        (IN_ARROW, f"pyarrow.compute.assume_timezone({column}, 'America/New_York')"),
    ):
        with pytest.raises(MessageFormatError, match=f"column '{column}' is a time without a time zone") as caught:
            check_sendable(schema, advice)
        assert cast in str(caught.value)


class _NoOffset(tzinfo):
    def utcoffset(self, _: datetime | None) -> None:
        return None


@pytest.mark.parametrize("argument", ["expiration", "delivery_time"])
@pytest.mark.parametrize(
    ("given_moment", "says"),
    [
        (datetime(2030, 1, 1), "with a time zone"),  # noqa: DTZ001
        (datetime(2030, 1, 1, tzinfo=_NoOffset()), "with a time zone"),
        (NOW, "must be a datetime"),
        (0, "must be a datetime"),
        (EPOCH, "must be after the beginning of 1970"),
        (EPOCH - timedelta(microseconds=1), "must be after the beginning of 1970"),
        (datetime(1, 1, 1, tzinfo=timezone.utc), "must be after the beginning of 1970"),
    ],
)
def test_datetime_is_refused_by_argument(argument: str, given_moment: Any, says: str) -> None:
    """C2, C11: zone, zero and range."""
    with pytest.raises(MessageFormatError, match=says) as caught:
        compose(NOW, {"text": "x", argument: given_moment})
    assert str(caught.value).startswith(f"{argument} is ")


@given(st.integers(1, 10**17))
def test_datetime_is_rounded_up_to_milliseconds(microseconds: int) -> None:
    """C2, C11: exactly, as a column is."""
    message = compose(NOW, {"expiration": EPOCH + timedelta(microseconds=microseconds)})
    assert message.expiration_ms == -(-microseconds // 1000)


@pytest.mark.parametrize("duration", ["0.4 ms", "0.0001 s", 0.0001, timedelta(microseconds=1), 5e-324])
@pytest.mark.parametrize(("argument", "field"), [("time_to_live", "expiration_ms"), ("delay", "delivery_time_ms")])
def test_short_duration_is_a_millisecond(duration: Any, argument: str, field: str) -> None:
    """C2, C11, C14: it does not become none; 0 is none."""
    assert getattr(compose(NOW, {argument: duration}), field) == NOW + 1
    assert getattr(compose(NOW, {argument: 0}), field) == 0
    (stored,) = normalise(to_columns([{"text": "x", argument: duration}], [NOW]), NOW, 100).to_pylist()
    assert NOW + 1 in (stored["JMSExpiration"], stored["JMSDeliveryTime"])


def test_short_duration_of_a_setting_is_a_millisecond() -> None:
    """C2, C14: options, flags and module files read durations by the same rule."""
    assert [parse_duration_ms(text) for text in ("0.4 ms", "1.4 ms", "0", "0 ms")] == [1, 1, 0, 0]


@pytest.mark.parametrize("argument", ["time_to_live", "delay"])
@pytest.mark.parametrize("duration", [1e300, "300000000000 days"])
def test_duration_beyond_64_bits_is_refused(argument: str, duration: Any) -> None:
    """C2, C11: by its name."""
    with pytest.raises(MessageFormatError, match=f"^{argument} is .*64 bits"):
        compose(NOW, {argument: duration})


@pytest.mark.parametrize("milliseconds", [LONGEST, 253_402_300_800_000, -(2**63)])
def test_time_that_no_datetime_holds_is_none(milliseconds: int) -> None:
    """C2, C11: Java's "never"; the milliseconds stay, also in a dict for JSON and when the message is sent again."""
    message = Message("x", expiration_ms=milliseconds, delivery_time_ms=milliseconds, timestamp_ms=milliseconds)
    assert (message.expiration, message.delivery_time, message.timestamp) == (None, None, None)
    assert message.to_dict()["expiration_ms"] == milliseconds
    assert repr(milliseconds) in repr(message)
    assert to_batch([message]).column("JMSExpiration").to_pylist() == [milliseconds]


@given(st.integers(1, 253_402_300_799_999))
def test_milliseconds_and_datetimes_agree(milliseconds: int) -> None:
    """C2, C11: a time that was read is sent as it was, to the last millisecond."""
    found = moment(milliseconds)
    assert found is not None
    assert compose(NOW, {"expiration": found}).expiration_ms == milliseconds
