"""Backlog, claims, files and rates of a destination, and the high marks that `jmsq services` keeps.

The high marks are of destinations, members, subscriptions and servers, with the bytes received, by the rule of
core/limits/usage_history.py. They are in one file, ROOT/_jmsq/high-marks, which the services and an administrator's reset replace
as a whole; of two processes that write at once the later one counts, and what the other saw is seen again by the next look. A
damaged file is like none: the marks begin again.

Features: C13, C14, T5, T7, T17 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from spark_jms.admin.claims import explain
from spark_jms.admin.destinations import PauseRow, pause_rows
from spark_jms.claims.batches.units_of_order import HeldBack
from spark_jms.claims.records.members import session_label
from spark_jms.claims.upkeep import views
from spark_jms.claims.upkeep.housekeeping import published_failures
from spark_jms.claims.upkeep.views import SubscriptionRow, moment
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.routing import DestinationAddress
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.limits.flow_control import UNARMED, thresholds_of
from spark_jms.core.limits.usage_history import (
    NOTHING,
    DestinationLook,
    DestinationMarks,
    DomainMarks,
    HeldMessages,
    ReceivedBytes,
)
from spark_jms.core.messages.paging import header_estimate_bytes
from spark_jms.core.selector import Selector
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.files import DataFile
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import Storage, now_ms
from spark_jms.log.upkeep.health import BackgroundFailure
from spark_jms.store import Store

log = logging.getLogger("spark_jms")
HIGH_MARKS = "_jmsq/high-marks"


@dataclass(frozen=True)
class MemberStatistics:
    """`stored_messages` counts messages in the table, finished or not; `backlog` unfinished ones, summed over subscriptions.
    Of the backlog, `pending` ones are claimed, wait for a redelivery, or are refused for good; `current` are the others.
    `server` has the member's positions."""

    member: int
    last_sequence: int
    stored_messages: int
    files: int
    bytes: int
    backlog: int
    claimed: int
    current: int = 0
    pending: int = 0
    server: str = HOME
    consumers: int = 0  # live ones that take messages of the member


@dataclass(frozen=True)
class Rates:
    """Messages a second since the round before; `finished` counts every subscription's. `backlog_high` and `pending_high` are the
    most that any round has seen since the first."""

    sent_per_s: float
    finished_per_s: float
    backlog_high: int = 0
    pending_high: int = 0


@dataclass(frozen=True)
class DestinationStatistics:
    """A destination at one moment: `stored_messages`, `files` and `bytes` of its table, whose version is `version`; `sent` since
    it was created; `backlog` and `claimed` as of its members, summed. `kind` as in the module file."""

    destination: str
    kind: str
    version: int
    versions_since_checkpoint: int
    files: int
    bytes: int
    stored_messages: int
    sent: int
    backlog: int
    claimed: int
    members: list[MemberStatistics]
    subscriptions: list[SubscriptionRow]
    health: str = "ok"  # "failing" while `failures` is not empty
    failures: tuple[BackgroundFailure, ...] = ()  # of housekeeping, as its last owner published them
    transfers: tuple[views.TransferRow, ...] = ()  # open ones
    rates: Rates | None = None
    paused: tuple[PauseRow, ...] = ()
    current: int = 0  # as of a member
    pending: int = 0
    expired: int = 0  # messages, counted for each subscription that has not had them
    header_estimate_bytes: int = 0  # the texts' rule of thumb; of a topic at most
    oldest: datetime | None = None  # when the oldest unfinished message was sent, or earlier: its file's first message
    exceeds_threshold: bool | None = None  # its senders slow down by its own thresholds; None: it has none
    refusals: tuple[views.RefusalRow, ...] = ()  # messages that an error destination refuses for good
    held_back: tuple[HeldBack, ...] = ()  # of a consumer with the selector that was asked for
    consumers: int = 0  # live ones, those without members too; of one member, its own

    @property
    def unserviced(self) -> list[SubscriptionRow]:
        """Where messages wait that no live consumer takes."""
        return [row for row in self.subscriptions if row.is_unserviced]


