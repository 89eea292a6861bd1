"""What a consumer cannot have now, against plain Python: nothing is left out that may be delivered (C7, C12, T10)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.ordering.blocked_units import BlockedUnits
from spark_jms.core.ordering.units_of_order import UnitMessages, slot_of
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.remembered import BlockedMessages, DelayedMessages, Later

UNITS = [f"u{n}" for n in range(5)]
MINUTE_MS = 60_000
NOW_MS = 1_000 * MINUTE_MS


def numbers(ranges: Ranges) -> set[int]:
    return set(ranges.numbers().to_pylist())


def later(rows: list[tuple[int, str | None, int]]) -> Later:
    """(sequence, unit, time)."""
    sequences = pa.array([sequence for sequence, _, _ in rows], pa.int64())
    units = pa.array([unit for _, unit, _ in rows], pa.string())
    return Later(sequences, pa.array([time for _, _, time in rows], pa.int64()), UnitMessages.of(sequences, units))


class RememberedModel(RuleBasedStateMachine):
    """Plans of one member. `waits` has what plans need not look at, by what the memory has told; the model knows of each message its
    unit, when it expires, and whether it was remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms, self.newest = NOW_MS, 0
        self.memory, self.state, self.waits = BlockedMessages(most_stale=3), RecordSet(), EMPTY
        self.rows: dict[int, tuple[str, int]] = {}  # what the memory was told of: unit, time
        self.since: dict[str, int] = {}
        self.large: dict[str, int] = {}

    def expires_soon(self, time: int) -> bool:
        return 0 < time // 1000 * 1000 <= self.now_ms

    @rule(count=st.integers(1, 6), data=st.data(), again=st.booleans())
    def read(self, count: int, data: Any, again: bool) -> None:
        """A plan reads messages that wait: new ones, or such as it has looked at before."""
        known = [n for n in self.rows if n not in numbers(self.waits) and not self.state.is_done(Ranges.of((n, n)))]
        rows = []
        for _ in range(count):
            if again and known:
                n = known.pop(data.draw(st.integers(0, len(known) - 1)))
                unit, time = self.rows[n]
            else:
                self.newest += data.draw(st.integers(1, 3))
                n, unit = self.newest, data.draw(st.sampled_from(UNITS))
                time = data.draw(st.sampled_from([0, 0, 500, 4_000, 90_000, 200_000, 3_600_000]))
                time = self.now_ms + time if time else 0
            if not 0 < time <= self.now_ms:
                rows.append((n, unit, time))
        rows.sort()
        if not rows:
            return
        not_now = self.memory.add(self.state, later(rows), self.now_ms)
        self.rows |= {n: (unit, time) for n, unit, time in rows}
        self.waits |= not_now

    @rule(units=st.dictionaries(st.sampled_from(UNITS), st.integers(0, 30), max_size=4), slots=st.booleans())
    def plan(self, units: dict[str, int], slots: bool) -> None:
        self.since = units
        self.look(slots)

    @rule()
    def plan_without_change(self) -> None:
        self.look(False)

    @rule(some=st.sets(st.sampled_from(UNITS)), first=st.integers(0, 30))
    def plan_with_a_large_set(self, some: set[str], first: int) -> None:
        self.large = dict.fromkeys([*sorted(some), *(f"x{n}" for n in range(100))], first)
        self.look(False)

    def look(self, slots: bool) -> None:
        blocked = BlockedUnits(self.since)
        blocked.block_behind(self.large)
        self.expected = dict(self.since)
        for unit, first in self.large.items():
            self.expected[unit] = min(first, self.expected.get(unit, first))
        if slots:
            blocked.block_slots([slot_of("u0")], 7)
            self.expected["u0"] = min(7, self.expected.get("u0", 7))
        looks = self.memory.looks(blocked, self.now_ms)
        self.waits = self.state.unfinished_of((self.waits - looks.again) | looks.not_now)
        open_ = {n for n, (unit, time) in self.rows.items() if n < self.expected.get(unit, 10**9)}
        soon = {n for n, (_, time) in self.rows.items() if self.expires_soon(time)}
        waits = numbers(self.waits)
        assert not waits & open_, "a freed unit stays remembered"
        assert not waits & soon, "an expired message stays remembered"
        unfinished = {n for n in self.rows if not self.state.is_done(Ranges.of((n, n)))}
        near = {n for n, (_, time) in self.rows.items() if 0 < time <= self.now_ms + 2 * MINUTE_MS}
        assert unfinished - open_ - near <= waits, "a blocked message is looked at again"

    @rule(some=st.sets(st.integers(1, 60), max_size=8))
    def finish(self, some: set[int]) -> None:
        self.state = self.state.skip(Ranges.from_numbers(n for n in some if n <= self.newest))

    @rule(seconds=st.sampled_from([1, 5, 61, 200, 4_000]))
    def wait(self, seconds: int) -> None:
        self.now_ms += seconds * 1000

    @invariant()
    def units_are_known(self) -> None:
        found = self.memory.of_units(self.state)
        units = dict(zip(found.sequences.to_pylist(), found.rows["unit"].to_pylist(), strict=True))
        assert len(units) == found.rows.num_rows
        assert all(self.rows[n][0] == unit for n, unit in units.items())
        assert units.keys() >= {n for n in numbers(self.waits) if not self.state.is_done(Ranges.of((n, n)))}


