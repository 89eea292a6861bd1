"""Publishes what is unfinished of a destination, and records its minutes in the usage history.

Senders have no store, so they read what is published: core/limits/quota.py has the rule. Housekeeping publishes every 2 seconds,
and every process with consumers of the destination several times a second, because senders may wait for room. Only destinations
that `publishes_usage` names publish; for all others nothing is read or written.

The history has sends, acknowledgements, expirations, and what is used: core/limits/usage_history.py has the rule,
log/upkeep/usage_history.py the table, and UsageHistory adds what the table lacks. That is not on the way of a send or a receive,
and a destination of which no message has moved costs a look at its logs and record sets.

Features: T1, T3, T5 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow.compute as pc

from spark_jms.claims.servers.stores import not_durable, state_of, timed_stores
from spark_jms.claims.upkeep.views import moment
from spark_jms.core.limits.quota import MemberUsage, MessageUsage, PublishedUsage, total
from spark_jms.core.limits.usage_history import WINDOW_MS, UsageChange, UsageWindow, acknowledged, merged, window_at
from spark_jms.core.messages.ranges import EMPTY, Ranges, union
from spark_jms.core.records.record_set import RecordSet
from spark_jms.errors import JmsqError
from spark_jms.log.destinations.domain import Domain, publishes_usage
from spark_jms.log.messages.data_files import read_stored
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.files import DataFile
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.usage_history import UsageHistoryTable
from spark_jms.store import Store, StoreError

log = logging.getLogger("spark_jms")
PUBLISH_EVERY_S = 0.05
_SHARE_OF_TIME = 0.05  # that a publisher may use
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


class UsageHistory:
    """Adds to the usage history what it lacks of the destinations of a domain. Not thread-safe; several processes may run one."""

    def __init__(self, domain: Domain, store: Store, clock_ms: Callable[[], int] = now_ms) -> None:
        self._domain, self._store, self._clock_ms = domain, timed_stores(store), clock_ms
        self._table = UsageHistoryTable(domain, clock_ms)

    @property
    def damaged(self) -> list[str]:
        """Why files of the table could not be read by the newest `record`. What follows them is recorded all the same."""
        return list(self._table.damaged.values())

    def record(self, destinations: Sequence[str]) -> tuple[int, dict[str, Exception]]:
        """How many windows have changed, and by destination what prevented more of it: the others are recorded."""
        self._table.create()
        errors: dict[str, Exception] = {}

        def missing(known: Snapshot) -> UsageChange:
            errors.clear()
            windows, positions = list[UsageWindow](), dict[str, int]()
            for name in destinations:
                found = _Missing(self._domain, self._store, known, name, self._clock_ms())
                try:
                    found.look()
                except (JmsqError, StoreError, OSError) as error:
                    errors[name] = error
                windows += found.windows
                positions |= found.positions
            return UsageChange(tuple(merged(windows)), positions)

        changed = self._table.add(missing)
        self._table.keep_house()
        return changed, errors


class _Missing:
    """What the history lacks of one destination, behind the positions of a version of the table. What was found before an error is
    whole in itself."""

    def __init__(self, domain: Domain, store: Store, known: Snapshot, destination: str, now: int) -> None:
        self._domain, self._store, self._known, self._name = domain, store, known.transactions, destination
        self._now = now
        self.windows: list[UsageWindow] = []
        self.positions: dict[str, int] = {}

    def look(self) -> None:
        log = self._domain.log(self._name)
        messages = log.refresh()
        self._add(messages, "sent", self._sent(log, messages))
        acknowledgements = self._domain.acknowledgements(self._name)
        rows = acknowledgements.refresh()
        self._add(rows, "acknowledged", self._acknowledged(acknowledgements, rows))
        self._look_at_records(messages)

    def _add(self, snapshot: Snapshot, what: str, found: Iterable[UsageWindow]) -> None:
        self.windows += [*found]
        for member in snapshot.numbered_members():
            self._move(_position(snapshot, member, what), snapshot.last_sequence(member))

    def _move(self, position: str, to: int) -> int:
        """How far it moves."""
        before = self._known.get(position, 0)
        if to != before:
            self.positions[position] = to
        return to - before

    def _new_files(self, snapshot: Snapshot, what: str) -> Iterator[tuple[DataFile, Ranges]]:
        for member in sorted(snapshot.numbered_members()):
            known = self._known.get(_position(snapshot, member, what), 0)
            last = snapshot.last_sequence(member)
            for file in snapshot.member_files(member).overlapping(known + 1, last) if known < last else ():
                yield file, Ranges.of((max(file.first, known + 1), file.last))

    def _sent(self, log: DeltaLog, messages: Snapshot) -> Iterator[UsageWindow]:
        """By JMSTimestamp: merged files have messages of many minutes. What was purged already was sent at an unknown time."""
        found = 0
        for file, part in self._new_files(messages, "sent"):
            found += part.count
            for start_ms, count in self._by_window(log, file, part):
                yield UsageWindow(self._name, start_ms, sent=count)
        everything = sum(
            messages.last_sequence(member) - self._known.get(_position(messages, member, "sent"), 0)
            for member in messages.numbered_members()
        )
        if everything > found:
            yield UsageWindow(self._name, window_at(self._now, self._now), sent=everything - found)

    def _by_window(self, log: DeltaLog, file: DataFile, part: Ranges) -> Iterator[tuple[int, int]]:
        low, high = (file.statistics.get(bound, {}).get("JMSTimestamp") for bound in ("minValues", "maxValues"))
        if low is not None and high is not None and low // WINDOW_MS == high // WINDOW_MS:
            yield window_at(int(low), self._now), part.count
            return
        for batch, _ in read_stored(log.storage, file.hint, part, ["JMSTimestamp"]):
            windows = pc.multiply(pc.divide(pc.fill_null(batch.column("JMSTimestamp"), 0), WINDOW_MS), WINDOW_MS)
            for one in pc.value_counts(windows).to_pylist():
                yield window_at(one["values"], self._now), one["counts"]

    def _acknowledged(self, log: DeltaLog, rows: Snapshot) -> Iterator[UsageWindow]:
        columns = ["consumer", "acknowledged_ms", "messages"]
        for file, part in self._new_files(rows, "acknowledged"):
            for batch, _ in read_stored(log.storage, file.hint, part, columns):
                for row in batch.to_pylist():
                    start_ms = window_at(row["acknowledged_ms"], self._now)
                    yield from acknowledged(self._name, start_ms, row["consumer"], row["messages"])

    def _look_at_records(self, messages: Snapshot) -> None:
        declared = messages.destination
        live = not_durable(self._store, messages.table_id) if declared.is_topic else {}
        states: dict[tuple[str, int], RecordSet] = {}

        def state(snapshot: Snapshot, subscription: str, member: int) -> RecordSet:
            key = (subscription, member)
            if key not in states:
                states[key] = state_of(self._store, snapshot, subscription, member)
            return states[key]

        names = [*declared.subscription_names(), *sorted(live)]
        for name in names:
            for member in declared.member_ids:
                state(messages, name, member)  # before a position moves: a server that is away leaves all of them
        created = {one.name: one.created_ms for one in (*declared.subscriptions.values(), *live.values())}
        expired = 0
        for name in names:
            for member in declared.member_ids:
                position = f"{_position(messages, member, 'expired')}/{created.get(name, 0)}/{name}"
                expired += max(self._move(position, states[name, member].expired), 0)
        used = total(one.unfinished for one in member_usages(messages, names, state).values())
        self._note(messages, expired, used)

    def _note(self, messages: Snapshot, expired: int, used: MessageUsage) -> None:
        moved = [
            self._move(f"used/{messages.table_id}/{what}", value)
            for what, value in (("messages", used.messages), ("bytes", used.bytes))
        ]
        if expired or any(moved) or self.windows:
            self.windows.append(UsageWindow(self._name, window_at(self._now, self._now), expired=expired, used=used))


def _position(snapshot: Snapshot, member: int, what: str) -> str:
    """The txn app id in the table of the history: of the table, because one that is created again begins again."""
    return f"{what}/{snapshot.table_id}/{member}"
