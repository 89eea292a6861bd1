"""Rows about a destination for people: claims, subscriptions, acknowledgements, transfers, refusals.

Only reads, but for `drop_subscription`, which drops what a row has shown.

Features: C10, C13, C14, C16, T4 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from typing import Any

import pyarrow.parquet as pq

from spark_jms.claims.records.life_cycle import AcknowledgementTable, flush_opened
from spark_jms.claims.servers.stores import (
    addressed,
    label_of,
    not_durable,
    open_stores,
    opened_records,
    prefix_of,
    record_of,
    state_of,
)
from spark_jms.claims.transactions.transfer import Transfers
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.destinations.subscriptions import is_durable, record_server, record_servers, recorded_on
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.records.batch import PROGRESS, QueryProgress
from spark_jms.core.records.endings import split_claim
from spark_jms.core.records.poison import Trial
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import Claim
from spark_jms.core.records.stored_form import consumer_record
from spark_jms.errors import IllegalStateException, InvalidDestinationError, JmsqError
from spark_jms.log.destinations import declarations
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.settings.destination import UNLIMITED
from spark_jms.store import RecordCorruptError, RecordInfo, Store, StoreError


@dataclass(frozen=True)
class ClaimRow:
    """The messages of one member that a consumer has received, or a query's batch has, and that are not finished: `messages` of them
    between the sequences `first` and `last`. `live`: its consumer lives; otherwise the claim is in doubt since `in_doubt_since`."""

    destination: str
    subscription: str
    member: int
    claim: str
    consumer: str
    session: str
    live: bool
    messages: int
    first: int
    last: int
    made: datetime
    in_doubt_since: datetime | None
    attempts: int = 1  # how often a query's batch was given to its sink
    deaths: int = 0  # of these, attempts that ended with the driver
    withheld: int = 0  # messages that the batch does not deliver: it is narrowed to a poison message
    ranges: str = ""  # "1-3, 7": its messages


@dataclass(frozen=True)
class SubscriptionRow:
    """What a subscription has not finished of one member, in messages: `backlog`, of which `claimed` are with consumers. It has
    finished all up to the sequence `floor`; the newest is `last_sequence`. `holder` has the record; `epoch`: of its session."""

    destination: str
    subscription: str
    member: int
    floor: int
    last_sequence: int
    backlog: int
    claimed: int
    holder: str | None
    epoch: int
    delayed: int  # messages whose redelivery waits
    expired: int = 0  # since the subscription, or the queue, was made
    subscription_messages_limit: int = UNLIMITED
    subscription_limit_deleted_count: int = 0  # messages that have made room for new ones
    durable: bool = True  # also a queue's
    away: bool = (
        False  # the server with its record set does not answer: then everything in the table counts as unfinished
    )
    refused: int = 0  # messages that cannot move to their error destination, which refuses them for good

    @property
    def is_held(self) -> bool:
        """A consumer, or an administrator's command, has its record set now."""
        return self.holder is not None and not self.away

    @property
    def pending(self) -> int:
        """Unfinished messages that a consumer does not get now: a consumer has them, they wait, or they are refused for good."""
        return self.claimed + self.delayed + self.refused

    @property
    def has_limit(self) -> bool:
        """Now, or it had one that has deleted messages."""
        return self.subscription_messages_limit != UNLIMITED or self.subscription_limit_deleted_count > 0


@dataclass(frozen=True)
class AcknowledgementRow:
    destination: str
    subscription: str
    member: int
    consumer: str
    claim: str
    epoch: int
    acknowledged: datetime
    messages: int
    first: int
    last: int
    ranges: str  # "1-3, 7": all of them


@dataclass(frozen=True)
class TransferRow:
    """An open transfer. `next` is its next step as the targets' logs stand, or why that cannot be told."""

    destination: str
    subscription: str
    member: int
    transfer: str
    targets: tuple[str, ...]
    messages: int
    reason: str
    made: datetime
    next: str


@dataclass(frozen=True)
class RefusalRow:
    """Messages that `target` refuses for good: `reason` says why, and `rule` which rule of it that is. `failure`: why they shall
    move there."""

    destination: str
    subscription: str
    member: int
    messages: int
    ranges: str  # "1-3, 7": all of them
    target: str
    failure: str
    rule: str
    reason: str
    since: datetime


