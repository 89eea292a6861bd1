"""The rules of the usage history (T3)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.limits.quota import MessageUsage
from spark_jms.core.limits.usage_history import WINDOW_MS, UsageWindow, merged

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
