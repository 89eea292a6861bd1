"""Usage by minute, however often batches come, and whichever run brings them (T3, M12)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jms.core.changes.change import ENDINGS, GONE, MESSAGES, MINUTE_MS, SENT, MessageChange
from spark_jms.core.changes.usage_fold import (
    HOUR_MS,
    MinuteUsage,
    UsageBatch,
    UsageFold,
    UsageKey,
    UsageKnown,
    UsagePosition,
    decide_usage,
    key_of,
    usage_of,
)
from spark_jms.errors import StaleCheckpointError, UsageRunReplacedError

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

    def next_batch(self, world: World, now_ms: int) -> UsageBatch:
        if self.pending is None:
            self.pending = self.fold.batch(world.behind(self.positions, now_ms))
        return self.pending

    def committed(self) -> None:
        assert self.pending is not None
        self.positions |= self.pending.end
        self.number, self.pending = self.number + 1, None


STEP = st.one_of(
    st.tuples(st.sampled_from([SENT, GONE, *KINDS]), st.integers(0, 1), st.integers(1, 9), st.integers(0, 3)),
    st.tuples(st.sampled_from(["batch", "sink only", "restart", "second run", "lost checkpoint", "old run", "hour"])),
)


@settings(deadline=None)
@given(st.lists(STEP, max_size=60))
def test_history_equals_a_recount(steps: list[tuple[object, ...]]) -> None:
    """T3: a batch that is repeated after its sink took it, a second run, a lost checkpoint, hours that pass: nothing is lost or
    doubled; the older of two runs is refused by name."""
    world, now_ms = World(), 10 * HOUR_MS
    known = UsageKnown().owned_by("run 0")
    runs = [Run("run 0", {})]
    for step in steps:
        match step:
            case ("hour",):
                now_ms += HOUR_MS
            case ("batch",) | ("sink only",):
                run = runs[-1]
                after = decide_usage(known, run.name, run.number, run.next_batch(world, now_ms))
                known = after or known
                if step == ("batch",):
                    run.committed()
            case ("restart",):
                runs[-1].next_batch(world, now_ms)  # Spark has logged its end, and repeats it
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
        known = decide_usage(known, run.name, run.number, run.next_batch(world, now_ms)) or known
        run.committed()
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
    with pytest.raises(StaleCheckpointError, match="batch 0 of the usage query is in the history with another end"):
        decide_usage(known, "r", 0, copy.next_batch(world, 0))


def test_state_is_forgotten_after_its_hours() -> None:
    """T3: no row of an earlier hour of reading comes any more; a minute that is read later has a second total, which adds up."""
    fold, old = UsageFold(), MessageChange(SENT, "orders", "t", 0, 5, 0, messages=5, at_ms=0)
    first = fold.batch([old])
    second = fold.batch([replace(old, position=9, messages=4, read_ms=5 * HOUR_MS)])
    assert [usage.sent for usage in (*first.totals.values(), *second.totals.values())] == [5, 4]
    assert len(fold._totals) == 1


def test_balance_of_a_subscription() -> None:
    """T3: every kind that ends a message counts against those that were sent."""
    whole = MinuteUsage()
    for kind in KINDS:
        whole = whole.plus(usage_of(MessageChange(kind, "orders", "t", 0, 1, 0, messages=2)))
    assert whole.ends == 2 * len(KINDS)
    assert usage_of(MessageChange(GONE, "orders", "t", 0, 9, 0, first=3, detail="dropped")) == MinuteUsage()
