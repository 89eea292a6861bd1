"""What the usage history lacks of each destination: sends, acknowledgements, expirations, and what is used now.

core/usage_history.py has the rule, log/usage_history.py the table. Nothing here is on the way of a send or a receive, and a
destination of which no message has moved costs a look at its logs and record sets.

Features: T3 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow.compute as pc

from spark_jms.claims.active_subscriptions import not_durable
from spark_jms.claims.record_sets import state_of
from spark_jms.claims.stores import timed_stores
from spark_jms.claims.usage import member_usages
from spark_jms.claims.views import moment
from spark_jms.core.ranges import Ranges
from spark_jms.core.record_set import RecordSet
from spark_jms.core.usage import MessageUsage, total
from spark_jms.core.usage_history import WINDOW_MS, UsageChange, UsageWindow, acknowledged, merged, window_at
from spark_jms.errors import JmsqError
from spark_jms.log.data_file import DataFile
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain
from spark_jms.log.file_reader import read_stored
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import now_ms
from spark_jms.log.usage_history import UsageHistoryTable
from spark_jms.store import Store, StoreError


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
    """Of the destinations of a domain. Not thread-safe; several processes may run one."""

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
    """Of one destination, behind the positions of a version of the table. What was found before an error is whole in itself."""

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