# -- claims and subscriptions ------------------------------------------------------------------------------------------


def claims(domain: Domain, store: Store, destination: str, subscription: str | None = None) -> list[ClaimRow]:
    live = store.sessions()
    out = []
    for name in subscriptions_of(domain, destination, subscription, store):
        snapshot = domain.log(destination).snapshot
        for member in snapshot.destination.member_ids:
            state = _state_or_none(store, snapshot, name, member) or RecordSet()
            for c in state.claims.values():
                trial = _trial(store, snapshot, name, member, c)
                since = moment(c.in_doubt_since_ms) if c.in_doubt_since_ms else None
                out.append(
                    ClaimRow(
                        destination,
                        name,
                        member,
                        c.id,
                        c.consumer,
                        c.session,
                        c.session in live,
                        c.picks.count,
                        c.picks.first,
                        c.picks.last,
                        moment(c.made_ms),
                        since,
                        trial.attempts if trial else 1,
                        trial.deaths if trial else 0,
                        (trial.withheld.get(member, EMPTY) & c.picks).count if trial else 0,
                        str(c.picks),
                    )
                )
    return out


def _trial(store: Store, snapshot: Snapshot, subscription: str, member: int, claim: Claim) -> Trial | None:
    """What the claim's consumer knows of its batch, once that was replayed or has failed."""
    if not claim.replayable:
        return None
    own = consumer_record(snapshot.table_id, subscription, claim.consumer)
    record = addressed(record_server(snapshot.destination, subscription, member), own)
    trial = QueryProgress.from_bytes(store.peek(record).get(PROGRESS), record).trial
    return trial if trial and trial.claim == claim.id else None


def subscriptions(
    domain: Domain, store: Store, destination: str, subscription: str | None = None, *, server: str | None = None
) -> list[SubscriptionRow]:
    """A row for each subscription and member; with `server`, those whose record sets are there."""
    out = []
    snapshot = domain.log(destination).refresh()
    labels = {key: info.label for key, info in store.sessions().items()}
    for name in subscriptions_of(domain, destination, subscription, store):
        declared = snapshot.destination
        placed = declared.member_ids if server is None else recorded_on(declared, server, name)
        durable = declared.subscription_names()
        infos = _infos(store, snapshot, name) if placed else {}
        for member in placed:
            known = _state_or_none(store, snapshot, name, member)
            state = known or _unknown(snapshot, name, member)
            last, info = snapshot.last_sequence(member), infos.get(record_of(snapshot, name, member))
            away = f"(server {record_server(snapshot.destination, name, member)} is away)"
            holder = away if known is None else labels.get(info.holder, info.holder) if info and info.holder else None
            out.append(
                SubscriptionRow(
                    destination,
                    name,
                    member,
                    state.floor,
                    last,
                    (state.unfinished(1, last) - snapshot.lost_of(member)).count,
                    state.claimed.count,
                    holder,
                    info.epoch if info else 0,
                    state.waiting.count,
                    state.expired,
                    declared.messages_limit_override,
                    state.limit.dropped,
                    name in durable,
                    known is None,
                    state.refused.count,
                )
            )
    return out


def subscriptions_of(domain: Domain, destination: str, only: str | None, store: Store | None = None) -> list[str]:
    """All of them, or `only` that one; with a store also those that are not durable, while they live. Raises
    InvalidDestinationError when the destination does not have it."""
    declared = domain.log(destination).refresh().destination
    declared.refuse_subscription(only)
    names = declared.subscription_names()
    if store is not None:
        names += _not_durable(store, domain.log(destination).snapshot)
    if only is None:
        return names
    if only not in names:
        raise InvalidDestinationError(
            f"topic {destination} has no subscription {only!r} (it has: {', '.join(names) or 'none'})"
        )
    return [only]


def _not_durable(store: Store, snapshot: Snapshot) -> list[str]:
    return sorted(not_durable(store, snapshot.table_id)) if snapshot.destination.is_topic else []


