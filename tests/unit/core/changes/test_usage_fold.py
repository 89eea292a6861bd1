"""Usage by minute, however often batches come, and whichever run brings them (T3, M12)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jms.core.changes.change import (
    ENDINGS,
    GONE,
    MESSAGES,
    MINUTE_MS,
    SENT,
    FeedPosition,
    FeedSpan,
    MessageChange,
    TablePosition,
)
from spark_jms.core.changes.usage_fold import (
    HOUR_MS,
    LevelChanges,
    MinuteUsage,
    UnreadSpan,
    UsageBatch,
    UsageFold,
    UsageKey,
    UsageKnown,
    UsagePosition,
    ahead,
    behind,
    decide_usage,
    is_reached,
    key_of,
    usage_of,
)
from spark_jms.core.limits.usage_history import KEPT_MS, UsageWindow
from spark_jms.errors import StaleCheckpointError, UsageRunReplacedError

NOW_MS = 1_800_000_123_456
KINDS = ["finished", "expired", "dropped", "moved", "aside", "purged", "skipped", "ended"]


@dataclass
class World:
    """What has happened to two members, in the order of their numbers; a reader gives rows from any position."""

    sent: dict[int, list[MessageChange]] = field(default_factory=lambda: {0: [], 1: []})
    ends: dict[int, list[MessageChange]] = field(default_factory=lambda: {0: [], 1: []})

    def happen(self, member: int, kind: str, messages: int, minute: int) -> None:
        known = self.sent[member] if kind in (SENT, GONE) else self.ends[member]
        number = sum(one.messages or 0 for one in known) + messages if kind in (SENT, GONE) else len(known) + 1
        at_ms = None if kind == GONE else minute * MINUTE_MS
        known.append(
            MessageChange(
                kind, "orders", "t", member, number, 0, messages=messages, at_ms=at_ms, quota="q", detail=MESSAGES
            )
        )

    def behind(self, positions: dict[UsagePosition, int], now_ms: int) -> list[MessageChange]:
        found = []
        for what, of in ((MESSAGES, self.sent), (ENDINGS, self.ends)):
            for member, changes in of.items():
                begin = positions.get(UsagePosition("t", member, what), 0)
                found += [replace(one, read_ms=now_ms) for one in changes if one.position > begin]
        return found

    @property
    def level(self) -> int:
        every = (usage_of(one) for of in (self.sent, self.ends) for changes in of.values() for one in changes)
        return sum(usage.level for usage in every)

    @property
    def position(self) -> TablePosition:
        def newest(of: dict[int, list[MessageChange]]) -> dict[int, int]:
            return {member: changes[-1].position for member, changes in of.items() if changes}

        return TablePosition("orders", newest(self.sent), newest(self.ends))

    def recount(self) -> dict[UsageKey, MinuteUsage]:
        found: dict[UsageKey, MinuteUsage] = {}
        for one in [*self.sent[0], *self.sent[1], *self.ends[0], *self.ends[1]]:
            key = key_of(one)._replace(read_hour_ms=0)
            found[key] = found.get(key, MinuteUsage()).plus(usage_of(one))
        return found


@dataclass
class Run:
    """One run of the query: its state, its checkpoint, and the batch that its sink may have taken or not."""

    name: str
    positions: dict[UsagePosition, int]
    fold: UsageFold = field(default_factory=UsageFold)
    number: int = 0
    pending: UsageBatch | None = None
    changes: LevelChanges = field(default_factory=LevelChanges)

    def next_batch(self, world: World, now_ms: int) -> UsageBatch:
        if self.pending is None:
            self.pending = self.fold.batch(world.behind(self.positions, now_ms))
        return self.pending

    def sink(self, known: UsageKnown, world: World, now_ms: int) -> UsageKnown:
        batch = self.next_batch(world, now_ms)
        earlier = {key: known.totals.get((self.name, key), MinuteUsage()) for key in self.changes.unknown(batch)}
        after = decide_usage(known, self.name, self.number, replace(batch, levels=self.changes.of(batch, earlier)))
        self.changes.took(batch)
        return after or known

    def committed(self) -> None:
        assert self.pending is not None
        self.positions |= self.pending.end
        self.number, self.pending = self.number + 1, None


STEP = st.one_of(
    st.tuples(st.sampled_from([SENT, GONE, *KINDS]), st.integers(0, 1), st.integers(1, 9), st.integers(0, 3)),
    st.tuples(
        st.sampled_from(["batch", "sink only", "restart", "second run", "lost checkpoint", "old run", "hour", "rest"])
    ),
)


@settings(deadline=None)
@given(st.lists(STEP, max_size=60))
def test_history_equals_a_recount(steps: list[tuple[object, ...]]) -> None:
    """T3: a batch that is repeated after its sink took it, a second run, a lost checkpoint, hours that pass: nothing is lost or
    doubled; the older of two runs is refused by name. What a queue must hold, once known at a rest, is what it holds."""
    world, now_ms = World(), 10 * HOUR_MS
    known = UsageKnown().owned_by("run 0")
    runs = [Run("run 0", {})]
    for step in steps:
        match step:
            case ("hour",):
                now_ms += HOUR_MS
            case ("batch",) | ("sink only",):
                run = runs[-1]
                known = run.sink(known, world, now_ms)
                if step == ("batch",):
                    run.committed()
            case ("restart",):
                runs[-1].next_batch(world, now_ms)  # Spark has logged its end, and repeats it
                runs[-1].changes = LevelChanges()
            case ("rest",):
                if is_reached("t", world.position, known.positions):
                    assert known.levels.get("t", world.level) == world.level
                    known = replace(known, levels={"t": world.level})
            case ("second run",) | ("lost checkpoint",):
                name = f"run {len(runs)}"
                known = known.owned_by(name)
                runs.append(Run(name, dict(known.positions)))
            case ("old run",):
                if len(runs) > 1:
                    old = runs[-2]
                    with pytest.raises(UsageRunReplacedError):
                        decide_usage(known, old.name, old.number, old.next_batch(world, now_ms))
            case (kind, member, messages, minute):
                world.happen(int(str(member)), str(kind), int(str(messages)), int(str(minute)))
    run = runs[-1]
    for _ in range(2):  # the batch that Spark had logged, then the rest
        known = run.sink(known, world, now_ms)
        run.committed()
    assert is_reached("t", world.position, known.positions)
    assert known.levels.get("t", world.level) == world.level
    assert {key: usage for key, usage in known.sums().items() if any(usage)} == world.recount()


def test_checkpoint_from_a_copy_is_refused() -> None:
    """T3: its batch has the number of one that is recorded, and another end."""
    world = World()
    world.happen(0, SENT, 5, 1)
    run = Run("r", {})
    known = decide_usage(UsageKnown().owned_by("r"), "r", 0, run.next_batch(world, 0))
    assert known is not None
    assert decide_usage(known, "r", 0, run.next_batch(world, 0)) is None
    world.happen(0, SENT, 5, 1)
    copy = Run("r", {})
    with pytest.raises(StaleCheckpointError, match="batch 0 of the usage query comes again with another content"):
        decide_usage(known, "r", 0, copy.next_batch(world, 0))


def test_batch_that_comes_again_with_other_rows_is_refused() -> None:
    """T3: messages that were purged between two attempts are `gone` in the second, whose state the later totals come from; so are
    batches before the newest, of a checkpoint that has lost its last ones. A file that was merged changes nothing."""
    world = World()
    world.happen(0, SENT, 5, 1)
    batch = UsageFold().batch(world.behind({}, 0))
    known = decide_usage(UsageKnown().owned_by("r"), "r", 3, batch)
    assert known is not None
    gone = [replace(one, kind=GONE, at_ms=None, bytes=None) for one in world.behind({}, 0)]
    merged = [replace(one, bytes=77) for one in world.behind({}, 0)]
    assert decide_usage(known, "r", 3, UsageFold().batch(merged)) is None
    for number, other in ((3, UsageFold().batch(gone)), (2, batch)):
        with pytest.raises(StaleCheckpointError):
            decide_usage(known, "r", number, other)


def test_numbers_that_cannot_be_read_are_owed() -> None:
    """T3: the positions are behind them, nothing is counted, what the queue must hold is unknown, and the repetition of the batch must
    not be able to read them."""
    read, ended = (
        replace(FeedSpan(what, "t", "orders", 0, 1, 9, 0).unread(4, 6), position=6) for what in (MESSAGES, ENDINGS)
    )
    batch = UsageFold().batch([read, ended])
    spans = {UnreadSpan("t", 0, what, 4, 6) for what in (MESSAGES, ENDINGS)}
    places = (UsagePosition("t", 0, what) for what in (MESSAGES, ENDINGS))
    assert (batch.totals, batch.unread, batch.end) == ({}, spans, dict.fromkeys(places, 6))
    assert LevelChanges().of(batch, {}) == {"t": None}
    known = decide_usage(UsageKnown(levels={"t": 3}).owned_by("r"), "r", 0, replace(batch, levels={"t": None}))
    assert known is not None
    assert (known.unread, known.levels) == (spans, {})
    with pytest.raises(StaleCheckpointError):
        decide_usage(known, "r", 0, replace(batch, unread=frozenset()))


def test_state_is_forgotten_after_its_hours() -> None:
    """T3: no row of an earlier hour of reading comes any more; a minute that is read later has a second total, which adds up."""
    fold, old = UsageFold(), MessageChange(SENT, "orders", "t", 0, 5, 0, messages=5, at_ms=0)
    first = fold.batch([old])
    second = fold.batch([replace(old, position=9, messages=4, read_ms=5 * HOUR_MS)])
    assert [usage.sent for usage in (*first.totals.values(), *second.totals.values())] == [5, 4]
    assert len(fold._totals) == 1


@given(st.integers(0, 2 * NOW_MS))
def test_minute_is_shown_unless_no_right_clock_can_have_had_it(minute_ms: int) -> None:
    """T3: one that is not kept any more, or is far ahead, or none, counts in the hour of reading."""
    hour_ms = NOW_MS - NOW_MS % HOUR_MS
    key = UsageKey(hour_ms, None, "q", "t", 0, minute_ms)
    trusted = hour_ms - KEPT_MS <= minute_ms <= hour_ms + 2 * HOUR_MS
    assert key.window_ms == (minute_ms if trusted else hour_ms)
    assert key._replace(minute_ms=None).window_ms == hour_ms


def test_people_see_four_counts() -> None:
    """T3: what was purged before it was read was sent all the same; moved and set aside are finished; limits and administrators
    drop; what was skipped, or left by the end of a subscription, is none of them."""
    key = UsageKey(0, None, "q", "t", 0, 60_000)
    every = MinuteUsage(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
    assert every.shown(key) == UsageWindow("q", 60_000, sent=1 + 11, finished=3 + 6 + 7, expired=4, dropped=5 + 8)


@given(st.dictionaries(st.tuples(st.sampled_from([MESSAGES, ENDINGS]), st.integers(0, 2)), st.integers(0, 9)))
def test_run_begins_behind_the_positions_but_in_its_tables(known: dict[tuple[str, int], int]) -> None:
    """T3: a table that the history does not know begins at its first message; a position ahead of its table is of an older copy of
    the domain; one of a table that is no more begins nowhere."""
    positions = {
        UsagePosition(table, member, what): to for (what, member), to in known.items() for table in ("t", "gone")
    }
    ends = {0: 5, 1: 5, 2: 5}
    newest = FeedPosition("life", 7, {table: TablePosition(table, ends, ends) for table in ("t", "new")}, "*")
    start = behind(newest, positions)
    start.check_before(newest)
    assert (start.life, start.at_ms, start.tables.keys()) == ("life", 7, {"t", "new"})
    assert start.tables["new"].sent == start.tables["new"].rows == {0: 0, 1: 0, 2: 0}
    for member in ends:
        assert start.tables["t"].sent[member] == min(known.get((MESSAGES, member), 0), 5)
        assert start.tables["t"].rows[member] == min(known.get((ENDINGS, member), 0), 5)


def test_balance_of_a_subscription() -> None:
    """T3: every kind that ends a message counts against those that were sent."""
    whole = MinuteUsage()
    for kind in KINDS:
        whole = whole.plus(usage_of(MessageChange(kind, "orders", "t", 0, 1, 0, messages=2)))
    assert whole.ends == 2 * len(KINDS)
    assert usage_of(MessageChange(GONE, "orders", "t", 0, 9, 0, first=3, detail="dropped")) == MinuteUsage()


def test_changes_that_were_gone_make_a_level_unknown() -> None:
    """T3: how many messages ended in rows that were gone before they were read is unknown."""
    changes, known = LevelChanges(), UsageKnown(levels={"t": 7}).owned_by("r")
    fold = UsageFold()
    sent = MessageChange(SENT, "orders", "t", 0, 3, 0, messages=3, at_ms=0)
    gone = MessageChange(GONE, "orders", "t", 0, 9, 0, 1, last=9, detail=ENDINGS)
    for number, (row, levels) in enumerate(((sent, {"t": 10}), (gone, {}), (replace(sent, position=4), {}))):
        batch = fold.batch([row])
        after = decide_usage(known, "r", number, replace(batch, levels=changes.of(batch, {})))
        assert after is not None
        changes.took(batch)
        known = after
        assert known.levels == levels


def test_tables_that_cannot_be_read_stay_where_the_history_is() -> None:
    """T3, C13: a run that begins meanwhile does not read them from their first message, once they can be read."""
    positions = {
        UsagePosition(table, 1, what): to for table in ("t", "away") for what, to in ((MESSAGES, 4), (ENDINGS, 2))
    }
    newest = FeedPosition("life", 7, {"t": TablePosition("orders", {1: 5}, {1: 2})}, "*")
    assert behind(newest, positions).tables.keys() == {"t"}
    start = behind(newest, positions, keeps=True)
    assert start.tables["away"] == TablePosition("", {1: 4}, {1: 2})
    assert FeedPosition.from_text(start.to_text()) == start
    assert start.dropped(newest) == [], "of a table that was never seen"
    back = replace(newest, tables={**newest.tables, "away": TablePosition("others", {1: 6}, {1: 2})})
    assert [(span.destination, span.first, span.last) for span in start.spans(back)] == [
        ("orders", 5, 5),
        ("others", 5, 6),
    ]


def test_positions_ahead_of_a_table_are_found() -> None:
    """T3: of an older copy; not of tables that are no more."""
    positions = {UsagePosition(table, 0, what): 5 for table in ("t", "dropped") for what in (MESSAGES, ENDINGS)}
    assert ahead({"t": TablePosition("orders", {0: 3}, {0: 5})}, positions) == {UsagePosition("t", 0, MESSAGES): 3}
    assert ahead({"t": TablePosition("orders", {0: 5}, {})}, positions) == {UsagePosition("t", 0, ENDINGS): 0}
