"""The skew of a process's clock, known within bounds (C17)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_jms.log.tables.storage import TOLERATED_SKEW_MS, ClockReading

SKEWS = st.integers(-10 * TOLERATED_SKEW_MS, 10 * TOLERATED_SKEW_MS)


@given(SKEWS, st.integers(0, 2**41), st.integers(0, 5_000), st.integers(0, 5_000), st.sampled_from([1, 1_000]))
def test_bounds_hold_the_true_skew(
    skew_ms: int, true_ms: int, write_ms: int, answer_ms: int, precision_ms: int
) -> None:
    """C17: however long writing took, and if the storage keeps whole seconds only."""
    file_ms = (true_ms + write_ms) // precision_ms * precision_ms
    reading = ClockReading.of(true_ms + skew_ms, file_ms, true_ms + write_ms + answer_ms + skew_ms)
    assert reading.least_ms <= skew_ms <= reading.most_ms
    if abs(skew_ms) <= TOLERATED_SKEW_MS:
        assert reading.is_tolerated
    if abs(skew_ms) > TOLERATED_SKEW_MS + write_ms + answer_ms + 1_000:
        assert not reading.is_tolerated


def test_reading_says_which_clock_is_ahead() -> None:
    """C17"""
    assert str(ClockReading.of(10_005, 5_001, 10_007)) == "5,004 ms ahead (± 2 ms)"
    assert str(ClockReading.of(1_001, 5_001, 1_003)) == "4,000 ms behind (± 2 ms)"
    assert str(ClockReading.of(5_400, 5_000, 5_400)) == "100 ms behind (± 500 ms)"