def states(
    domain: Domain, store: Store, destination: str, subscription: str | None, members: Collection[int] | None = None
) -> dict[int, RecordSet]:
    """member -> state of the queue, or of the topic's subscription; {} for a topic without a named subscription. `members`
    None: all."""
    names = subscriptions_of(domain, destination, subscription, store)
    snapshot = domain.log(destination).snapshot
    if snapshot.destination.is_topic and subscription is None:
        return {}
    wanted = snapshot.destination.member_ids if members is None else members
    return {m: state_of(store, snapshot, names[0], m) for m in wanted}


def is_empty(domain: Domain, store: Store, destination: str, member: int) -> bool:
    """Every subscription has finished all messages of this member."""
    snapshot = domain.log(destination).refresh()
    last = snapshot.last_sequence(member)
    everything = Ranges.of((1, last))
    return all(
        state_of(store, snapshot, name, member).is_done(everything)
        for name in [*snapshot.destination.subscription_names(), *_not_durable(store, snapshot)]
    )


# -- acknowledgements, transfers, refusals -----------------------------------------------------------------------------


def acknowledgements(
    domain: Domain, store: Store, destination: str, subscription: str | None = None
) -> list[AcknowledgementRow]:
    """Rows of the acknowledgement table and of the outboxes that wait for it, oldest first."""
    table = domain.acknowledgements(destination)
    rows = _waiting(domain, store, destination, subscription)  # before the table: a row may move there meanwhile
    for member, files in sorted(table.refresh().members.items()):
        for file in files.files:
            with table.storage.open_input(file.path) as source:
                for row in pq.read_table(source).to_pylist():
                    if subscription in (None, row["subscription"]):
                        rows.add(
                            AcknowledgementRow(
                                destination,
                                row["subscription"],
                                member,
                                row["consumer"],
                                _claim(row["consumer"], row["claim"]),
                                row["epoch"],
                                moment(row["acknowledged_ms"]),
                                row["messages"],
                                row["first"],
                                row["last"],
                                Ranges.from_json(json.loads(row["ranges"])).text(),
                            )
                        )
    return sorted(rows, key=lambda row: row.acknowledged)


def _claim(consumer: str, stored: str) -> str:
    """The claim, or what stands in its place. The change feed has a transfer's target and the transaction too."""
    claim, detail = split_claim(consumer, stored)
    return claim or detail


def _waiting(domain: Domain, store: Store, destination: str, subscription: str | None) -> set[AcknowledgementRow]:
    rows = set()
    for name in subscriptions_of(domain, destination, subscription, store):
        snapshot = domain.log(destination).snapshot
        for member in snapshot.destination.member_ids:
            for a in (_state_or_none(store, snapshot, name, member) or RecordSet()).outbox:
                rows.add(
                    AcknowledgementRow(
                        destination,
                        name,
                        member,
                        a.consumer,
                        _claim(a.consumer, a.claim),
                        a.epoch,
                        moment(a.acknowledged_ms),
                        a.messages,
                        a.picks.first,
                        a.picks.last,
                        a.picks.text(),
                    )
                )
    return rows


def transfers(domain: Domain, store: Store, destination: str) -> list[TransferRow]:
    """The open transfers of a destination, oldest first."""
    looker, rows = Transfers(domain, domain.log(destination)), []
    snapshot = domain.log(destination).refresh()
    for name in [*snapshot.destination.subscription_names(), *_not_durable(store, snapshot)]:
        for member in snapshot.destination.member_ids:
            for intent in (_state_or_none(store, snapshot, name, member) or RecordSet()).intents.values():
                try:
                    look = looker.look(intent)
                    waits_for = looker.waits_for(intent, look)
                    step = f"waits: insertion into {waits_for} is paused" if waits_for else look.step.name.lower()
                except (JmsqError, OSError) as error:
                    step = f"unknown: {type(error).__name__}: {error}"
                rows.append(
                    TransferRow(
                        destination,
                        name,
                        member,
                        str(intent.ticket),
                        tuple(target.destination for target in intent.targets),
                        intent.picks.count,
                        intent.reason,
                        moment(intent.made_ms),
                        step,
                    )
                )
    return sorted(rows, key=lambda row: row.made)


