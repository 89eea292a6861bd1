"""What a selector reads and what it skips: the plan that a consumer with it would make of the backlog now.

Features: C7, D6 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from spark_jms.claims import views
from spark_jms.claims.scan import Condition, Question, Scan, refuted, scan
from spark_jms.core.held_back import HeldBack, held_back
from spark_jms.core.message import STATISTICS_COLUMNS
from spark_jms.core.promoted_columns import PromotedColumns
from spark_jms.core.ranges import EMPTY, Ranges
from spark_jms.core.selector import Selector
from spark_jms.core.subscription_place import missed
from spark_jms.core.unit_order import BlockedUnits
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import now_ms
from spark_jms.store import Store


@dataclass(frozen=True)
class MemberReading:
    """Of the unfinished messages of one member: `skipped` are in files whose statistics prove that none matches; the columns
    of the `parsed` ones were read; `matching` are those that the selector takes."""

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
    """`columns` are read of the files that are not skipped. `prunes`: the conditions that statistics can refute, with the
    messages that each has skipped; `parses`: the names that no statistics cover; `promoted`: those that are columns; `held_back`:
    of the matching messages, those that a consumer gets only after others have finished earlier ones of their units."""

    destination: str
    selector: str
    columns: tuple[str, ...]
    prunes: dict[str, int]
    parses: tuple[str, ...]
    promoted: dict[str, PromotedReading]
    members: tuple[MemberReading, ...]
    held_back: tuple[HeldBack, ...] = ()


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
    if not any(file.has_groups for file in snapshot.member_files(member).files):
        return []
    question = Question(selector, BlockedUnits(), now_ms())  # what has expired blocks nothing
    found = scan(log, member, backlog, question, table_id=snapshot.table_id)
    return held_back(member, found.refused_units.first_of_units(), found.held_back)


def _missed(snapshot: Snapshot, subscription: str | None, member: int) -> Ranges:
    """What a subscription of a replicated topic skips: sent while its server was down."""
    if subscription is None:
        return EMPTY
    return missed(snapshot.destination, subscription, member, snapshot.last_sequence(member))
