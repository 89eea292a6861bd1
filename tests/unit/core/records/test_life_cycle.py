"""The life-cycle log of a record set: what it says is what has happened (T6)."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records import life_cycle
from spark_jms.core.records.endings import FILES_ARE_LOST, Stamp
from spark_jms.core.records.life_cycle import LOGGED
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import Claim, MessageEvent
from spark_jms.core.records.stored_form import changed_objects, from_objects, to_objects
from spark_jms.settings.fields import LifeEvent
from tests.unit.core.records.test_record_set import LAST, Model


def logged(now_ms: int = 1000) -> RecordSet:
    return RecordSet().logging(is_on=True, now_ms=now_ms).attach("c", "s")


def claim(key: str, *numbers: int, consumer: str = "c") -> Claim:
    return Claim(key, consumer, "s", Ranges.from_numbers(numbers), 500, True)


SKIPPED, STAMP = FILES_ARE_LOST, Stamp(1, 0)


class LoggedModel(Model):
    """The model of the record set, with the log switched on."""

    def __init__(self) -> None:
        super().__init__()
        self.state = self.state.logging(is_on=True, now_ms=self.now)
        self.events: list[life_cycle.LoggedEvent] = []

    @rule(low=st.integers(1, LAST), size=st.integers(0, 3))
    def skip(self, low: int, size: int) -> None:
        chosen = Ranges.of((low, min(low + size, LAST)))
        self.state = self.state.skip(chosen, SKIPPED, STAMP)
        for n in chosen.numbers().tolist():
            if self.where[n] == "available":
                self.where[n] = "done"

    @rule(position=st.integers(0, 60))
    def log_has(self, position: int) -> None:
        self.state = self.state.logged_to_table(position)
        assert all(event.position > position for event in self.state.life.waiting)

    @invariant()
    def last_event_of_a_message_tells_its_state(self) -> None:
        """Positions are 1, 2, 3 …, and each event finds its messages where the one before has left them."""
        waiting = self.state.life.waiting
        assert waiting.bytes == sum(event.bytes for event in waiting)
        self.events += [event for event in self.state.life.waiting if event.position > len(self.events)]
        assert [event.position for event in self.events] == list(range(1, self.state.life.position + 1))
        place = dict.fromkeys(range(1, LAST + 1), "available")
        for event in self.events:
            for n in event.picks.numbers().tolist():
                if event.event is LifeEvent.CLAIMED or event.event in (LifeEvent.SKIPPED, LifeEvent.REMOVED):
                    assert place[n] == "available"
                else:
                    assert place[n] == "taken"
                place[n] = {LifeEvent.CLAIMED: "taken", LifeEvent.RELEASED: "available"}.get(event.event, "done")
        assert place == {n: at if at in ("available", "done") else "taken" for n, at in self.where.items()}


LoggedModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


class TestLifeCycle(LoggedModel.TestCase):
    """T6: under any order of changes, the log's events lead each message to the state that it is in."""


def test_every_transition_is_logged_or_is_a_step_of_one_that_is() -> None:
    """T6: an event that is new in the table of states is not forgotten here."""
    # the message stays with its consumer, or with the transfer or transaction whose end is logged
    steps = {MessageEvent.DOUBT, MessageEvent.RECOVER, MessageEvent.MOVE, MessageEvent.PLEDGE}
    directly = {MessageEvent.SKIP, MessageEvent.EXPIRE}  # without a claim
    assert LOGGED.keys() | steps | directly == set(MessageEvent)


def test_record_set_without_log_is_stored_as_before() -> None:
    """T6: switched off, not a byte is added."""
    state = RecordSet().attach("c", "s").claim(claim("k", 1, 2)).acknowledge("c", "s", "k", 1, 9)
    state = state.skip(Ranges.of((3, 4)), SKIPPED, STAMP)
    assert state.life == life_cycle.OFF
    objects = to_objects(state)
    assert not [key for key in objects if key.startswith("event/")]
    assert b"life" not in objects["head"]


def test_events_name_time_consumer_and_claim() -> None:
    """T6: each with the time of its change."""
    state = logged().claim(claim("k", 1, 2, 3, 7)).acknowledge("c", "s", "k", 1, 700, Ranges.of((1, 2)))
    state = state.release("k", Ranges.of((3, 3)), delivered=True).release("k", delivered=False)
    told = [(e.event.value, str(e.picks), e.at_ms, e.consumer, e.claim, e.detail) for e in state.life.waiting]
    assert told == [
        ("claimed", "1-3, 7", 500, "c", "k", ""),
        ("acknowledged", "1-2", 700, "c", "k", ""),
        ("released", "3", 1000, "c", "k", "may have been delivered"),
        ("released", "7", 1000, "c", "k", ""),
    ]


def test_steps_of_spark_jms_itself_are_not_logged() -> None:
    """T6: a claim that no consumer has attached for, as the redelivery limit makes one, is a step of a removal."""
    taken = logged().claim(claim("limit", 1, 2, consumer="redelivery limit"))
    state = taken.release("limit", delivered=False).discard(Ranges.of((1, 2)), "redelivery limit", "limit", 1, 900)
    (event,) = state.life.waiting
    assert (event.event, event.consumer, event.position) == (LifeEvent.REMOVED, "redelivery limit", 1)


def test_skipped_messages_are_logged_once() -> None:
    """T6: those that were done or claimed are not skipped."""
    state = logged().claim(claim("k", 2)).skip(Ranges.of((1, 3)), SKIPPED, STAMP)
    state = state.skip(Ranges.of((1, 4)), SKIPPED, STAMP).skip(Ranges.of((1, 4)), SKIPPED, STAMP)
    assert [str(e.picks) for e in state.life.waiting if e.event is LifeEvent.SKIPPED] == ["1, 3", "4"]


def test_oldest_events_are_dropped_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """T6: while the table cannot be written; positions tell that events are missing."""
    monkeypatch.setattr(life_cycle, "MAX_EVENTS", 3)
    state = logged()
    for n in range(1, 6):
        before, state = state, state.skip(Ranges.of((n, n)), SKIPPED, STAMP)
        objects = {**to_objects(before), **changed_objects(before, state)}
        assert from_objects({key: value for key, value in objects.items() if value is not None}, "x") == state
    assert [event.position for event in state.life.waiting] == [3, 4, 5]
    monkeypatch.setattr(life_cycle, "MAX_EVENT_BYTES", 1)
    state = state.skip(Ranges.of((6, 6)), SKIPPED, STAMP)
    assert [event.position for event in state.life.waiting] == [6]


def test_dropped_subscription_keeps_its_position() -> None:
    """T6: or events of a new subscription of its name would count as written."""
    state = logged().claim(claim("k", 1)).cleared()
    assert from_objects(to_objects(state), "x").life.position == 1
