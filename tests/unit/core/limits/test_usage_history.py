"""The rules of the usage history (T3)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.destinations.subscriptions import LIMIT
from spark_jms.core.limits.quota import MessageUsage
from spark_jms.core.limits.usage_history import KEPT_MS, WINDOW_MS, UsageWindow, acknowledged, merged, window_at
from spark_jms.core.records.endings import EXPIRER, LIMITER, PURGER

NOW = 1_800_000_123_456
COUNTS = st.integers(0, 1000)
USED = st.none() | st.builds(MessageUsage, COUNTS, COUNTS)
WINDOWS = st.builds(
    UsageWindow, st.sampled_from("ab"), st.sampled_from([0, WINDOW_MS]), COUNTS, COUNTS, COUNTS, COUNTS, USED
)


@given(st.lists(WINDOWS), st.integers(0, 10))
def test_rounds_add_up_wherever_they_end(found: list[UsageWindow], end: int) -> None:
    """T3: a history of two rounds is that of one; each minute of a destination is there once, in order."""
    whole = merged(found)
    assert merged([*merged(found[:end]), *found[end:]]) == whole
    keys = [(one.start_ms, one.destination) for one in whole]
    assert keys == sorted(set(keys))
    assert sum(one.sent for one in whole) == sum(one.sent for one in found)
    for one in whole:
        same = [other.used for other in found if (other.start_ms, other.destination) == (one.start_ms, one.destination)]
        assert one.used == next((used for used in reversed(same) if used is not None), None)


@given(st.integers(0, 2 * NOW))
def test_window_holds_its_time_unless_a_clock_is_wrong(at_ms: int) -> None:
    """T3: a time that is not kept any more, or far ahead, counts as now."""
    start = window_at(at_ms, NOW)
    assert start % WINDOW_MS == 0
    trusted = NOW - KEPT_MS <= at_ms <= NOW + 3_600_000
    assert 0 <= (at_ms if trusted else NOW) - start < WINDOW_MS


def test_acknowledgement_counts_by_its_consumer() -> None:
    """T3, T4, T6: consumers finish; limits and administrators drop; what was redirected counts where it expired."""
    assert [*acknowledged("q", 0, "query-1", 3)] == [UsageWindow("q", 0, finished=3)]
    for consumer in (PURGER, LIMITER, LIMIT):
        assert [*acknowledged("q", 0, consumer, 3)] == [UsageWindow("q", 0, dropped=3)]
    assert [*acknowledged("q", 0, EXPIRER, 3)] == []
