"""Usage by minute, out of the change feed; and which batches of it a history may take. Pure.

Sums are kept by quota, destination, table, member and minute. A run of the query keeps them as its state, for as long as rows of
the key may come, and hands over the *absolute* total of each key that has changed. `read_hour_ms` is the hour in which the feed was
read: it never falls, so no row is late whatever clocks say. A minute that was read in two hours has two totals, which add up.

**What makes a history exact.** A history that follows the feed knows its owner, the owner's newest batch, and the positions up to
which the members are in it. `decide_usage` is the whole rule:

    the batch is of a run that is not the owner        UsageRunReplacedError: the newest run owns the history, the older one ends
    it is the newest batch, with the same content      nothing: Spark repeats it after a failure
    it is the newest one with another, or an older     StaleCheckpointError: an old copy of the run's checkpoint, or messages were
                                                       purged, or became readable, between two attempts
    a later batch                                      its totals replace those of the same run and key

A run begins behind the positions that the history has, in the commit that makes it the owner (`owned_by`). So a lost checkpoint begins
where the history ends, and two runs never count one change twice.

**What cannot be read is owed.** A batch may name spans that could not be read (`unread`): its positions are behind them, and the
history keeps them until a later look has read them (log/upkeep/usage_history.py).

**What a queue must hold.** The history also keeps, by table, what a queue holds by its sums (`levels`). It takes the first such level
from the queue itself, when that is at rest, because a history may begin late, and moves it with each batch (`LevelChanges`). At rest
the two must be equal. Changes that were gone before they were read make a level unknown until the next rest.

Features: M12, T3 (docs/FEATURES.md)
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from spark_jms.core.changes.change import (
    ENDINGS,
    GONE,
    MESSAGES,
    SENT,
    UNREAD,
    FeedPosition,
    MessageChange,
    TablePosition,
)
from spark_jms.core.limits.usage_history import KEPT_MS, UsageWindow
from spark_jms.core.records.endings import (
    DROPPED,
    ENDED,
    EXPIRED,
    FINISHED,
    MOVED,
    PURGED,
    SET_ASIDE,
    SKIPPED,
)
from spark_jms.errors import StaleCheckpointError, UsageRunReplacedError

HOUR_MS = 3_600_000


class UsageKey(NamedTuple):
    """`minute_ms` None: of changes whose time is unknown."""

    read_hour_ms: int
    quota: str | None
    destination: str
    table: str
    member: int
    minute_ms: int | None

    @property
    def window_ms(self) -> int:
        """The minute in which it is shown. A minute that no right clock can have had, or none, counts where the feed was read."""
        low, high = self.read_hour_ms - KEPT_MS, self.read_hour_ms + 2 * HOUR_MS
        return self.minute_ms if self.minute_ms is not None and low <= self.minute_ms <= high else self.read_hour_ms


class MinuteUsage(NamedTuple):
    """Messages by what happened to them. `bytes`: of the sent ones whose bytes are known. `gone`: sent and purged before they were
    read. On a topic each subscription ends a message for itself."""

    sent: int = 0
    bytes: int = 0
    finished: int = 0
    expired: int = 0
    dropped: int = 0
    moved: int = 0
    aside: int = 0
    purged: int = 0
    skipped: int = 0
    ended: int = 0
    gone: int = 0

    def plus(self, other: MinuteUsage) -> MinuteUsage:
        return MinuteUsage(*map(sum, zip(self, other, strict=True)))

    @property
    def level(self) -> int:
        """What a queue holds after this, if it held nothing before."""
        return self.sent + self.gone - self.ends

    @property
    def ends(self) -> int:
        """For a subscription at rest, what was sent to it less this is what it holds."""
        return sum(self) - self.sent - self.bytes - self.gone

    def shown(self, key: UsageKey) -> UsageWindow:
        """For people: what was sent, whether it was read in time or not; what left by a consumer or a move, by its expiration, and by
        a limit or an administrator. What was skipped, or left by the end of a subscription, is none of them."""
        return UsageWindow(
            key.destination,
            key.window_ms,
            self.sent + self.gone,
            self.finished + self.moved + self.aside,
            self.expired,
            self.dropped + self.purged,
        )


FIELDS = {
    FINISHED: "finished",
    EXPIRED: "expired",
    DROPPED: "dropped",
    MOVED: "moved",
    SET_ASIDE: "aside",
    PURGED: "purged",
    SKIPPED: "skipped",
    ENDED: "ended",
}


class UsagePosition(NamedTuple):
    """Of one member: `what` is MESSAGES or ENDINGS."""

    table: str
    member: int
    what: str


class UnreadSpan(NamedTuple):
    """Numbers of a member that a history passed without having read them."""

    table: str
    member: int
    what: str
    first: int
    last: int


Positions = Mapping[UsagePosition, int]
Totals = Mapping[UsageKey, MinuteUsage]


def usage_of(change: MessageChange) -> MinuteUsage:
    """What one row of the feed adds."""
    count = change.messages or 0
    if change.kind == SENT:
        return MinuteUsage(sent=count, bytes=change.bytes or 0)
    if change.kind == GONE:
        return MinuteUsage(gone=count)
    if change.kind == UNREAD:
        return MinuteUsage()
    return MinuteUsage(**{FIELDS[change.kind]: count})


def key_of(change: MessageChange) -> UsageKey:
    hour_ms = change.read_ms - change.read_ms % HOUR_MS
    return UsageKey(hour_ms, change.quota, change.destination, change.table, change.member, change.minute_ms)


def position_of(change: MessageChange) -> UsagePosition | None:
    """Which position the row moves; None: none, because its table is no more."""
    known = MESSAGES if change.kind == SENT else ENDINGS
    what = change.detail if change.kind in (GONE, UNREAD) else known
    if what not in (MESSAGES, ENDINGS):
        return None
    return UsagePosition(change.table, change.member, what)


def behind(newest: FeedPosition, positions: Positions, *, keeps: bool = False) -> FeedPosition:
    """Where a run begins that looks at these tables. A position that is ahead of its table is one of an older copy of the domain:
    the run begins at the table's end. `keeps`: there are tables that could not be read, so others that the history knows stay."""

    def reached(table: str, what: str, ends: Mapping[int, int]) -> dict[int, int]:
        return {m: min(positions.get(UsagePosition(table, m, what), 0), last) for m, last in ends.items()}

    tables = {
        table: TablePosition(one.destination, reached(table, MESSAGES, one.sent), reached(table, ENDINGS, one.rows))
        for table, one in newest.tables.items()
    }
    unread: dict[str, tuple[dict[int, int], dict[int, int]]] = {}
    for (table, member, what), to in positions.items() if keeps else ():
        if table not in tables:
            unread.setdefault(table, ({}, {}))[what != MESSAGES][member] = to
    tables |= {table: TablePosition("", sent, rows) for table, (sent, rows) in unread.items()}
    return replace(newest, tables=tables)