def refusals(domain: Domain, store: Store, destination: str) -> list[RefusalRow]:
    """Of a destination, oldest first."""
    rows = []
    snapshot = domain.log(destination).refresh()
    for name in [*snapshot.destination.subscription_names(), *_not_durable(store, snapshot)]:
        for member in snapshot.destination.member_ids:
            state = _state_or_none(store, snapshot, name, member) or RecordSet()
            for one in state.refusals:
                if picks := one.picks & state.refused:
                    rows.append(
                        RefusalRow(
                            destination,
                            name,
                            member,
                            picks.count,
                            picks.text(),
                            one.target,
                            one.failure,
                            one.broken.rule,
                            one.broken.text,
                            moment(one.since_ms),
                        )
                    )
    return sorted(rows, key=lambda row: row.since)


# -- dropping a durable subscription -----------------------------------------------------------------------------------


def droppable_subscription(domain: Domain, store: Store, topic: str, name: str) -> list[SubscriptionRow]:
    """The members of a durable subscription. Raises InvalidDestinationError when there is none, and IllegalStateException while a
    consumer uses it."""
    declared = domain.log(topic).refresh().destination
    if not declared.is_topic:
        raise InvalidDestinationError(
            f"{topic} is a {declared.kind}: only a topic has subscriptions to drop; see `jmsq purge {topic}`"
        )
    if not is_durable(name):
        raise InvalidDestinationError(
            f"the subscription {name!r} of {topic} is not durable: it ends with its last consumer, and cannot be dropped"
        )
    rows = subscriptions(domain, store, topic, subscriptions_of(domain, topic, name)[0])
    live = [row for row in claims(domain, store, topic, name) if row.live]
    holders = sorted({row.holder for row in rows if row.holder} | {row.consumer for row in live})
    if holders:
        raise IllegalStateException(
            f"subscription {name} of {topic} is in use by {', '.join(holders)}: stop that first; nothing was dropped"
        )
    return rows


def drop_subscription(domain: Domain, store: Store, rows: Sequence[SubscriptionRow], wait_s: float) -> None:
    """Remove the durable subscription that `droppable_subscription` found, and its positions.

    The positions go first. If this is interrupted, the subscription still exists and starts over, so a repeated drop
    finishes; the other way round, a new subscription of this name would inherit the positions and miss messages."""
    topic, name = rows[0].destination, rows[0].subscription
    snapshot = domain.log(topic).refresh()
    with opened_records(
        store,
        {record_of(snapshot, name, row.member): label_of(topic, name, row.member) for row in rows},
        wait_s,
        "subscriptions --drop",
    ) as records:
        places = {record_of(snapshot, name, row.member): row.member for row in rows}
        newest = domain.log(topic).refresh()
        records.end(
            {record: newest.last_sequence(member) for record, member in places.items()},
            {record: newest.destination.start_floor(name, member) for record, member in places.items()},
        )
        flush_opened(AcknowledgementTable(domain.acknowledgements(topic), newest.table_id, name), records, places)
        declarations.drop_subscription(domain.log(topic), name)


# -- helpers -----------------------------------------------------------------------------------------------------------


@contextmanager
def opened_store(domain: Domain, limit_s: float | None = None) -> Iterator[Store]:
    store = open_stores(domain, limit_s)
    try:
        yield store
    finally:
        store.close()


def as_row(row: Any) -> tuple[Any, ...]:
    return tuple(getattr(row, field.name) for field in fields(row))


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, tz=timezone.utc)


def _state_or_none(store: Store, snapshot: Snapshot, subscription: str, member: int) -> RecordSet | None:
    """None when the server of the record set is away: the rows of other servers are still of use."""
    try:
        return state_of(store, snapshot, subscription, member)
    except RecordCorruptError:
        raise
    except StoreError:
        if record_server(snapshot.destination, subscription, member) == HOME:
            raise
        return None


def _unknown(snapshot: Snapshot, subscription: str, member: int) -> RecordSet:
    """While the server is away, everything in the table counts as unfinished."""
    files = snapshot.member_files(member).files
    before = files[0].first - 1 if files else snapshot.last_sequence(member)
    return RecordSet(max(before, snapshot.destination.start_floor(subscription, member)))


def _infos(store: Store, snapshot: Snapshot, subscription: str) -> dict[str, RecordInfo]:
    found: dict[str, RecordInfo] = {}
    for server in record_servers(snapshot.destination, subscription):
        try:
            found |= store.infos(prefix_of(snapshot, subscription, server))
        except StoreError:
            if server == HOME:
                raise
    return found
