"""Publishes what is unfinished of a destination, and records its minutes in the usage history.

Senders have no store, so they read what is published: core/limits/quota.py has the rule. Housekeeping publishes every 2 seconds,
and every process with consumers of the destination several times a second, because senders may wait for room. Only destinations
that `publishes_usage` names publish; for all others nothing is read or written.

The history has what the change feed tells, by minute, and what destinations hold: core/changes/usage_fold.py has the rule,
log/upkeep/usage_history.py the table. UsageHistory is the run of processes without Spark; jobs/usage.py is the streaming query, which
uses the same sink, UsageSink. Neither is on the way of a send or a receive, and a destination of which no message has moved costs a
look at its logs.

Features: T1, T3, T5 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import chain
from typing import NamedTuple

from spark_jms.claims.servers.stores import not_durable, state_of, timed_stores
from spark_jms.claims.upkeep.views import moment
from spark_jms.core.changes.change import NOTHING_READ, FeedPosition, MessageChange
from spark_jms.core.changes.usage_fold import Positions, UsageBatch, UsageFold, UsageKnown, behind
from spark_jms.core.limits.quota import MemberUsage, MessageUsage, PublishedUsage, total
from spark_jms.core.messages.ranges import EMPTY, Ranges, union
from spark_jms.core.records.record_set import RecordSet
from spark_jms.errors import JmsqError, UsageRunReplacedError
from spark_jms.log.changes.plan import plan
from spark_jms.log.changes.positions import FeedTables
from spark_jms.log.changes.rows import changes_of
from spark_jms.log.destinations.domain import Domain, publishes_usage
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.usage_history import UsageHistoryTable
from spark_jms.store import Store, StoreError

log = logging.getLogger("spark_jms")
PUBLISH_EVERY_S = 0.05
_SHARE_OF_TIME = 0.05  # that a publisher may use
STAND_BY_S = 60.0  # of a run that was replaced
ATTEMPTS = 5  # of a publication that no other one follows soon
StateOf = Callable[[Snapshot, str, int], RecordSet]

# -- published ---------------------------------------------------------------------------------------------------------


class UsagePublisher:
    """Publishes the usage of one destination, in a process with consumers. Call `publish` often: it paces itself."""

    def __init__(self, domain: Domain, store: Store, destination: str) -> None:
        self._domain, self._store, self._log = domain, timed_stores(store), domain.log(destination)
        self._next_s = 0.0

    def publish_last(self) -> None:
        """A consumer closes. Raises nothing: housekeeping publishes as well."""
        try:
            self.publish(paced=False)
        except (JmsqError, StoreError, OSError) as error:
            log.warning("the usage of %s is published later, by housekeeping: %s", self._log.name, error)

    def publish(self, *, paced: bool = True) -> None:
        if not publishes_usage(self._domain, self._log.snapshot.destination):
            return
        begun = time.monotonic()
        if paced and begun < self._next_s:
            return
        try:
            for _ in range(1 if paced else ATTEMPTS):
                if publish_usage(self._domain, self._log, self.state, self._live):
                    break
        finally:
            ended = time.monotonic()
            self._next_s = ended + (ended - begun) / _SHARE_OF_TIME

    def state(self, snapshot: Snapshot, subscription: str, member: int) -> RecordSet:
        return state_of(self._store, snapshot, subscription, member)

    def _live(self, snapshot: Snapshot) -> list[str]:
        return sorted(not_durable(self._store, snapshot.table_id)) if snapshot.destination.is_topic else []


def publish_usage(domain: Domain, log: DeltaLog, state: StateOf, live: Callable[[Snapshot], list[str]]) -> bool:
    """Publish what is unfinished of a destination. `live` names the subscriptions that are not in the table; it is asked after the
    snapshot is fixed. False: another process has published meanwhile."""
    table_id = log.snapshot.table_id

    def look() -> PublishedUsage | None:
        snapshot = log.refresh()
        if snapshot.table_id != table_id:
            return None
        names = [*snapshot.destination.subscription_names(), *live(snapshot)]
        members = member_usages(snapshot, names, state)
        durable = {one.name: one.created_ms for one in snapshot.destination.subscriptions.values()}
        return PublishedUsage(log.name, members, durable)

    return domain.usages.publish(table_id, look)


def member_usages(snapshot: Snapshot, names: list[str], state: StateOf) -> dict[int, MemberUsage]:
    """What the subscriptions have not finished. A member whose server is away counts with all its messages."""
    return {member: _member(snapshot, member, names, state) for member in snapshot.members}


def _member(snapshot: Snapshot, member: int, names: list[str], state: StateOf) -> MemberUsage:
    last, files = snapshot.last_sequence(member), snapshot.member_files(member).files
    declared = snapshot.destination
    unfinished = EMPTY
    if files and member in declared.member_ids:  # a removed member was finished
        everything = Ranges.of((files[0].first, files[-1].last))
        unfinished = union(_unfinished(snapshot, member, name, everything, state) for name in names)
    size = sum(file.bytes for file in files if unfinished & Ranges.of((file.first, file.last)))
    return MemberUsage(last, MessageUsage(unfinished.count, size), declared.server_of(member))


def _unfinished(snapshot: Snapshot, member: int, name: str, everything: Ranges, state: StateOf) -> Ranges:
    """All messages, while the server with the record set is away."""
    try:
        return state(snapshot, name, member).unfinished(everything.first, everything.last)
    except StoreError:
        return everything


# -- by minute ---------------------------------------------------------------------------------------------------------


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
        self._stands_by: _StandBy | None = None

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
            self._run, self._stands_by = "", _StandBy.of(self._sink.table.known(), self._monotonic_s())
            return 0, errors
        except BaseException:
            self._run = ""  # whether the batch is recorded, the next run's positions tell
            raise
        return changed, errors | unknown

    def _waits(self, known: UsageKnown) -> bool:
        """Another run owns the history, and records."""
        if self._stands_by is None or not known.owner:
            return False
        if self._stands_by.known != (known.owner, known.batch):
            self._stands_by = _StandBy.of(known, self._monotonic_s())
        return self._monotonic_s() - self._stands_by.since_s < STAND_BY_S

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


class _StandBy(NamedTuple):
    known: tuple[str, int]  # the run and the batch that were recorded last
    since_s: float

    @staticmethod
    def of(known: UsageKnown, now_s: float) -> _StandBy:
        return _StandBy((known.owner, known.batch), now_s)