def ahead(tables: Mapping[str, TablePosition], positions: Positions) -> dict[UsagePosition, int]:
    """The positions that are ahead of their tables, with where these end. `tables` were looked at after `positions`."""
    found = {}
    for place, to in positions.items():
        if (table := tables.get(place.table)) is not None:
            end = (table.sent if place.what == MESSAGES else table.rows).get(place.member, 0)
            if end < to:
                found[place] = end
    return found


def is_reached(table: str, position: TablePosition, positions: Positions) -> bool:
    """The history has everything of a table."""
    ends = ((MESSAGES, position.sent), (ENDINGS, position.rows))
    return all(positions.get(UsagePosition(table, m, what), 0) == to for what, of in ends for m, to in of.items())


@dataclass(frozen=True)
class UsageBatch:
    """What a batch hands over: the totals that have changed, as they are now, the positions that it has reached, and what it could not
    read before these. `levels`: by how much it changes what a queue must hold, by table; None: that is unknown now."""

    totals: Totals = field(default_factory=dict)
    end: Positions = field(default_factory=dict)
    levels: Mapping[str, int | None] = field(default_factory=dict)
    unread: frozenset[UnreadSpan] = frozenset()

    @property
    def digest(self) -> int:
        """What tells it from another one: its end and its totals. Without bytes, which are unknown once files were merged."""
        totals = ((*key, *usage._replace(bytes=0)) for key, usage in self.totals.items())
        every = (*((*place, to) for place, to in self.end.items()), *self.unread, *totals)
        return sum(zlib.crc32(repr(tuple(one)).encode()) for one in every) % 2**32