@dataclass(frozen=True)
class HighMarkRow:
    """The most of a destination, of one of its members or subscriptions, or of a server, that any look has seen since `since`.
    `bytes` are those of the files that have the messages; `received_bytes` None: they are counted by member and destination."""

    server: str | None
    destination: str | None
    member: int | None
    subscription: str | None
    since: datetime
    messages: int
    pending: int
    bytes: int
    received_bytes: int | None


def collect(domain: Domain, store: Store, destination: str, selector: Selector | None = None) -> DestinationStatistics:
    """Of a destination, or of its member on a server (`server@destination`). Read-only. The backlog of a topic is the sum over
    its subscriptions. With a `selector` it reads headers, to tell what units of order keep from a consumer that has it."""
    address = DestinationAddress.parse(destination)
    destination = address.destination
    log = domain.log(destination)
    rows = views.subscriptions(domain, store, destination)
    snapshot = log.refresh()
    declared = snapshot.destination
    chosen = address.members(declared) or declared.member_ids
    rows = [row for row in rows if row.member in chosen]
    members = []
    for member in chosen:
        files, own = snapshot.member_files(member).files, [row for row in rows if row.member == member]
        backlog = sum(row.backlog for row in own)
        pending = sum(row.pending for row in own)
        members.append(
            MemberStatistics(
                member,
                snapshot.last_sequence(member),
                sum(f.rows for f in files),
                len(files),
                sum(f.bytes for f in files),
                backlog,
                sum(row.claimed for row in own),
                max(backlog - pending, 0),
                pending,
                declared.server_of(member),
                sum(len(row.consumers) for row in own),
            )
        )
    version, since = snapshot.version, log.versions_since_checkpoint()
    failures = published_failures(domain, store, destination)
    return DestinationStatistics(
        str(address),
        declared.kind,
        version,
        since,
        sum(m.files for m in members),
        sum(m.bytes for m in members),
        sum(m.stored_messages for m in members),
        sum(m.last_sequence for m in members),
        sum(m.backlog for m in members),
        sum(m.claimed for m in members),
        members,
        rows,
        "failing" if failures else "ok",
        failures,
        tuple(row for row in views.transfers(domain, store, destination) if row.member in chosen),
        paused=tuple(row for row in pause_rows(declared) if row.member is None or row.member in chosen),
        current=sum(m.current for m in members),
        pending=sum(m.pending for m in members),
        expired=sum(row.expired for row in rows),
        header_estimate_bytes=_header_estimate(declared, rows),
        oldest=_oldest(snapshot, rows),
        exceeds_threshold=_exceeds_threshold(domain, declared, destination),
        refusals=_refusals(domain, store, destination, rows),
        held_back=_held_back(domain, store, destination, selector, chosen),
        consumers=_consumers(store, destination, rows)
        if address.server is None
        else max(member.consumers for member in members),
    )


def with_rates(
    now: DestinationStatistics, before: DestinationStatistics | None, seconds: float
) -> DestinationStatistics:
    if before is None or seconds <= 0:
        return now
    done = [sum(row.last_sequence - row.backlog for row in s.subscriptions) for s in (now, before)]
    highs = before.rates or Rates(0, 0, before.backlog, before.pending)
    return replace(
        now,
        rates=Rates(
            (now.sent - before.sent) / seconds,
            max(done[0] - done[1], 0) / seconds,
            max(highs.backlog_high, now.backlog),
            max(highs.pending_high, now.pending),
        ),
    )


def _consumers(store: Store, destination: str, rows: list[SubscriptionRow]) -> int:
    """A consumer of several servers has a session on each."""
    begins = tuple({session_label(destination, row.subscription, "") for row in rows})
    labels = (session.label for session in store.sessions().values())
    return len({label.partition(", ")[0] for label in labels if label.startswith(begins)})


