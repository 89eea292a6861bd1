"""High marks of destinations, members, subscriptions and servers, and bytes received, kept by `jmsq services`.

Features: T17 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from spark_jms.admin.statistics import DestinationStatistics
from spark_jms.claims.views import moment
from spark_jms.core.high_marks import (
    NOTHING,
    DestinationLook,
    DestinationMarks,
    DomainMarks,
    HeldMessages,
    ReceivedBytes,
)
from spark_jms.core.placement import HOME
from spark_jms.log.data_file import DataFile
from spark_jms.log.domain import Domain
from spark_jms.log.high_marks import HighMarksFile
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import now_ms


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
