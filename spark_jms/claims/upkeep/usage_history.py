"""The usage history: rows for people, and who adds to it.

The history has what the change feed tells, by minute, and what destinations hold: core/changes/usage_fold.py has the rule,
log/upkeep/usage_history.py the table. UsageHistory is the run of processes without Spark; jobs/usage.py is the streaming query, which
uses the same sink, UsageSink. Neither is on the way of a send or a receive, and a destination of which no message has moved costs a
look at its logs.

Features: T3, M12 (docs/FEATURES.md)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import chain
from typing import NamedTuple

from spark_jms.claims.servers.stores import not_durable, state_of, timed_stores
from spark_jms.claims.upkeep.usage import ATTEMPTS, member_usages, publish_usage
from spark_jms.claims.upkeep.views import moment
from spark_jms.core.changes.change import NOTHING_READ, FeedPosition, MessageChange
from spark_jms.core.changes.usage_fold import Positions, UsageBatch, UsageFold, UsageKnown, behind
from spark_jms.core.limits.quota import MessageUsage, total
from spark_jms.core.records.record_set import RecordSet
from spark_jms.errors import JmsqError, UsageRunReplacedError
from spark_jms.log.changes.plan import plan
from spark_jms.log.changes.positions import FeedTables
from spark_jms.log.changes.rows import changes_of
from spark_jms.log.destinations.domain import Domain, publishes_usage
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.usage_history import UsageHistoryTable
from spark_jms.store import Store, StoreError

STAND_BY_S = 60.0  # of a run that was replaced


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
    """Takes the batches of runs: records their totals with what the destinations hold, and publishes that. Not thread-safe."""

    def __init__(self, domain: Domain, store: Store, clock_ms: Callable[[], int] = now_ms) -> None:
        self._domain, self._store = domain, timed_stores(store)
        self.table = UsageHistoryTable(domain, clock_ms)
        self._unknown: set[str] = set()  # destinations of which it is not recorded what they hold

    @property
    def damaged(self) -> list[str]:
        """Why files of the table could not be read when they were merged. What follows them is recorded all the same."""
        return list(self.table.damaged.values())

    @property
    def lacks(self) -> bool:
        """A store was away: even without news there is something to record."""
        return bool(self._unknown)

    def take(self, run: str, number: int, batch: UsageBatch) -> tuple[int, dict[str, Exception]]:
        """How many windows have changed, and by destination what prevented a look at what it holds. Raises UsageRunReplacedError,
        StaleCheckpointError."""
        used, errors = dict[str, MessageUsage](), dict[str, Exception]()
        wanted = self._unknown | {key.destination for key in batch.totals}
        for name in sorted(wanted & set(self._domain.destinations())):
            try:
                used[name] = self._held(name)
            except (JmsqError, StoreError, OSError) as error:
                errors[name] = error
        added = self.table.add(run, number, batch, used)
        self._unknown = set(errors)
        self.table.keep_house()
        return len({(key.destination, key.window_ms) for key in batch.totals}) if added else 0, errors

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
        self._sink = UsageSink(domain, store, clock_ms)
        self._tables: dict[str, FeedTables] = {}
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
        if not (news or self._sink.lacks) or self._waits(known):
            return 0, errors
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
            self._run, self._stands_by = "", StandBy.of(self._sink.table.known(), self._monotonic_s())
            return 0, errors
        except BaseException:
            self._run = ""  # whether the batch is recorded, the next run's positions tell
            raise
        return changed, errors | unknown

    def _waits(self, known: UsageKnown) -> bool:
        """Another run owns the history, and records."""
        if self._stands_by is None or not known.owner:
            return False
        self._stands_by = self._stands_by.after(known, self._monotonic_s())
        return not self._stands_by.is_over(self._monotonic_s())

    def _news(self, destinations: Sequence[str], positions: Positions, errors: dict[str, Exception]) -> list[_News]:
        self._tables = {
            name: self._tables.get(name) or FeedTables(self._domain, name, self._clock_ms) for name in destinations
        }
        found = []
        for name, tables in self._tables.items():
            try:
                tables.check()
                end = tables.newest(NOTHING_READ)
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
    """Of a run that was replaced, until the newer one has recorded nothing for a while."""

    known: tuple[str, int]  # the run and the batch that were recorded last
    since_s: float

    @staticmethod
    def of(known: UsageKnown, now_s: float) -> StandBy:
        return StandBy((known.owner, known.batch), now_s)

    def after(self, known: UsageKnown, now_s: float) -> StandBy:
        return self if self.known == (known.owner, known.batch) else StandBy.of(known, now_s)

    def is_over(self, now_s: float) -> bool:
        return now_s - self.since_s >= STAND_BY_S
