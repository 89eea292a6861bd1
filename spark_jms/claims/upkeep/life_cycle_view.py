"""The life-cycle log of a destination for people: its table, and what it does not have yet. Only reads.

Features: T6 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

import pyarrow.parquet as pq

from spark_jms.claims.records.life_cycle import sent_events
from spark_jms.claims.servers.stores import state_of
from spark_jms.claims.upkeep import views
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.destinations.subscriptions import record_server
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.life_cycle import LoggedEvent, events_id, sent_id
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.files import DataFile
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms
from spark_jms.settings.fields import LifeEvent
from spark_jms.store import RecordCorruptError, Store, StoreError

_CLOCKS_DIFFER_MS = 60_000  # of hosts, at most


@dataclass(frozen=True)
class EventRow:
    """`subscription` is "" for sent messages: they belong to all."""

    destination: str
    subscription: str
    member: int
    event: str
    happened: datetime
    consumer: str
    claim: str
    messages: int
    first: int
    last: int
    ranges: str  # "1-3, 7": all of them
    detail: str
    key: str

    def names(self, sequence: int | None) -> bool:
        """The event is one of this message (None: of any)."""
        parts = (part.split("-") for part in self.ranges.split(", "))
        return sequence is None or any(int(part[0]) <= sequence <= int(part[-1]) for part in parts)


_Written = Callable[[DeltaLog, str, "str | None"], Iterator[EventRow]]


def events(domain: Domain, store: Store, destination: str, subscription: str | None = None) -> list[EventRow]:
    """Rows of the life-cycle table and of what waits for it, each once, oldest first; with `subscription`, sent messages and
    the events of that one. [] for a destination that never logged."""
    return _events(domain, store, destination, subscription, _written)


def newest_events(
    domain: Domain, store: Store, destination: str, limit: int, wanted: Callable[[EventRow], bool]
) -> list[EventRow]:
    """The newest `limit` of the wanted ones, oldest first. Reads the files from the newest on, and no more of them than it
    needs."""

    def written(table: DeltaLog, destination: str, subscription: str | None) -> Iterator[EventRow]:
        found: list[datetime] = []  # when the newest `limit` happened, newest last
        files = [file for files in table.refresh().members.values() for file in files.files]
        for file in sorted(files, key=lambda file: file.modified_ms, reverse=True):
            if len(found) == limit and views.moment(file.modified_ms + _CLOCKS_DIFFER_MS) < found[0]:
                return  # what a file has happened before it was written
            for row in rows_of(table, file, destination, subscription):
                if wanted(row):
                    found = sorted([*found, row.happened])[-limit:]
                    yield row

    return [row for row in _events(domain, store, destination, None, written) if wanted(row)][-limit:]


def _events(
    domain: Domain, store: Store, destination: str, subscription: str | None, written: _Written
) -> list[EventRow]:
    table = domain.life_cycle(destination)
    if table is None:
        domain.log(destination).refresh()
        return []
    waiting = [
        *_waiting(domain, store, destination, subscription)
    ]  # before the table: an event may move there meanwhile
    rows = {row.key: row for row in written(table, destination, subscription)}
    sent = domain.log(destination).refresh()
    if sent.destination.message_logging_enabled:
        for member, found in sent_events(sent, table.snapshot).items():
            waiting += _rows(destination, "", member, sent_id(sent.table_id, member), found)
    rows = {**{row.key: row for row in waiting}, **rows}
    return sorted(rows.values(), key=_order)


def _order(row: EventRow) -> tuple[datetime, bool, int, str]:
    """Events of the same millisecond: in the order of their positions, and nothing happens to a message before it is sent."""
    return row.happened, row.event != LifeEvent.SENT.value, int(row.key.rsplit("/", 1)[1]), row.key


def _written(table: DeltaLog, destination: str, subscription: str | None) -> Iterator[EventRow]:
    for _, files in sorted(table.refresh().members.items()):
        for file in files.files:
            yield from rows_of(table, file, destination, subscription)


def rows_of(table: DeltaLog, file: DataFile, destination: str, subscription: str | None) -> Iterator[EventRow]:
    with table.storage.open_input(file.path) as source:
        rows = pq.read_table(source).to_pylist()
    for row in rows:
        if subscription in (None, row["subscription"]) or not row["subscription"]:
            yield EventRow(
                destination,
                row["subscription"],
                file.member,
                row["event"],
                views.moment(row["happened_ms"]),
                row["consumer"],
                row["claim"],
                row["messages"],
                row["first"],
                row["last"],
                Ranges.from_json(json.loads(row["ranges"])).text(),
                row["detail"],
                row["key"],
            )


def _waiting(domain: Domain, store: Store, destination: str, subscription: str | None) -> Iterator[EventRow]:
    """Of the record sets of servers that answer."""
    for name in views.subscriptions_of(domain, destination, subscription, store):
        snapshot = domain.log(destination).snapshot
        for member in snapshot.destination.member_ids:
            app_id = events_id(snapshot.table_id, name, member)
            yield from _rows(destination, name, member, app_id, _events_of(store, snapshot, name, member))


def _events_of(store: Store, snapshot: Snapshot, subscription: str, member: int) -> tuple[LoggedEvent, ...]:
    try:
        return state_of(store, snapshot, subscription, member).life.waiting
    except RecordCorruptError:
        raise
    except StoreError:
        if record_server(snapshot.destination, subscription, member) == HOME:
            raise
        return ()


def _rows(
    destination: str, subscription: str, member: int, app_id: str, found: Iterable[LoggedEvent]
) -> Iterator[EventRow]:
    for event in found:
        yield EventRow(
            destination,
            subscription,
            member,
            event.event.value,
            views.moment(event.at_ms or now_ms()),
            event.consumer,
            event.claim,
            event.picks.count,
            event.picks.first,
            event.picks.last,
            event.picks.text(),
            event.detail,
            f"{app_id}/{event.position}",
        )
