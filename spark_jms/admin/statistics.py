"""Backlog, claims, files and rates of a destination.

Features: C13, C14, T5, T7 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime

from spark_jms.admin.explain import explain
from spark_jms.admin.pause import PauseRow, pause_rows
from spark_jms.claims import views
from spark_jms.claims.housekeeper import published_failures
from spark_jms.claims.views import SubscriptionRow
from spark_jms.core.address import DestinationAddress
from spark_jms.core.destination import Destination
from spark_jms.core.health import BackgroundFailure
from spark_jms.core.held_back import HeldBack
from spark_jms.core.message_buffer import header_estimate_bytes
from spark_jms.core.placement import HOME
from spark_jms.core.selector import Selector
from spark_jms.core.thresholds import UNARMED, thresholds_of
from spark_jms.log.domain import Domain
from spark_jms.log.snapshot import Snapshot
from spark_jms.store import Store


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
    )


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
    used = domain.usage_of(name)
    return bool(UNARMED.after(thresholds, used.messages, used.bytes))


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