def _held_back(
    domain: Domain, store: Store, destination: str, selector: Selector | None, members: Collection[int]
) -> tuple[HeldBack, ...]:
    if selector is None:
        return ()
    found = explain(domain, store, destination, selector, None).held_back
    return tuple(one for one in found if one.member in members)


def _refusals(
    domain: Domain, store: Store, destination: str, rows: list[SubscriptionRow]
) -> tuple[views.RefusalRow, ...]:
    refusing = {(row.subscription, row.member) for row in rows if row.refused}
    found = views.refusals(domain, store, destination) if refusing else ()
    return tuple(row for row in found if (row.subscription, row.member) in refusing)


def _exceeds_threshold(domain: Domain, declared: Destination, name: str) -> bool | None:
    thresholds = thresholds_of(declared)
    if not thresholds:
        return None
    members = domain.usages_of_members(name).values()
    return any(UNARMED.after(thresholds, used.messages, used.bytes) for used in members)


def _header_estimate(declared: Destination, rows: list[SubscriptionRow]) -> int:
    """A message of a topic that several subscriptions have not finished counts once, as far as their floors and backlogs tell."""
    messages = 0
    for member in {row.member for row in rows}:
        waiting = [row for row in rows if row.member == member and row.backlog]
        behind = max((row.last_sequence - row.floor for row in waiting), default=0)
        messages += min(sum(row.backlog for row in waiting), behind)
    return header_estimate_bytes([row.backlog for row in rows], messages, is_topic=declared.is_topic)


def _oldest(snapshot: Snapshot, rows: list[SubscriptionRow]) -> datetime | None:
    """From the files' statistics alone: reads no data."""
    waiting = (row for row in rows if row.backlog)
    files = (snapshot.member_files(row.member).overlapping(row.floor + 1, row.last_sequence)[:1] for row in waiting)
    sent_ms = [file.statistics["minValues"].get("JMSTimestamp") for found in files for file in found]
    return min((views.moment(ms) for ms in sent_ms if ms is not None), default=None)


# -- high marks --------------------------------------------------------------------------------------------------------


def note_looks(domain: Domain, found: Mapping[str, DestinationStatistics], now: int | None = None) -> None:
    """Raise the marks of these destinations; and of servers, when all destinations were looked at. Those with an away server are
    left out: what is finished there is not known."""
    everything = domain.destinations()
    whole = set(found) >= set(everything)
    seen = {name: one for name, one in found.items() if not any(row.away for row in one.subscriptions)}
    snapshots = {name: domain.log(name).snapshot for name in seen}

    def raised(marks: DomainMarks) -> DomainMarks:
        looks = {
            name: _look(snapshots[name], one, _known(marks, name, snapshots[name].table_id))
            for name, one in seen.items()
        }
        servers = _servers(looks, snapshots) if whole and len(seen) == len(found) else {}
        after = marks.after(looks, servers, now_ms() if now is None else now)
        return after.only(everything, [HOME, *domain.servers.names()])

    HighMarksFile(domain.storage).change(raised)


def high_marks(domain: Domain, destinations: Collection[str] | None = None) -> list[HighMarkRow]:
    """Of these destinations; None: of all, and of servers. [] until `jmsq services` has looked."""
    marks = HighMarksFile(domain.storage).read()
    rows = []
    for name, one in marks.destinations.items():
        if destinations is None or name in destinations:
            rows += _rows(name, one)
    if destinations is None:
        rows += [
            HighMarkRow(server, None, None, None, moment(one.since_ms), *_counts(one.high), None)
            for server, one in marks.servers.items()
        ]
    return rows


def reset_high_marks(domain: Domain, destinations: Collection[str] | None = None) -> None:
    """Those of these destinations, or all of them with those of servers, begin again with the next look."""
    names = domain.destinations() if destinations is None else destinations
    servers = [HOME, *domain.servers.names()] if destinations is None else []
    HighMarksFile(domain.storage).change(lambda marks: marks.reset(names, servers))


