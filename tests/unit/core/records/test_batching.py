"""T13: the performance preference of a destination, as waits and sizes of batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.records.batch import FULL_BATCH, WAITS_MS, Admission, Limits, client_limits, query_limits
from spark_jms.settings.destination import KEYS, PERFORMANCE_PREFERENCES

preferences = st.sampled_from(list(WAITS_MS))


def allows(admission: Admission, limits: Limits, available: int, now_ms: float, *, draining: bool = False) -> bool:
    """Of the only member, which this consumer holds."""
    offered = {0: available} if available else {}
    return admission.allows(limits, offered, now_ms, draining=draining, looked_at={0})


def test_each_preference_has_its_wait() -> None:
    """T13: the texts' five values with 25 as the default; the reference states the waits."""
    assert list(PERFORMANCE_PREFERENCES) == list(WAITS_MS) == [0, 25, 50, 75, 100]
    assert KEYS["messagingPerformancePreference"].default == 25
    assert sorted(WAITS_MS.values()) == list(WAITS_MS.values())
    for preference in (50, 75, 100):
        assert f"{WAITS_MS[preference]} ms" in PERFORMANCE_PREFERENCES[preference]


@given(preferences, st.none() | st.integers(1, 10_000), st.integers(1, 2**30))
def test_limits_of_a_client(preference: int, maximum: int | None, max_bytes: int) -> None:
    """T13: 0 is one message, 25 does not wait, a larger one waits for a full batch."""
    limits = client_limits(preference, maximum, max_bytes)
    assert limits.max_bytes == max_bytes
    assert limits.max_messages == (1 if preference == 0 else maximum)
    assert (limits.linger_ms or 0) == WAITS_MS[preference]
    full = min(maximum or FULL_BATCH, FULL_BATCH)
    assert limits.min_messages == (full if WAITS_MS[preference] else 1)


@given(st.sampled_from([0, 25]), st.none() | st.integers(1, 10_000), st.none() | st.integers(1, 2**30))
def test_query_waits_for_nothing_by_default(preference: int, maximum: int | None, max_bytes: int | None) -> None:
    """T13: and 0 does not make it take single messages."""
    assert query_limits(preference, maximum, max_bytes) == Limits(maximum, max_bytes)


# A plan after so many ms sees so many messages more.
plans = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 4)), max_size=30)


@given(plans, st.sampled_from([50, 75, 100]), st.integers(1, 6))
def test_batch_waits_from_its_first_message_on(steps: list[tuple[int, int]], preference: int, full: int) -> None:
    """T13: until it is full, or its first message has waited as long as the preference says; then it goes as it is."""
    limits = client_limits(preference, full, 1000)
    now = 0.0
    admission = Admission(now)
    since: list[float] = []  # when each waiting message was seen
    for after, more in steps:
        now += after
        since += [now] * more
        allowed = allows(admission, limits, min(len(since), full), now)
        assert allowed == bool(since and (len(since) >= full or now - since[0] >= WAITS_MS[preference]))
        assert admission.lingers == bool(since)
        if allowed:
            since = []  # another consumer gets what is more than a batch
            admission.made(now)
        assert not admission.is_due(now)
        due = since[0] + WAITS_MS[preference] if since else now
        assert admission.is_due(due) == bool(since)


def test_messages_that_others_took_do_not_shorten_the_next_wait() -> None:
    """T13"""
    limits = client_limits(100, 10, 1000)
    admission = Admission(0)
    assert not allows(admission, limits, 3, 0)
    assert not allows(admission, limits, 0, 499)
    assert not allows(admission, limits, 3, 500)
    assert allows(admission, limits, 3, 1000)


def test_record_set_that_another_session_has_open_does_not_begin_the_wait_again() -> None:
    """T13: what waits there is not known to be gone."""
    limits = client_limits(100, 10, 1000)
    admission = Admission(0)
    assert not allows(admission, limits, 3, 0)
    for now_ms in range(100, 700, 100):
        assert not admission.allows(limits, {}, now_ms, draining=False, looked_at={1})
        assert admission.lingers
        assert not admission.is_due(now_ms), "without the record there is nothing to plan"
    assert allows(admission, limits, 3, 700)


def test_drained_messages_do_not_wait() -> None:
    """C6, T13: Trigger.AvailableNow."""
    admission = Admission(0)
    assert allows(admission, query_limits(100, None, None), 1, 0, draining=True)
    assert not allows(admission, query_limits(100, None, None), 0, 0, draining=True)


@given(st.integers(0, 5), st.integers(0, 2000), st.integers(1, 4), st.integers(0, 1000), st.booleans())
def test_minimum_of_a_query_waits_from_the_batch_before(
    available: int, now: int, minimum: int, delay: int, draining: bool
) -> None:
    """C6: minMessagesPerTrigger and maxTriggerDelay."""
    limits = Limits(min_messages=minimum, max_delay_ms=delay)
    assert allows(Admission(0), limits, available, now, draining=draining) == (
        available > 0 and (draining or available >= minimum or now >= delay)
    )


@pytest.mark.parametrize("maximum", [None, 50_000])
def test_full_batch_of_a_query_is_bounded(maximum: int | None) -> None:
    """T13: a query without a limit does not wait for the whole backlog."""
    assert query_limits(50, maximum, None).min_messages == FULL_BATCH
