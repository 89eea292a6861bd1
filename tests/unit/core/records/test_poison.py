"""Which part of a failing batch is delivered next (M4): core/poison.py."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records import poison
from spark_jms.core.records.batch import QueryProgress
from spark_jms.core.records.poison import Trial, TrialPhase, claimed_again, count, failed, replayed, succeeded

Message = tuple[int, int]  # member, sequence
MEMBERS = st.dictionaries(st.integers(0, 2), st.sets(st.integers(1, 60), min_size=1), min_size=1)


def messages(sets: dict[int, set[int]]) -> dict[int, Ranges]:
    return {member: Ranges.from_numbers(sorted(numbers)) for member, numbers in sets.items()}


def listed(found: poison.Messages) -> list[Message]:
    return [(m, int(n)) for m, ranges in sorted(found.items()) for n in ranges.numbers().tolist()]


@dataclass
class Query:
    """Spark, and a sink that refuses `bad`. A failure is a stop of the source; the driver dies at `deaths`."""

    bad: set[Message]
    deaths: set[int] = field(default_factory=set)
    taken: list[Message] = field(default_factory=list)
    set_aside: list[Message] = field(default_factory=list)
    attempts: int = 0
    failures: int = 0

    def run(self, trial: Trial) -> Trial | None:
        """One batch until it succeeds; the trial of the next."""
        delivered = set(listed(trial.messages))
        while True:
            tried = set(listed(trial.tried))
            assert tried <= delivered, "what a batch delivers only shrinks"
            assert tried | set(listed(trial.withheld)) <= set(listed(trial.messages))
            delivered, attempt, self.attempts = tried, self.attempts, self.attempts + 1
            assert self.attempts < 1000
            if attempt not in self.deaths:
                if not tried & self.bad:
                    self.taken += listed(trial.tried)
                    return succeeded(trial)
                trial, self.failures = failed(trial), self.failures + 1
            trial, convicted = replayed(trial, narrows=True)
            self.set_aside += listed(convicted)


def drive(query: Query, sets: dict[int, set[int]]) -> None:
    trial: Trial | None = Trial("1-a", messages(sets))
    number = 1
    while trial is not None:
        after = query.run(trial)
        number += 1
        if after is not None:
            assert after.finished
            after = claimed_again(after, f"{number}-a")
        trial = after


@given(MEMBERS, st.data())
def test_every_poison_message_is_set_aside_and_every_other_delivered_once(
    sets: dict[int, set[int]], data: st.DataObject
) -> None:
    """M4: any messages, any of them poison, the driver dying at any attempts."""
    everything = [(m, n) for m, numbers in sorted(sets.items()) for n in sorted(numbers)]
    bad = set(data.draw(st.lists(st.sampled_from(everything), max_size=4)))
    query = Query(bad, data.draw(st.sets(st.integers(0, 40), max_size=5)))
    drive(query, sets)
    assert sorted(query.set_aside) == sorted(bad)
    assert sorted(query.taken) == sorted(set(everything) - bad)
    for member in sets:
        mine = [n for m, n in query.taken if m == member]
        assert mine == sorted(mine), "messages of one member, and so of one unit of order, keep their order"
    most = len(bad) * (4 + math.ceil(math.log2(len(everything))))
    assert query.failures <= most


def test_one_poison_message_among_a_thousand_takes_few_failures() -> None:
    """M4: two failures of the whole batch, one for each half that holds it, two alone."""
    worst = 0
    for poisoned in (1, 500, 501, 777, 1000):
        query = Query({(0, poisoned)})
        drive(query, {0: set(range(1, 1001))})
        assert query.set_aside == [(0, poisoned)]
        assert len(query.taken) == 999
        worst = max(worst, query.failures)
    assert worst <= 2 + 10 + 1


def test_message_that_failed_beside_others_is_not_convicted_when_they_are_revoked() -> None:
    """M4: the whole batch has failed twice, then its other messages go to another consumer. What is left has not failed
    alone."""
    trial = Trial("1-a", messages({0: {1}, 1: {1, 2}}))
    for _ in range(2):
        trial = replayed(failed(trial), narrows=False).trial
    left = failed(trial).within(messages({0: {1}}))
    after, convicted = replayed(left, narrows=True)
    assert (listed(after.tried), convicted) == ([(0, 1)], {})
    for fails in range(2):
        after, convicted = replayed(failed(after), narrows=True)
        assert bool(convicted) == (fails == 1)


def test_all_messages_may_be_poison() -> None:
    """M4."""
    query = Query({(0, n) for n in range(1, 6)})
    drive(query, {0: {1, 2, 3, 4, 5}})
    assert sorted(query.set_aside) == [(0, n) for n in range(1, 6)]
    assert query.taken == []


def test_sink_that_recovers_loses_no_message_to_the_error_destination() -> None:
    """M4: an outage that ends before a message was alone twice sets none aside."""
    trial = Trial("1-a", messages({0: set(range(1, 101))}))
    for _ in range(8):
        trial, convicted = replayed(failed(trial), narrows=True)
        assert not convicted
    taken: list[Message] = []
    after: Trial | None = trial
    while after is not None:
        taken += listed(after.tried)
        after = succeeded(after)
    assert taken == [(0, n) for n in range(1, 101)]


def test_deaths_of_the_driver_narrow_nothing() -> None:
    """M4: they are counted apart."""
    trial = Trial("1-a", messages({0: {1, 2, 3}}))
    for _ in range(5):
        trial, convicted = replayed(trial, narrows=True)
        assert (trial.phase, convicted) == (TrialPhase.WHOLE, {})
    assert (trial.attempts, trial.deaths, trial.failures) == (6, 5, 0)


def test_whole_batch_fails_twice_before_it_is_narrowed() -> None:
    """M4; and never without the option."""
    trial = failed(Trial("1-a", messages({0: {1, 2, 3}})))
    trial, _ = replayed(trial, narrows=True)
    assert trial.phase is TrialPhase.WHOLE
    trial = failed(trial)
    assert replayed(trial, narrows=False).trial.tried == trial.tried
    narrowed = replayed(trial, narrows=True).trial
    assert listed(narrowed.tried) == [(0, 1), (0, 2)]
    assert listed(narrowed.withheld) == [(0, 3)]


def test_failure_is_noted_once_for_an_attempt() -> None:
    """M4: a source may be stopped more than once."""
    trial = failed(Trial("1-a", messages({0: {1}})))
    assert failed(trial) is trial


def test_revoked_messages_leave_the_trial() -> None:
    """M4, C9: they went to other consumers while the query was away."""
    trial = Trial("1-a", messages({0: {1, 2}}), messages({0: {3}, 1: {1}}), suspects=3)
    left = trial.within(messages({0: {2}, 1: {1}}))
    assert listed(left.messages) == [(0, 2), (1, 1)]
    assert left.suspects == 2
    assert trial.within(trial.messages) is trial


@pytest.mark.parametrize("finished", [False, True])
def test_trial_is_stored_with_the_progress_of_its_query(finished: bool) -> None:
    """M4: an older version would acknowledge withheld messages, so it must refuse the record."""
    trial = Trial("7-a", messages({0: {1, 2}}), messages({0: {3}}), 3, 1, 4, 1, False, True, finished)
    stored = QueryProgress(7, "6-a", trial).to_bytes()
    assert QueryProgress.from_bytes(stored, "q").trial == trial
    assert b'"v":3' in stored
    counted = QueryProgress(7, "6-a", Trial("7-a", messages({0: {1, 2}}), attempts=3))
    assert b'"v":2' in counted.to_bytes()
    assert QueryProgress.from_bytes(counted.to_bytes(), "q") == counted
    assert count(trial.messages) == 3
