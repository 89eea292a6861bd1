"""What administration does to a domain, without a word of printing: purge, release, drop, rounds (C13, C14, C16)."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from spark_jms.admin.records import OpenRecords, opened_records
from spark_jms.claims import views
from spark_jms.claims.acknowledgement_table import AcknowledgementTable, position_id
from spark_jms.claims.housekeeper import Housekeeper
from spark_jms.claims.record_sets import read_state
from spark_jms.core.claim import Claim
from spark_jms.core.destination import QUEUE_SUBSCRIPTION, record_name
from spark_jms.core.ranges import Ranges
from spark_jms.core.record_set import RecordSet
from spark_jms.errors import InvalidDestinationError, JmsqError
from spark_jms.log import subscriptions
from spark_jms.log.domain import Domain
from spark_jms.log.purge import purge
from spark_jms.log.report import HousekeepingReport
from spark_jms.log.storage import now_ms
from spark_jms.store import Store

PURGER = "jmsq purge"  # the consumer in the acknowledgement table
_MAX_PURGE_COMMITS = 10_000


# -- purge ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Purged:
    """`claimed` messages were left to the consumers that have them."""

    dropped: int
    claimed: int


def backlog(domain: Domain, store: Store, destination: str, subscription: str | None, members: Iterable[int]) -> int:
    wanted = set(members)
    rows = views.subscriptions(domain, store, destination, subscription)
    return sum(row.backlog - row.claimed for row in rows if row.member in wanted)


def drop_backlog(
    domain: Domain, store: Store, destination: str, subscription: str | None, members: Iterable[int], wait_s: float
) -> Purged:
    """All sent until now that is not in a consumer's hands counts as done, with rows in the acknowledgement table."""
    chosen = list(members)
    dropped = claimed = 0
    for name in views.subscriptions_of(domain, destination, subscription):
        names = {record_name(destination, name, member): member for member in chosen}
        with opened_records(store, list(names), wait_s, "purge") as records:
            snapshot = domain.log(destination).refresh()
            states = {}
            for record, member in names.items():
                state = records.states[record].start_at(snapshot.destination.start_floor(name, member))
                free = state.available(1, snapshot.last_sequence(member))
                claimed += state.claimed.count
                dropped += free.count
                states[record] = _finished(state, free, records.handles[record].epoch) if free else state
            records.change(states)
            _write_outbox(domain, destination, name, names, records)
    return Purged(dropped, claimed)


def _finished(state: RecordSet, picks: Ranges, epoch: int) -> RecordSet:
    """Claimed and acknowledged in one step by a consumer that leaves no trace but its acknowledgement."""
    claim, now = secrets.token_hex(8), now_ms()
    taken = state.attach(PURGER, claim).claim(Claim(claim, PURGER, claim, picks, now, replayable=False))
    done = taken.acknowledge(PURGER, claim, claim, epoch, now)
    return replace(done, consumers=state.consumers)


def _write_outbox(
    domain: Domain, destination: str, subscription: str, names: dict[str, int], records: OpenRecords
) -> None:
    waiting = {member: records.states[name].outbox for name, member in names.items() if records.states[name].outbox}
    if waiting:
        written = AcknowledgementTable(domain.acknowledgements(destination), subscription).write(waiting)
        records.change(
            {
                name: records.states[name].delivered_to_table(written[member])
                for name, member in names.items()
                if member in written
            }
        )


def purge_files(domain: Domain, store: Store, destination: str) -> HousekeepingReport:
    """Take the files out of the table that everybody has finished; safe beside other housekeeping."""
    housekeeper = Housekeeper(domain, store, destination)
    report = HousekeepingReport()
    try:
        for _ in range(_MAX_PURGE_COMMITS):
            before = report.purged_files
            purge(domain.log(destination), housekeeper.is_done, report)
            if report.purged_files == before:
                break
    finally:
        housekeeper.close()
    return report


# -- claims -----------------------------------------------------------------------------------------------------------
def release_claim(
    domain: Domain, store: Store, destinations: Sequence[str], claim: str, wait_s: float
) -> list[views.ClaimRow]:
    """Revoke it on every member it has messages of, in one write; what was revoked."""
    rows = [row for name in destinations for row in views.claims(domain, store, name) if row.claim == claim]
    names = {record_name(row.destination, row.subscription, row.member): row for row in rows}
    if rows:
        with opened_records(store, list(names), wait_s, "claims --release") as records:
            there = [name for name in names if claim in records.states[name].claims]
            rows = [replace(names[name], messages=records.states[name].claims[claim].picks.count) for name in there]
            records.change({name: records.states[name].release(claim, delivered=True) for name in there})
    if not rows:
        raise JmsqError(
            f"there is no open claim {claim!r} (`jmsq claims` lists them): it was acknowledged or released already"
        )
    return rows


