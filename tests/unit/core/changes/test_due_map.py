"""When messages fall due: never late, nothing forgotten, bounded (T6, M12)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jms.core.changes.change import (
    DONE,
    DROPPED_TABLE,
    ENDINGS,
    GONE,
    MESSAGES,
    MINUTE_MS,
    FeedSpan,
    MessageChange,
    Run,
    SentRows,
)
from spark_jms.core.changes.due_map import MAX_BYTES, MAX_MINUTES, MAX_RANGES, RETRY_MINUTES, Due, DueMap, due_row
from spark_jms.core.messages.ranges import Ranges, union
from spark_jms.errors import FormatVersionError, RecordSetError

LONGEST = max(RETRY_MINUTES)


class Model:
    """Each message with its minute, what is done, and when it fired last."""

    def __init__(self) -> None:
        self.map, self.now, self.last = DueMap(), 1_000, 0
        self.due: dict[int, int] = {}
        self.fired: dict[int, int] = {}  # message -> the minute in which it fired last, since it was over

    def send(self, minutes: list[int]) -> None:
        by_minute: dict[int, list[int]] = {}
        for minute in minutes:
            self.last += 1
            self.due[self.last] = minute
            by_minute.setdefault(minute, []).append(self.last)
        for minute, numbers in by_minute.items():
            self.map = self.map.added(minute, Ranges.from_numbers(numbers))
        self.check()

    def finish(self, floor: int) -> None:
        self.map = self.map.done(floor)
        self.due = {n: minute for n, minute in self.due.items() if n > self.map.floor}
        self.check()

    def tick(self, minutes: int) -> None:
        self.now += minutes
        self.map, fired = self.map.fire(self.now)
        given = union(each.picks for each in fired)
        assert all(each.minute <= self.now for each in fired)
        for n, minute in self.due.items():
            if minute > self.now:
                continue
            if n in given:
                self.fired[n] = self.now
            else:
                assert n in self.fired, f"{n} was over at {minute} and did not fire by {self.now}"
                assert self.now - self.fired[n] < LONGEST, f"{n} is not finished and was forgotten"
        self.check()

    def check(self) -> None:
        assert not Ranges.from_numbers(sorted(self.due)) - self.map.picks
        assert len(self.map.entries) <= MAX_MINUTES
        assert sum(len(due.picks) for due in self.map.entries.values()) <= MAX_RANGES
        stored = self.map.to_bytes()
        assert len(stored) <= MAX_BYTES
        assert DueMap.from_bytes(stored) == self.map
        assert self.map.next_minute == min(self.map.entries, default=None)


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.lists(st.integers(-50, 3_000), min_size=1, max_size=12)),
            st.tuples(st.just("finish"), st.integers(0, 100)),
            st.tuples(st.just("tick"), st.integers(0, 20)),
        ),
        max_size=40,
    )
)
def test_map_is_never_late_and_forgets_nothing(steps: list[tuple[str, object]]) -> None:
    """T6: whatever is sent with whatever time, finished in whatever order, and however rarely it is asked."""
    model = Model()
    for what, value in steps:
        if what == "send":
            assert isinstance(value, list)
            model.send([model.now + minute for minute in value])
        elif what == "finish":
            assert isinstance(value, int)
            model.finish(model.last * value // 100)
        else:
            assert isinstance(value, int)
            model.tick(value)


@pytest.mark.parametrize("seed", range(4))
def test_every_message_has_another_minute(seed: int) -> None:
    """T6: beyond both bounds, for two hours: messages of a few days' time to live, of which every third is finished."""
    chance, model = random.Random(seed), Model()
    for _ in range(120):
        model.send([model.now + chance.choice([1, 3, 60, 1_440, 10_000]) + chance.randrange(300) for _ in range(40)])
        model.tick(1)
        if chance.random() < 0.3:
            model.finish(model.last * 2 // 3)
    assert len(model.map.to_bytes()) > 1_000


def test_largest_map_fits() -> None:
    """T6: 1,000 ranges with gaps of 40 bits each, in 64 minutes."""
    entries = {}
    for minute in range(MAX_MINUTES):
        numbers = [(n * 64 + minute) << 40 for n in range(1, 16)]
        entries[30_000_000 + minute] = Due(60_000_000, Ranges.from_numbers(numbers), 99)
    full = DueMap(entries, 1)
    assert sum(len(due.picks) for due in entries.values()) == 960
    assert len(full.to_bytes()) <= MAX_BYTES
    assert DueMap.from_bytes(full.to_bytes()) == full
    assert full.bounded() is full


def test_joined_minutes_are_early_not_late() -> None:
    """T6: the nearest two are joined; the entry fires from the first on in each minute until the last."""
    dues = DueMap()
    for n in range(MAX_MINUTES):
        dues = dues.added(100 + 10 * n, Ranges.of((n + 1, n + 1)))
    dues = dues.added(103, Ranges.of((900, 900)))
    assert len(dues.entries) == MAX_MINUTES
    assert dues.entries[100] == Due(103, Ranges.of((1, 1), (900, 900)))
    for now in (100, 101, 102, 103):
        dues, fired = dues.fire(now)
        assert [each.picks for each in fired] == [Ranges.of((1, 1), (900, 900))]


def test_claimed_messages_fire_again_ever_more_rarely() -> None:
    """T6: a message that a consumer has when its time is over: nobody answers, and it is looked at until it is finished."""
    dues, times = DueMap().added(100, Ranges.of((7, 7))), []
    for now in range(100, 180):
        dues, fired = dues.fire(now)
        times += [now] * len(fired)
    assert times == [100, 101, 102, 104, 108, 116, 131, 146, 161, 176]
    assert dues.done(6).entries == dues.entries
    assert dues.done(7) == DueMap({}, 7)
    assert dues.done(7).added(100, Ranges.of((5, 7))) == DueMap({}, 7)


def test_map_is_told_of_the_rows_that_concern_it() -> None:
    """T6: messages that expire, and those that may; what is done; the end of the table. Not of ends, and of messages that stay."""
    span = FeedSpan(MESSAGES, "t", "orders", 0, 1, 9, 5 * MINUTE_MS)
    sent = [row for row in _sent(span, [(1, 3, 8 * MINUTE_MS), (4, 4, None)]) if due_row(row) is not None]
    dropped = MessageChange(GONE, "orders", "t", 0, 9, 0, 10, detail=DROPPED_TABLE)
    unread, done = span.unread(5, 6), MessageChange(DONE, "orders", "t", 0, 2, 0, 1, 2)
    others = [
        span.gone(1, 9),
        span._replace(what=ENDINGS).unread(1, 2),
        MessageChange("finished", "orders", "t", 0, 1, 0, 1, 9),
    ]
    assert [due_row(row) for row in others] == [None] * 3
    known = DueMap()
    for row, entries in (
        (*sent, {8: Due(8, Ranges.of((1, 3)))}),
        (unread, {5: Due(5, Ranges.of((5, 6))), 8: Due(8, Ranges.of((1, 3)))}),
        (done, {5: Due(5, Ranges.of((5, 6))), 8: Due(8, Ranges.of((3, 3)))}),
        (dropped, {}),
    ):
        told = due_row(row)
        assert told is not None
        known = known.told(told)
        assert known.entries == entries
    assert known == DueMap()


def _sent(span: FeedSpan, runs: list[tuple[int, int, int | None]]) -> list[MessageChange]:
    rows = SentRows(span)
    found = rows.add(Run(first, last, 0, due_ms, None) for first, last, due_ms in runs)
    return [*found, *rows.end()]


def test_damaged_map_is_named() -> None:
    """T6: and one of a later release."""
    stored = DueMap().added(5, Ranges.of((1, 9))).to_bytes()
    for data in (b"", stored[:-1], stored[:5] + b"\x01" + stored[6:]):
        with pytest.raises(RecordSetError, match="damaged: start the query with a fresh checkpoint"):
            DueMap.from_bytes(data)
    with pytest.raises(FormatVersionError, match="version 9"):
        DueMap.from_bytes(b"\x09" + stored[1:])
