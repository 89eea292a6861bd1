"""The usage history: rows for people, and who adds to it.

The history has what the change feed tells, by minute, and what destinations hold: core/changes/usage_fold.py has the rule,
log/upkeep/usage_history.py the table. UsageHistory is the run of processes without Spark; jobs/usage.py is the streaming query, which
uses the same sink, UsageSink. Neither is on the way of a send or a receive, and a destination of which no message has moved costs a
look at its logs.

**What could not be read.** A batch of the query may pass spans of a data file that is damaged or missing. Between batches the sink
reads them again, names why it cannot, and records them once it can.

**The alarm.** Between batches the sink compares each queue at rest with the history: what was sent, less what has ended, is what the
queue holds. At rest means: the history has everything of its tables, no ended message waits in a record set for its row, no transfer
or transaction is open, and none of this changes during the look. A difference that two looks have seen is named.

Features: T3, M12 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import chain
from typing import NamedTuple

from spark_jms.claims.servers.stores import not_durable, state_of, timed_stores
from spark_jms.claims.upkeep.usage import ATTEMPTS, member_usages, publish_usage
from spark_jms.claims.upkeep.views import moment
from spark_jms.core.changes.change import NOTHING_READ, FeedPosition, FeedSpan, MessageChange, TablePosition
from spark_jms.core.changes.usage_fold import (
    LevelChanges,
    Positions,
    Totals,
    UnreadSpan,
    UsageBatch,
    UsageFold,
    UsageKnown,
    UsagePosition,
    ahead,
    behind,
    is_reached,
)
from spark_jms.core.destinations.destination import QUEUE_SUBSCRIPTION
from spark_jms.core.limits.quota import MessageUsage, total
from spark_jms.core.records.record_set import RecordSet
from spark_jms.errors import JmsqError, StaleDomainError, UsageDifferenceError, UsageRunReplacedError
from spark_jms.log.changes.plan import plan
from spark_jms.log.changes.positions import FeedTable, FeedTables, log_of_table
from spark_jms.log.changes.rows import changes_again, changes_of
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.limits import publishes_usage
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.usage_history import UsageHistoryTable
from spark_jms.store import Store, StoreError

log = logging.getLogger("spark_jms")
STAND_BY_S = 60.0  # of a run that was replaced
COMPARE_ALL_S = 600.0  # a store may change without news, when it is restored


@dataclass(frozen=True)
class UsageHistoryRow:
    """A minute of a destination. `messages_used` and `bytes_used` are those at its end, as far as they were looked at; None: as in
    the row before."""

    destination: str
    begins: datetime
    sent: int
    finished: int
    expired: int
    dropped: int
    messages_used: int | None
    bytes_used: int | None


def usage_history(domain: Domain, destinations: Collection[str], since_ms: int = 0) -> list[UsageHistoryRow]:
    """The minutes in which something has changed, in order."""
    return [
        UsageHistoryRow(
            one.destination,
            moment(one.start_ms),
            one.sent,
            one.finished,
            one.expired,
            one.dropped,
            one.used.messages if one.used else None,
            one.used.bytes if one.used else None,
        )
        for one in UsageHistoryTable(domain).read(destinations, since_ms)
    ]


class UsageSink:
    """Takes the batches of a run: records their totals with what the destinations hold, and publishes that. Between batches it looks
    at destinations that it could not look at, and at queues at rest. Thread-safe."""

    def __init__(
        self,
        domain: Domain,
        store: Store,
        clock_ms: Callable[[], int] = now_ms,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._domain, self._store = domain, timed_stores(store)
        self._clock_ms, self._monotonic_s = clock_ms, monotonic_s
        self.table = UsageHistoryTable(domain, clock_ms)
        self._lock = threading.Lock()
        self._run = ""  # whose batches it takes
        self._changes = LevelChanges()
        self._older_ms: int | None = (
            None  # up to this hour the run may be older than this sink; None: there was no batch yet
        )
        self._unknown: set[str] = set()  # destinations of which it is not recorded what they hold
        self._equal: dict[str, TablePosition] = {}  # by table: queues that were found as they must be
        self._all_s = float("-inf")  # when all were compared, whether there was news or not
        self._suspects: dict[str, _Difference] = {}  # by table: of the look before
        self._named: dict[str, _Difference] = {}

    @property
    def damaged(self) -> list[str]:
        """Why files of the table could not be read when they were merged. What follows them is recorded all the same."""
        return list(self.table.damaged.values())

    def follow(self, run: str) -> None:
        """The batches of this run come next."""
        with self._lock:
            if run != self._run:
                self._run, self._changes, self._older_ms = run, LevelChanges(), None
                self._suspects, self._named, self._equal = {}, {}, {}

    def take(self, run: str, number: int, batch: UsageBatch) -> tuple[int, dict[str, Exception]]:
        """How many windows have changed, and by destination what prevented a look at what it holds. Raises UsageRunReplacedError,
        StaleCheckpointError."""
        self.follow(run)
        with self._lock:
            if self._older_ms is None:
                self._older_ms = max((key.read_hour_ms for key in batch.totals), default=-1) if number else -1
            used, errors = self._looked(self._unknown | {key.destination for key in batch.totals})
            whole = replace(batch, levels=self._levels(batch))
            added = self.table.add(run, number, whole, used)
            self._changes.took(batch)
            self._unknown = set(errors)
            self.table.keep_house()
            return len({(key.destination, key.window_ms) for key in batch.totals}) if added else 0, errors

    def look_again(self, look: Callable[[], Mapping[str, TablePosition]]) -> dict[str, Exception]:
        """Between batches. `look`: where the tables are now, by id. By destination: why what it holds is not known, or a part of its
        changes, a copy of it that was restored, a difference. {} when another run owns the history."""
        with self._lock:
            if not self._run or (known := self.table.known()).owner != self._run:
                return {}
            tables = look()
            if self._monotonic_s() - self._all_s >= COMPARE_ALL_S:
                self._equal, self._all_s = {}, self._monotonic_s()
            used, errors = self._looked(self._unknown)
            lowered = ahead(tables, known.positions)
            first, differences = self._compared(tables, known)
            try:
                self.table.note(self._run, used, first, lowered)
                errors |= self._read_late(tables, self.table.known().unread if lowered else known.unread)
            except UsageRunReplacedError:
                return {}
            self._unknown = set(errors)
            return errors | differences | _restored(tables, known.positions, lowered)

    def _read_late(self, tables: Mapping[str, TablePosition], unread: Collection[UnreadSpan]) -> dict[str, Exception]:
        """What the history owes, as far as it can be read now. Raises UsageRunReplacedError."""
        errors = dict[str, Exception]()
        for one in sorted(unread):
            at = tables.get(one.table)
            if at is None:
                if self._was_dropped(one.table):
                    self.table.add_late(self._run, one, {})
                continue
            quota, name = at.quotas.get(one.member), at.destination
            span = FeedSpan(one.what, one.table, name, one.member, one.first, one.last, self._clock_ms(), quota)
            try:
                found = changes_again(self._domain.root, span)
            except (JmsqError, OSError) as error:
                errors[name] = error
                continue
            self.table.add_late(self._run, one, UsageFold().batch(found).totals)
        return errors

    def _was_dropped(self, table: str) -> bool:
        try:
            names = self._domain.registered()
            return not names or log_of_table(self._domain, table, names[0], rows=False) is None
        except (JmsqError, OSError):  # one that cannot be read may be it
            return False

    def _looked(self, names: Collection[str]) -> tuple[dict[str, MessageUsage], dict[str, Exception]]:
        used, errors = dict[str, MessageUsage](), dict[str, Exception]()
        for name in sorted(set(names) & set(self._domain.destinations())) if names else ():
            try:
                used[name] = self._held(name)
            except (JmsqError, StoreError, OSError) as error:
                errors[name] = error
        return used, errors

    def _levels(self, batch: UsageBatch) -> dict[str, int | None]:
        assert self._older_ms is not None
        older = [key for key in self._changes.unknown(batch) if key.read_hour_ms <= self._older_ms]
        earlier: Totals = {}
        try:
            earlier = self.table.totals(self._run, older) if older else {}
        except (JmsqError, OSError):  # named when files are merged
            return dict.fromkeys({key.table for key in batch.totals} | {one.table for one in batch.unread})
        return self._changes.of(batch, earlier)

    def _compared(
        self, tables: Mapping[str, TablePosition], known: UsageKnown
    ) -> tuple[dict[str, int], dict[str, Exception]]:
        """What queues must hold of which that was not known, by table; and errors and differences, by destination."""
        first, errors, suspects = dict[str, int](), dict[str, Exception](), dict[str, _Difference]()
        for table, position in tables.items():
            if self._equal.get(table) == position or not is_reached(table, position, known.positions):
                continue
            try:
                held = self._at_rest(table, position)
            except (JmsqError, StoreError, OSError) as error:
                errors[position.destination] = error
                continue
            wanted = known.levels.get(table)
            if held is None:
                continue
            if wanted is None:
                first[table] = held
            elif wanted == held:
                self._equal[table] = position
            else:
                suspects[table] = _Difference(position.destination, wanted, held)
        self._named = {table: one for table, one in suspects.items() if self._is_certain(table, one)}
        self._suspects = suspects
        return first, errors | {one.destination: one.error() for one in self._named.values()}

    def _is_certain(self, table: str, one: _Difference) -> bool:
        """It was there at the look before. The log names it once."""
        certain = self._suspects.get(table) == one
        if certain and self._named.get(table) != one:
            log.error("%s", one.error())
        return certain

    def _at_rest(self, table: str, position: TablePosition) -> int | None:
        """The messages that a queue holds; None: it is not at rest, or a topic. `position`: of a look before."""
        name = position.destination
        messages, rows = self._domain.log(name), self._domain.acknowledgements(name)
        snapshot = messages.refresh()
        if snapshot.table_id != table or snapshot.destination.is_topic:
            return None
        held = 0
        for member in snapshot.destination.member_ids:
            state = state_of(self._store, snapshot, QUEUE_SUBSCRIPTION, member)
            if state.outbox or state.intents or state.pledges:
                return None
            held += state.unfinished(1, snapshot.last_sequence(member)).count
        now = FeedTable(name, rows.refresh(), messages.refresh(), rows.storage.uri, messages.storage.uri)
        return held if now.position == position else None

    def _held(self, name: str) -> MessageUsage:
        """And publish it for senders, where they look at it: no consumer may be there to do so."""
        log = self._domain.log(name)
        messages = log.refresh()
        if publishes_usage(self._domain, messages.destination):
            live = partial(_live_names, self._store)
            any(publish_usage(self._domain, log, partial(state_of, self._store), live) for _ in range(ATTEMPTS))
            messages = log.snapshot
        names = [*messages.destination.subscription_names(), *_live_names(self._store, messages)]
        places = [(name, member) for name in names for member in messages.destination.member_ids]
        # before anything is summed: a server that is away must not count as one that has finished nothing
        states = {place: state_of(self._store, messages, *place) for place in places}

        def known(_snapshot: Snapshot, subscription: str, member: int) -> RecordSet:
            return states[subscription, member]

        return total(one.unfinished for one in member_usages(messages, names, known).values())


def _live_names(store: Store, snapshot: Snapshot) -> list[str]:
    return sorted(not_durable(store, snapshot.table_id)) if snapshot.destination.is_topic else []


class _Difference(NamedTuple):
    destination: str
    wanted: int
    held: int

    def error(self) -> UsageDifferenceError:
        return UsageDifferenceError(
            f"by the usage history {self.destination} must hold {self.wanted:,} messages, and it holds {self.held:,}: the store, a "
            "table of the queue or the history has lost changes, or was restored from a copy. Compare `jmsq stat` and `jmsq acks`; to "
            "count from scratch, delete the directory of the history"
        )


def _restored(
    tables: Mapping[str, TablePosition], positions: Positions, lowered: Mapping[UsagePosition, int]
) -> dict[str, Exception]:
    """By destination, of those of which an older copy was restored. The log names each once: then the positions are lowered."""
    found: dict[str, Exception] = {}
    for place, to in lowered.items():
        name = tables[place.table].destination
        found[name] = StaleDomainError(
            f"the usage history of {name} was ahead of its table ({place.what}, member {place.member}: {positions[place]:,}, and the "
            f"table ends at {to:,}): an older copy was restored. The history continues at the end of the table, and still counts what "
            "the copy lacks"
        )
    for error in found.values():
        log.warning("%s", error)
    return found


class UsageHistory:
    """The run of a process without Spark: it begins behind the positions of the history with the first news, so it has no state to
    lose. Not thread-safe. Several processes may have one: the newest run records, and an older one takes over when it sees that news
    stay unrecorded for a minute."""

    def __init__(
        self,
        domain: Domain,
        store: Store,
        clock_ms: Callable[[], int] = now_ms,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._domain, self._clock_ms, self._monotonic_s = domain, clock_ms, monotonic_s
        self._sink = UsageSink(domain, store, clock_ms, monotonic_s)
        self._tables: dict[str, FeedTables] = {}
        self._newest: dict[str, TablePosition] = {}  # as they were looked at last
        self._run, self._number, self._fold, self._read_ms = "", 0, UsageFold(), 0
        self._stands_by: StandBy | None = None

    @property
    def damaged(self) -> list[str]:
        return self._sink.damaged

    def record(self, destinations: Sequence[str]) -> tuple[int, dict[str, Exception]]:
        """How many windows have changed, and by destination what prevented more of it: the others are recorded."""
        self._sink.table.create()
        known = self._sink.table.known()
        errors = dict[str, Exception]()
        news = self._news(destinations, known.positions, errors)
        if self._waits(known, has_news=bool(news)):
            return 0, errors
        if not news and (self._run or not ahead(self._newest, known.positions)):
            return 0, errors | self._sink.look_again(lambda: self._newest)
        try:
            if not (self._run and known.owner):  # none: the history was deleted, and begins again
                self._run, positions = self._sink.table.begin()
                self._number, self._fold, self._stands_by = 0, UsageFold(), None
                if positions != known.positions:
                    news = self._news(destinations, positions, errors)
            batch = self._fold.batch(chain.from_iterable(self._rows(one, errors) for one in news))
            changed, unknown = self._sink.take(self._run, self._number, batch)
            self._number += 1
        except UsageRunReplacedError:
            self._run, self._stands_by = "", StandBy.of(self._sink.table.known())
            return 0, errors
        except BaseException:
            self._run = ""  # whether the batch is recorded, the next run's positions tell
            raise
        return changed, errors | unknown | self._sink.look_again(lambda: self._newest)

    def _waits(self, known: UsageKnown, *, has_news: bool) -> bool:
        """Another run owns the history, and records."""
        if self._stands_by is None or not known.owner:
            return False
        self._stands_by = self._stands_by.after(known, self._monotonic_s(), has_news=has_news)
        return not self._stands_by.is_over(self._monotonic_s())

    def _news(self, destinations: Sequence[str], positions: Positions, errors: dict[str, Exception]) -> list[_News]:
        self._tables = {
            name: self._tables.get(name) or FeedTables(self._domain, name, self._clock_ms) for name in destinations
        }
        found, self._newest = [], {}
        for name, tables in self._tables.items():
            try:
                tables.check()
                end = tables.newest(NOTHING_READ)
                self._newest |= end.tables
                self._read_ms = max(self._read_ms, end.at_ms)
                end = replace(end, at_ms=self._read_ms)
                start = behind(end, positions)
                if start.spans(end):
                    found.append(_News(name, start, end))
            except (JmsqError, OSError) as error:
                errors[name] = error
        return found

    def _rows(self, news: _News, errors: dict[str, Exception]) -> list[MessageChange]:
        """None of a destination that cannot be read to its end: a later round reads it again from the start."""
        try:
            parts = plan(self._domain.root, self._tables[news.name], news.start, news.end)
            return [*chain.from_iterable(map(changes_of, parts))]
        except (JmsqError, OSError) as error:
            errors[news.name] = error
            return []


class _News(NamedTuple):
    name: str
    start: FeedPosition
    end: FeedPosition


class StandBy(NamedTuple):
    """Of a run that was replaced, until the newer one has not recorded news for a while."""

    known: tuple[str, int]  # the run and the batch that were recorded last
    since_s: float | None = None  # so long there is news that is not recorded; None: there is none

    @staticmethod
    def of(known: UsageKnown) -> StandBy:
        return StandBy((known.owner, known.batch))

    def after(self, known: UsageKnown, now_s: float, *, has_news: bool) -> StandBy:
        """While nothing happens, a run has nothing to record."""
        newest = StandBy.of(known)
        if not has_news:
            return newest
        return self if self.since_s is not None and self.known == newest.known else newest._replace(since_s=now_s)

    def is_over(self, now_s: float) -> bool:
        return self.since_s is not None and now_s - self.since_s >= STAND_BY_S