class HighMarksFile:
    """The file of a domain's high marks. Thread-safe: every call reads or writes the storage."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def read(self) -> DomainMarks:
        return self._read() or DomainMarks()

    def change(self, change: Callable[[DomainMarks], DomainMarks]) -> DomainMarks:
        """Returns the marks afterwards. Writes only what differs, and leaves the file of a later version alone."""
        before = self._read()
        if before is None:
            return DomainMarks()
        after = change(before)
        if after != before:
            self._storage.put(HIGH_MARKS, json.dumps(after.to_json()).encode())
        return after

    def _read(self) -> DomainMarks | None:
        """None: a later version wrote them."""
        data = self._storage.get(HIGH_MARKS)
        if data is None:
            return DomainMarks()
        try:
            return DomainMarks.from_json(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s/%s is damaged, and the high marks begin again: %r", self._storage.uri, HIGH_MARKS, error)
            return DomainMarks()


def _known(marks: DomainMarks, name: str, table_id: str) -> DestinationMarks | None:
    known = marks.destinations.get(name)
    return known if known is not None and known.table_id == table_id else None


def _look(snapshot: Snapshot, found: DestinationStatistics, known: DestinationMarks | None) -> DestinationLook:
    members, subscriptions, arrived = dict[int, HeldMessages](), dict[str, HeldMessages](), dict[int, ReceivedBytes]()
    for member in found.members:
        rows = [row for row in found.subscriptions if row.member == member.member]
        lowest = min((row.floor for row in rows), default=member.last_sequence)
        size = _bytes_behind(snapshot, member.member, lowest, member.last_sequence) if member.backlog else 0
        members[member.member] = HeldMessages(member.backlog, member.pending, size)
        before = known.received.get(member.member) if known else None
        after = member.last_sequence if before is None else before.last
        came = _bytes_behind(snapshot, member.member, after, member.last_sequence, whole_files=False)
        arrived[member.member] = ReceivedBytes(member.last_sequence, came)
        for row in (row for row in rows if row.durable):
            own = _bytes_behind(snapshot, member.member, row.floor, row.last_sequence) if row.backlog else 0
            held = HeldMessages(row.backlog, row.pending, own)
            subscriptions[row.subscription] = subscriptions.get(row.subscription, NOTHING) + held
    return DestinationLook(snapshot.table_id, sum(members.values(), NOTHING), members, subscriptions, arrived)


def _bytes_behind(snapshot: Snapshot, member: int, after: int, last: int, *, whole_files: bool = True) -> int:
    """Of the files with messages behind `after`; or of their share of these files."""
    files: list[DataFile] = snapshot.member_files(member).overlapping(after + 1, last) if after < last else []
    if whole_files:
        return sum(file.bytes for file in files)
    shares = (file.bytes * (min(file.last, last) - max(file.first, after + 1) + 1) / file.rows for file in files)
    return round(sum(shares))


def _servers(looks: Mapping[str, DestinationLook], snapshots: Mapping[str, Snapshot]) -> dict[str, HeldMessages]:
    held = dict[str, HeldMessages]()
    for name, look in looks.items():
        for member, one in look.members.items():
            server = snapshots[name].destination.server_of(member)
            held[server] = held.get(server, NOTHING) + one
    return held


def _rows(name: str, one: DestinationMarks) -> list[HighMarkRow]:
    since = moment(one.since_ms)
    members = [
        HighMarkRow(None, name, member, None, since, *_counts(held), one.received[member].bytes)
        for member, held in one.members.items()
    ]
    subscriptions = [
        HighMarkRow(None, name, None, subscription, since, *_counts(held), None)
        for subscription, held in one.subscriptions.items()
    ]
    return [
        HighMarkRow(None, name, None, None, since, *_counts(one.high), one.received_bytes),
        *members,
        *subscriptions,
    ]


def _counts(held: HeldMessages) -> tuple[int, int, int]:
    return held.messages, held.pending, held.bytes