TestRemembered = RememberedModel.TestCase
TestRemembered.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)


@given(
    st.lists(
        st.tuples(st.sampled_from([None, "a", "b"]), st.integers(1, 400), st.integers(0, 400)), min_size=1, max_size=30
    ),
    st.lists(st.integers(1, 90), max_size=12),
)
def test_delayed_message_is_looked_at_in_its_second(rows: list[tuple[str | None, int, int]], steps: list[int]) -> None:
    """C12, T10: at its delivery time at the latest, and until then it blocks its unit; the consumer looks again by then."""
    memory, state, now_ms = DelayedMessages(), RecordSet(), NOW_MS + 345
    times = {n: now_ms + 1000 * seconds + ms for n, (_, seconds, ms) in enumerate(rows, 1)}
    units = {n: unit for n, (unit, _, _) in enumerate(rows, 1)}

    def read(some: set[int]) -> None:
        late = [(n, units[n], times[n]) for n in sorted(some) if times[n] > now_ms]
        if late:
            memory.add(state, later(late), now_ms)

    read(set(units))
    for step in steps:
        now_ms += step * 1000
        memory.looked_at_again(now_ms)
        kept = numbers(memory.messages)
        assert all(times[n] > now_ms for n in kept)
        read({n for n in units if n not in kept})  # as a plan does
        kept = numbers(memory.messages)
        waiting = {n for n in units if times[n] > now_ms}
        assert kept <= waiting
        assert all(times[n] // 1000 * 1000 <= now_ms for n in waiting - kept), "it is remembered until its very second"
        if waiting:
            assert memory.due_ms is not None
            assert memory.due_ms <= min(times[n] for n in waiting)
            assert memory.due_ms > now_ms - 1000
        firsts: dict[str, int] = {}
        for n in sorted(kept):
            if (unit := units[n]) is not None:
                firsts.setdefault(unit, n)
        assert memory.first_of_units(state) == firsts


def test_finished_messages_are_forgotten() -> None:
    """T10: by and by; many rows go another way than few."""
    memory, state = BlockedMessages(most_stale=100), RecordSet()
    for first in range(1, 2000, 200):
        memory.add(state, later([(n, f"u{n % 7}", 0) for n in range(first, first + 200)]), NOW_MS)
        state = state.skip(Ranges.of((1, first + 199)))
    assert not memory.of_units(state)
    assert len(memory.of_units(RecordSet()).rows) <= 400
    assert memory.looks(BlockedUnits({"u3": 1990}), NOW_MS).not_now == Ranges.from_numbers([1991, 1998])
    assert not BlockedMessages().of_units(state)