class UsageFold:
    """The state of a run. Rows of the feed go in, batches come out. Keys of earlier hours than `keeps` before the newest are
    forgotten: no row of theirs comes any more."""

    def __init__(self, keeps: int = 2) -> None:
        self._totals: dict[UsageKey, MinuteUsage] = {}
        self._keeps_ms = keeps * HOUR_MS

    def batch(self, changes: Iterable[MessageChange]) -> UsageBatch:
        touched, end, unread = set[UsageKey](), dict[UsagePosition, int](), set[UnreadSpan]()
        for change in changes:
            key, position = key_of(change), position_of(change)
            if position is not None:
                end[position] = max(change.position, end.get(position, 0))
            if position is not None and change.kind == UNREAD:
                unread.add(UnreadSpan(*position, change.first or 0, change.last or 0))
                continue
            self._totals[key] = self._totals.get(key, MinuteUsage()).plus(usage_of(change))
            touched.add(key)
        found = UsageBatch({key: self._totals[key] for key in touched}, end, unread=frozenset(unread))
        newest_ms = max((key.read_hour_ms for key in self._totals), default=0)
        self._totals = {k: v for k, v in self._totals.items() if k.read_hour_ms > newest_ms - self._keeps_ms}
        return found


class LevelChanges:
    """What the batches of one run change, whose totals are absolute. It remembers the level of each for as long as the run may bring
    its key again."""

    def __init__(self, keeps: int = 2) -> None:
        self._known: dict[UsageKey, int] = {}
        self._keeps_ms = keeps * HOUR_MS

    def unknown(self, batch: UsageBatch) -> list[UsageKey]:
        """Keys that it has not seen. The history may have totals of them, when the run is older than this."""
        return [key for key in batch.totals if key not in self._known]

    def of(self, batch: UsageBatch, earlier: Totals) -> dict[str, int | None]:
        """By table. `earlier`: what the history has of unknown keys."""
        found: dict[str, int | None] = {}
        for key, usage in batch.totals.items():
            before = self._known[key] if key in self._known else earlier.get(key, MinuteUsage()).level
            changed = found.setdefault(key.table, 0)
            gone = key.minute_ms is None
            found[key.table] = None if gone or changed is None else changed + usage.level - before
        return found | dict.fromkeys(one.table for one in batch.unread)

    def took(self, batch: UsageBatch) -> None:
        """The history has it."""
        self._known.update((key, usage.level) for key, usage in batch.totals.items())
        newest_ms = max((key.read_hour_ms for key in self._known), default=0)
        self._known = {k: v for k, v in self._known.items() if k.read_hour_ms > newest_ms - self._keeps_ms}


# -- the history -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class UsageKnown:
    """What a history has. `batch` is the newest of the owner, -1 before the first, with its `digest`. `totals` by
    run and key. `levels`: what queues must hold, by table, as far as that is known. `unread`: what is owed."""

    owner: str = ""
    batch: int = -1
    digest: int = 0
    positions: Positions = field(default_factory=dict)
    totals: Mapping[tuple[str, UsageKey], MinuteUsage] = field(default_factory=dict)
    levels: Mapping[str, int] = field(default_factory=dict)
    unread: frozenset[UnreadSpan] = frozenset()

    def owned_by(self, run: str) -> UsageKnown:
        """A new run begins, behind `positions`. Whatever older ones still bring is refused."""
        return replace(self, owner=run, batch=-1, digest=0)

    def sums(self) -> dict[UsageKey, MinuteUsage]:
        """By minute, of all runs and hours: `read_hour_ms` is 0."""
        found: dict[UsageKey, MinuteUsage] = {}
        for (_, key), usage in self.totals.items():
            whole = key._replace(read_hour_ms=0)
            found[whole] = found.get(whole, MinuteUsage()).plus(usage)
        return found


def decide_usage(known: UsageKnown, run: str, number: int, batch: UsageBatch) -> UsageKnown | None:
    """The history with batch `number` of `run`; None: it has it already. Raises UsageRunReplacedError, StaleCheckpointError."""
    if known.owner != run:
        raise UsageRunReplacedError()
    if number < known.batch or (number == known.batch and batch.digest != known.digest):
        raise StaleCheckpointError(
            f"batch {number} of the usage query comes again with another content (the history has batch {known.batch}): its "
            "checkpoint was restored from a copy, or messages were purged meanwhile. Use a fresh checkpointLocation: the query "
            "continues behind what is recorded"
        )
    if number == known.batch:
        return None
    return replace(
        known,
        batch=number,
        digest=batch.digest,
        positions={**known.positions, **batch.end},
        totals={**known.totals, **{(run, key): usage for key, usage in batch.totals.items()}},
        levels=moved_levels(known.levels, batch.levels),
        unread=known.unread | batch.unread,
    )


def moved_levels(levels: Mapping[str, int], changes: Mapping[str, int | None]) -> dict[str, int]:
    found = dict(levels)
    for table, change in changes.items():
        if table in found and change is not None:
            found[table] += change
        elif change is None:
            found.pop(table, None)
    return found