# -- subscriptions ----------------------------------------------------------------------------------------------------
def drop_subscription(domain: Domain, store: Store, topic: str, name: str, wait_s: float) -> int:
    """Forget a durable subscription and its positions; how many messages it still had to get. Refused while in use."""
    declared = domain.log(topic).refresh().destination
    if not declared.is_topic:
        raise InvalidDestinationError(
            f"{topic} is a {declared.kind}: only a topic has subscriptions to drop; see `jmsq purge {topic}`"
        )
    rows = views.subscriptions(domain, store, topic, views.subscriptions_of(domain, topic, name)[0])
    live = [row for row in views.claims(domain, store, topic, name) if row.live]
    holders = sorted({row.holder for row in rows if row.holder} | {row.consumer for row in live})
    if holders:
        raise JmsqError(
            f"subscription {name} of {topic} is in use by {', '.join(holders)}: stop that first; nothing was dropped"
        )
    with opened_records(
        store, [record_name(topic, name, row.member) for row in rows], wait_s, "subscriptions --drop"
    ) as records:
        subscriptions.drop_subscription(domain.log(topic), name)
        records.clear()  # made again under the same name, it starts where it is told to
    return sum(row.backlog for row in rows)


# -- acknowledgements -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class AcknowledgementState:
    """Acknowledgements (`rows`) and what they name; `waiting` of them are in the store and not yet in the table."""

    subscription: str
    member: int
    rows: int
    messages: int
    waiting: int
    last_consumer: str | None
    last_acknowledged: datetime | None


def acknowledgement_states(
    domain: Domain, store: Store, destination: str, rows: Sequence[views.AcknowledgementRow]
) -> list[AcknowledgementState]:
    """Of every subscription and member; `rows` as views.acknowledgements gives them, oldest first."""
    declared = domain.log(destination).snapshot.destination
    there = {(row.subscription, row.member) for row in rows}
    keys = there | {(name, member) for name in declared.subscription_names() for member in range(declared.members)}
    out = []
    for name, member in sorted(keys):
        own = [row for row in rows if (row.subscription, row.member) == (name, member)]
        state = read_state(store, record_name(destination, name or QUEUE_SUBSCRIPTION, member))
        position = domain.acknowledgements(destination).snapshot.transactions.get(position_id(name, member), 0)
        last = own[-1] if own else None
        out.append(
            AcknowledgementState(
                name,
                member,
                len(own),
                sum(row.messages for row in own),
                sum(a.position > position for a in state.outbox),
                last.consumer if last else None,
                last.acknowledged if last else None,
            )
        )
    return out


# -- housekeeping -----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Round:
    """What one round did to a destination; `busy`: somebody else does it there."""

    destination: str
    busy: bool
    purged_messages: int = 0
    purged_files: int = 0
    compacted_files: int = 0
    checkpoints: int = 0
    deleted_files: int = 0

    @property
    def did_something(self) -> bool:
        return bool(self.purged_files or self.compacted_files or self.checkpoints or self.deleted_files)

    def as_row(self) -> tuple[object, ...]:
        return (
            self.destination,
            self.purged_messages,
            self.purged_files,
            self.compacted_files,
            self.checkpoints,
            self.deleted_files,
            "another process does it" if self.busy else "done",
        )


class Rounds:
    """Housekeeping of several destinations in turn; `clean_up` does the clean-up in every round, not once a minute."""

    def __init__(self, domain: Domain, store: Store, *, clean_up: bool) -> None:
        self._domain, self._store, self._clean_up = domain, store, clean_up
        self._housekeepers: dict[str, Housekeeper] = {}

    def run(self, destinations: Sequence[str]) -> list[Round]:
        return [self._run(name) for name in destinations]

    def _run(self, name: str) -> Round:
        if name not in self._housekeepers:
            made = self._housekeepers[name] = Housekeeper(self._domain, self._store, name)
            if self._clean_up:
                made.rounds.CLEAN_UP_EVERY_S = 0.0
        housekeeper = self._housekeepers[name]
        before = replace(housekeeper.rounds.total)
        if not housekeeper.run():
            return Round(name, busy=True)
        after = housekeeper.rounds.total
        return Round(
            name,
            False,
            after.purged_messages - before.purged_messages,
            after.purged_files - before.purged_files,
            after.compacted_files - before.compacted_files,
            after.checkpoints - before.checkpoints,
            after.deleted_files - before.deleted_files,
        )

    def close(self) -> None:
        for housekeeper in self._housekeepers.values():
            housekeeper.close()
