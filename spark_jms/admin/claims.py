"""Revoke a claim, and look at consumers: who lives, what they acknowledged, what their selectors read.

Features: C7, C14, C16, D6 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from spark_jms.claims.batches.units_of_order import HeldBack, held_back
from spark_jms.claims.messages.scan import Condition, Question, Scan, refuted, scan
from spark_jms.claims.records.life_cycle import position_id
from spark_jms.claims.records.members import session_label
from spark_jms.claims.servers.stores import label_of, opened_records, record_of, state_of
from spark_jms.claims.upkeep import views
from spark_jms.core.destinations.destination import QUEUE_SUBSCRIPTION
from spark_jms.core.destinations.subscriptions import missed
from spark_jms.core.messages.columns import STATISTICS_COLUMNS
from spark_jms.core.messages.properties import PromotedColumns
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.ordering.blocked_units import BlockedUnits
from spark_jms.core.selector import Selector
from spark_jms.errors import JmsqError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms
from spark_jms.store import Store


@dataclass(frozen=True)
class ConsumerRow:
    """A query or client that lives. `consumer` is its id, as in its claims; of a query that of its checkpoint. `process` says
    where a query runs, "" of a client. It takes messages of `members`, and has claimed `claimed` ones that it has not finished."""

    destination: str
    subscription: str
    consumer: str
    process: str
    members: tuple[int, ...]
    claimed: int


@dataclass(frozen=True)
class AcknowledgementState:
    """The state of a destination's acknowledgement table. Counts of acknowledgements (`rows`) and of the messages they name; `waiting`
    rows are still in the outbox."""

    subscription: str
    member: int
    rows: int
    messages: int
    waiting: int
    last_consumer: str | None
    last_acknowledged: datetime | None


@dataclass(frozen=True)
class MemberReading:
    """What is read of the unfinished messages of one member: `skipped` are in files whose statistics prove that none matches; the
    columns of the `parsed` ones were read; `matching` are those that the selector takes."""

    member: int
    files: int
    messages: int
    skipped_files: int
    skipped: int
    parsed: int
    matching: int


@dataclass(frozen=True)
class PromotedReading:
    """How a promoted property is read of the messages that are not skipped: from its column, or from the map of properties,
    because their files lack the column or it is not complete."""

    by_column: int
    by_properties: int


@dataclass(frozen=True)
class SelectorPlan:
    """What a selector reads and what it skips: the plan that a consumer with it would make of the backlog now. `columns` are read of
    the files that are not skipped. `prunes`: the conditions that statistics can refute, with the messages that each has skipped;
    `parses`: the names that no statistics cover; `promoted`: those that are columns; `held_back`: of the matching messages, those
    that a consumer gets only after others have finished earlier ones of their units."""

    destination: str
    selector: str
    columns: tuple[str, ...]
    prunes: dict[str, int]
    parses: tuple[str, ...]
    promoted: dict[str, PromotedReading]
    members: tuple[MemberReading, ...]
    held_back: tuple[HeldBack, ...] = ()


def find_claim(domain: Domain, store: Store, destinations: Sequence[str], claim: str) -> list[views.ClaimRow]:
    """The parts of an open claim, one per member. Raises JmsqError when there is none."""
    rows = [row for name in destinations for row in views.claims(domain, store, name) if row.claim == claim]
    return _known(rows, claim)


def release_claim(domain: Domain, store: Store, rows: Sequence[views.ClaimRow], wait_s: float) -> list[views.ClaimRow]:
    """Revoke the claim that `find_claim` found on every member, in one write. Returns the revoked parts."""
    claim = rows[0].claim
    names = {record_of(domain.log(row.destination).snapshot, row.subscription, row.member): row for row in rows}
    labels = {record: label_of(row.destination, row.subscription, row.member) for record, row in names.items()}
    logged = any(domain.log(row.destination).snapshot.destination.message_logging_enabled for row in rows)
    with opened_records(store, labels, wait_s, "claims --release", logged=logged) as records:
        there = [name for name in names if claim in records.states[name].claims]
        revoked = [replace(names[name], messages=records.states[name].claims[claim].picks.count) for name in there]
        records.change({name: records.states[name].revoke(claim) for name in there})
    return _known(revoked, claim)


def _known(rows: list[views.ClaimRow], claim: str) -> list[views.ClaimRow]:
    if not rows:
        raise JmsqError(
            f"there is no open claim {claim!r} (`jmsq claims` lists them): it was acknowledged or released already"
        )
    return rows


def consumers(domain: Domain, store: Store, destination: str) -> list[ConsumerRow]:
    """The live consumers of a destination, by subscription and consumer: who they are, and the members that they take messages of;
    one without messages is there too. Only reads. Raises InvalidDestinationError."""
    rows = views.subscriptions(domain, store, destination)
    claims = views.claims(domain, store, destination)
    labels = sorted(session.label for session in store.sessions().values())
    found = []
    for name in dict.fromkeys(row.subscription for row in rows):
        begins = session_label(destination, name, "")
        processes: dict[str, str] = {}  # a consumer of several servers has a session on each
        for label in (label for label in labels if label.startswith(begins)):
            consumer, _, process = label.removeprefix(begins).partition(", ")
            processes.setdefault(consumer, process)
        for consumer, process in processes.items():
            members = tuple(row.member for row in rows if row.subscription == name and consumer in row.consumers)
            claimed = sum(
                row.messages for row in claims if row.subscription == name and row.consumer == consumer and row.live
            )
            found.append(ConsumerRow(destination, name, consumer, process, members, claimed))
    return found


def acknowledgement_states(
    domain: Domain, store: Store, destination: str, rows: Sequence[views.AcknowledgementRow]
) -> list[AcknowledgementState]:
    """One state per subscription and member. `rows` are those of views.acknowledgements, oldest first."""
    snapshot = domain.log(destination).snapshot
    declared = snapshot.destination
    there = {(row.subscription, row.member) for row in rows}
    keys = there | {(name, member) for name in declared.subscription_names() for member in declared.member_ids}
    out = []
    for name, member in sorted(keys):
        own = [row for row in rows if (row.subscription, row.member) == (name, member)]
        state = state_of(store, snapshot, name or QUEUE_SUBSCRIPTION, member)
        app_id = position_id(snapshot.table_id, name, member)
        position = domain.acknowledgements(destination).snapshot.transactions.get(app_id, 0)
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


# -- what a selector reads ---------------------------------------------------------------------------------------------


def explain(
    domain: Domain, store: Store, destination: str, selector: Selector, subscription: str | None
) -> SelectorPlan:
    """Reads the columns that a consumer would read, once; of a queue with units of order twice. Of a topic without `subscription`, the
    messages that are still in the table. Delay and expiration, which a consumer judges beside the selector, are left out, and units of
    order are told apart (`held_back`); what a subscription of a replicated topic has missed does not match. Raises
    InvalidDestinationError."""
    snapshot = domain.log(destination).refresh()
    states = views.states(domain, store, destination, subscription)
    declared = PromotedColumns.of(snapshot.destination.promoted_properties).names
    columns = frozenset(declared).union(*(file.promoted for held in snapshot.members.values() for file in held.files))
    promoted = columns & selector.identifiers
    covered = {*STATISTICS_COLUMNS, *promoted}
    conditions = [str(Condition(*each)) for each in selector.prunable() if each[0] in covered]
    read = dict.fromkeys(selector.columns_with(promoted))
    skipped_by, by_column, by_properties = Counter[str](), Counter[str](), Counter[str]()
    members, behind = [], list[HeldBack]()
    for member, held in sorted(snapshot.members.items()):
        backlog = Ranges.of(*((file.first, file.last) for file in held.files))
        if member in states:
            backlog = backlog & states[member].unfinished(1, snapshot.last_sequence(member))
        files = [file for file in held.files if backlog.between(file.first, file.last)]
        skipped_files = skipped = 0
        for file in files:
            why, count = refuted(file, selector), backlog.between(file.first, file.last).count
            if why is None:
                read |= dict.fromkeys(selector.columns_with(file.promoted))
                by_column.update(dict.fromkeys(promoted & file.promoted, count))
                by_properties.update(dict.fromkeys(promoted - file.promoted, count))
            else:
                skipped_by[str(why)] += count
                skipped_files, skipped = skipped_files + 1, skipped + count
        question = Question(selector, missed=_missed(snapshot, subscription, member))
        found = (
            scan(domain.log(destination), member, backlog, question, table_id=snapshot.table_id) if backlog else Scan()
        )
        if found.picks and found.refused and not snapshot.destination.is_topic:
            behind += _held_back(domain.log(destination), snapshot, member, backlog, selector)
        members.append(
            MemberReading(member, len(files), backlog.count, skipped_files, skipped, found.read, found.picks.count)
        )
    return SelectorPlan(
        destination,
        selector.text,
        tuple(read),
        {condition: skipped_by[condition] for condition in conditions},
        tuple(sorted(selector.identifiers - covered)),
        {name: PromotedReading(by_column[name], by_properties[name]) for name in sorted(promoted)},
        tuple(members),
        tuple(behind),
    )


def _held_back(log: DeltaLog, snapshot: Snapshot, member: int, backlog: Ranges, selector: Selector) -> list[HeldBack]:
    if not snapshot.member_files(member).has_groups:
        return []
    question = Question(selector, BlockedUnits(), now_ms())  # what has expired blocks nothing
    found = scan(log, member, backlog, question, table_id=snapshot.table_id)
    return held_back(member, found.refused_units.first_of_units(), found.held_back)


def _missed(snapshot: Snapshot, subscription: str | None, member: int) -> Ranges:
    """What a subscription of a replicated topic skips: sent while its server was down."""
    if subscription is None:
        return EMPTY
    return missed(snapshot.destination, subscription, member, snapshot.last_sequence(member))
