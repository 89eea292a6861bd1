"""Pause and resume production, insertion and consumption of a destination or of its members.

Features: D6, T14 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime

from spark_jms.claims.views import moment
from spark_jms.core.destination import Destination
from spark_jms.core.pause import CONSUMPTION, INSERTION, OPERATIONS, PRODUCTION
from spark_jms.errors import InvalidDestinationError, OptionError
from spark_jms.log.domain import Domain
from spark_jms.log.pauses import PauseOrder, set_pauses

log = logging.getLogger("spark_jms")


@dataclass(frozen=True)
class PauseRow:
    """`operation` is production, insertion or consumption. `member` None: of the whole destination."""

    operation: str
    member: int | None
    since: datetime


@dataclass(frozen=True)
class Paused:
    """`pauses` are those that stand now, and `changed` says whether the call changed any."""

    destination: str
    changed: bool
    pauses: tuple[PauseRow, ...]


def pause_rows(declared: Destination) -> tuple[PauseRow, ...]:
    return tuple(PauseRow(p.operation, p.member, moment(p.since_ms)) for p in declared.pauses.all)


def pause(
    domain: Domain, destination: str, operations: Iterable[str] = OPERATIONS, members: Collection[int] | None = None
) -> Paused:
    """Pause these operations (production, insertion, consumption; all three by default) of the whole destination, or of
    some members. Repeatable: a pause that stands keeps its time. Raises OptionError, InvalidDestinationError: also for the
    consumption of a replicated topic's member, whose messages belong to the subscriptions on all servers."""
    return _set(domain, destination, _order(domain, destination, operations, members, resume=False))


def resume(
    domain: Domain, destination: str, operations: Iterable[str] = OPERATIONS, members: Collection[int] | None = None
) -> Paused:
    """Resume these operations of some members, or of the destination and all its members. A member stays paused while the
    destination is. Raises OptionError, InvalidDestinationError."""
    return _set(domain, destination, _order(domain, destination, operations, members, resume=True))


def _order(
    domain: Domain, destination: str, operations: Iterable[str], members: Collection[int] | None, *, resume: bool
) -> PauseOrder:
    wanted = tuple(operations)
    unknown = [operation for operation in wanted if operation not in OPERATIONS]
    if unknown or not wanted:
        raise OptionError(f"operations are {list(wanted)!r}, but must be some of {', '.join(OPERATIONS)}")
    declared = domain.log(destination).refresh().destination
    for member in members or ():
        declared.check_member(member)
    if members and not resume and CONSUMPTION in wanted and declared.is_replicated:
        raise InvalidDestinationError(
            f"{destination} is a replicated distributed topic: the messages of a member belong to the subscriptions on all servers, "
            f"so its consumption cannot be paused alone. Pause {PRODUCTION} or {INSERTION} of the member, or the whole topic; "
            "`jmsq server stop` stops the subscriptions on a server"
        )
    return PauseOrder(wanted, None if members is None else tuple(sorted(set(members))), resume)


def _set(domain: Domain, destination: str, order: PauseOrder) -> Paused:
    table = domain.log(destination)
    changed = set_pauses(table, order)
    if changed:
        scope = "" if order.members is None else f", member {', '.join(map(str, order.members))}"
        done = "resumed" if order.resume else "paused"
        log.info("%s%s: %s %s", destination, scope, done, ", ".join(order.operations))
    return Paused(destination, changed, pause_rows(table.refresh().destination))
