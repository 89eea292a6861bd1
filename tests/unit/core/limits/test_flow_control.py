"""Flow control: thresholds, and the limit of a sender over time, against the texts' words and a plain reference (T5)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.limits.flow_control import FREE, UNARMED, FlowParameters, FlowThreshold, FlowThresholds, Pace
from spark_jms.settings.fields import wrong_pair

STEP_S = 6  # of the defaults: 60 s in 10 steps


def limits(parameters: FlowParameters, armed: list[bool], start: Pace | None = None) -> list[float | None]:
    """The limit at each step, with `armed` as it is then."""
    pace, out, first = start or Pace(), [], start.stepped_ms if start else 0.0
    for number, is_armed in enumerate(armed):
        pace = pace.at(first + number * parameters.step_ms, parameters, armed=is_armed)
        out.append(pace.limit)
    return out


def test_rate_falls_geometrically_as_in_the_text() -> None:
    """T5: 100, 50, 25, 12.5, then the minimum holds."""
    found = limits(FlowParameters(100, 12.5, 60_000, 3), [True] * 6)
    assert found == pytest.approx([100, 50, 25, 12.5, 12.5, 12.5])


def test_interval_is_divided_by_the_steps() -> None:
    """T5: 60 seconds by 6 steps is 10 seconds for each."""
    parameters = FlowParameters(100, 10, 60_000, 6)
    assert parameters.step_ms == 10_000
    pace = Pace().at(0, parameters, armed=True)
    assert pace.at(9_999, parameters, armed=True).limit == 100
    assert pace.at(10_000, parameters, armed=True).limit == pytest.approx(100 * 0.1 ** (1 / 6))
    assert pace.at(60_000, parameters, armed=True).limit == 10


def test_rate_rises_linearly_until_the_sender_is_free() -> None:
    """T5: by a step of the difference; at the maximum it is free."""
    parameters = FlowParameters(100, 10, 60_000, 3)
    down = [True] * 4
    assert limits(parameters, down + [False] * 4)[3:] == pytest.approx([10, 40, 70, None, None])


def test_sender_that_is_armed_again_keeps_its_lower_limit() -> None:
    """T5: until the next step."""
    parameters = FlowParameters(100, 10, 60_000, 3)
    pace = Pace()
    for seconds, armed in [(0, True), (20, True), (40, True), (60, True), (80, False)]:
        pace = pace.at(seconds * 1000, parameters, armed=armed)
    assert pace.limit == pytest.approx(40)
    pace = pace.at(85_000, parameters, armed=True)
    assert pace.limit == pytest.approx(40)
    assert pace.at(100_000, parameters, armed=True).limit == pytest.approx(40 * 0.1 ** (1 / 3))


def test_defaults_go_from_500_to_50_within_a_minute() -> None:
    """T5: ten steps down, and ten steps up until the sender is free."""
    found = limits(FlowParameters(), [True] * 11 + [False] * 10)
    assert found[0] == 500
    assert found[10] == 50
    assert found[11] == pytest.approx(95)
    assert found[-2] == pytest.approx(455)
    assert found[-1] is None


def test_unlimited_sender_is_never_slowed() -> None:
    """T5: it has no debt and stays what it is."""
    pace = Pace().with_debt(1_000_000)
    assert pace == Pace()
    assert pace.at(1e9, FlowParameters(), armed=False) is pace
    assert pace.wait_ms(5) == 0


def test_interval_of_zero_jumps() -> None:
    """T5: to the minimum when armed, and to freedom when not."""
    parameters = FlowParameters(100, 10, 0, 3)
    pace = Pace().at(0, parameters, armed=True)
    assert pace.limit == 10
    assert pace.at(1, parameters, armed=True).limit == 10
    assert pace.at(2, parameters, armed=False).limit is None


PARAMETERS = st.builds(
    lambda minimum, more, step, steps: FlowParameters(minimum + more, minimum, step * steps, steps),
    st.integers(1, 50),
    st.integers(0, 500),
    st.integers(1, 20_000),
    st.integers(1, 12),
)


@given(PARAMETERS, st.lists(st.booleans(), max_size=40))
def test_limit_follows_the_words_step_by_step(parameters: FlowParameters, armed: list[bool]) -> None:
    """T5: against the table, written out."""
    expected: list[float | None] = []
    limit: float | None = None
    ratio = (parameters.minimum / parameters.maximum) ** (1 / parameters.steps)
    rise = (parameters.maximum - parameters.minimum) / parameters.steps
    for is_armed in armed:
        if limit is None:
            limit = parameters.maximum if is_armed else None
        elif is_armed:
            limit = max(limit * ratio, parameters.minimum)
        else:
            limit = limit + rise if limit + rise < parameters.maximum * (1 - 1e-9) else None
        expected.append(limit)
    found = limits(parameters, armed)
    assert [one is None for one in found] == [one is None for one in expected]
    assert [one for one in found if one] == pytest.approx([one for one in expected if one])


@given(PARAMETERS, st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 20)), max_size=40), st.booleans())
def test_sender_that_waits_for_its_debt_keeps_its_rate(
    parameters: FlowParameters, sends: list[tuple[int, int]], disarms: bool
) -> None:
    """T5: what is paid is never more than the limit allows since the beginning, nothing is saved up, and looking more often
    changes nothing."""
    pace = often = Pace().at(0, parameters, armed=True)
    now, allowed = 0.0, 0.0
    for number, (pause, count) in enumerate(sends):
        armed = not disarms or number % 2 == 0
        for part in range(1, 4):
            often = often.at(now + pause * part / 3, parameters, armed=armed)
        allowed += pause / 1000 * parameters.maximum
        now += pause
        pace = pace.at(now, parameters, armed=armed)
        assert (pace.limit is None) == (often.limit is None)
        if pace.limit is None:
            break
        assert often.limit == pytest.approx(pace.limit)
        assert often.debt == pytest.approx(pace.debt, abs=1e-6)
        assert -1e-9 <= pace.paid <= pace.due
        assert pace.paid <= allowed + 1e-6
        assert parameters.minimum * (1 - 1e-9) <= pace.limit <= parameters.maximum
        pace, often = pace.with_debt(count), often.with_debt(count)
        rested = pace.at(now + pace.wait_ms(pace.due), FlowParameters(pace.limit, pace.limit, 60_000, 1), armed=True)
        assert rested.debt == pytest.approx(0, abs=1e-6)
    assert Pace.from_json(json.loads(json.dumps(pace.to_json()))).debt == pytest.approx(pace.debt)


def test_pace_with_time_that_goes_backwards_stands_still() -> None:
    """T5: a stored pace is read by processes with clocks of their own."""
    parameters = FlowParameters()
    pace = Pace().at(100_000, parameters, armed=True).with_debt(10)
    assert pace.at(90_000, parameters, armed=True) == pace


def test_thresholds_have_a_band_that_changes_nothing() -> None:
    """T5: armed above high, unarmed below low."""
    thresholds = FlowThresholds(messages=FlowThreshold(10, 5))
    arming, found = UNARMED, []
    for messages in [5, 10, 11, 10, 5, 4, 5, 10, 11]:
        arming = arming.after(thresholds, messages, 10**9)
        found.append(bool(arming))
    assert found == [False, False, True, True, True, False, False, False, True]


def test_either_measure_arms() -> None:
    """T5: and both must be low again."""
    thresholds = FlowThresholds(FlowThreshold(10, 5), FlowThreshold(1000, 500))
    arming = UNARMED.after(thresholds, 11, 1001)
    assert (arming.messages, arming.bytes) == (True, True)
    arming = arming.after(thresholds, 4, 600)
    assert (arming.messages, arming.bytes, bool(arming)) == (False, True, True)
    assert not arming.after(thresholds, 4, 499)
    assert not arming.after(FlowThresholds(), 10**9, 10**9), "thresholds that are removed unarm"


@pytest.mark.parametrize(
    ("high", "low", "wrong"),
    [
        (-1, -1, None),
        (10, 5, None),
        (2, 1, None),
        (-1, 5, "messagesThresholdHigh is missing"),
        (10, -1, "messagesThresholdLow is missing, but must be 1 to 9"),
        (10, 10, "is 10, but must be 1 to 9"),
        (10, 0, "is 0, but must be 1 to 9"),
        (1, 0, "messagesThresholdHigh is 1"),
    ],
)
def test_thresholds_that_do_not_fit_are_named(high: int, low: int, wrong: str | None) -> None:
    """T5: with a low threshold of 0 nothing would ever unarm."""
    found = wrong_pair("messages", high, low)
    assert found is None if wrong is None else found is not None and wrong in found


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.data())
def test_senders_that_leave_delay_no_other(sends: list[int], data: st.DataObject) -> None:
    """T5: the debt is that of the messages that are sent, and every ticket is paid for by then."""
    pace = FREE.at(0, FlowParameters(10, 10, 1000, 1), armed=True).with_debt(10)
    tickets = []
    for messages in sends:
        tickets.append(pace.due)
        pace = pace.with_debt(messages)
    leaving = data.draw(st.sets(st.integers(0, len(sends) - 1)))
    for number in leaving:
        pace = pace.without_debt(sends[number])
    left = sum(messages for number, messages in enumerate(sends) if number not in leaving)
    assert pace.debt == 10 + left
    assert all(pace.wait_ms(ticket) <= pace.debt / 10 * 1000 for ticket in tickets)
