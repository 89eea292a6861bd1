"""Move messages between destinations or members, exactly once: on request, and as a redrive.

claims/upkeep/move.py has how; here a move to another destination keeps the pace that flow control sets its target's senders.

`redrive` brings messages back to where they failed. Each origin's messages go in moves of their own. They arrive as they were
sent: without the properties that the error destination added, and with their expiration if it lies ahead.

Features: C8, C14, C18, M2, T5 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_jms.claims.messages.scan import Question
from spark_jms.claims.servers.stores import state_of
from spark_jms.claims.upkeep.move import Moved, MoveOrder, fetched, plan_move, selected
from spark_jms.claims.upkeep.move import move as carry_out
from spark_jms.core.destinations.destination import QUEUE_SUBSCRIPTION
from spark_jms.core.limits.flow_control import FlowParameters
from spark_jms.core.messages.types import map_rows
from spark_jms.core.records.endings import REDRIVER
from spark_jms.core.records.redelivery import FROM, TIME, redriven
from spark_jms.core.selector import Selector
from spark_jms.errors import InvalidDestinationError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.limits import FlowWatch, watched_of
from spark_jms.log.tables.storage import now_ms
from spark_jms.store import Store

if TYPE_CHECKING:
    from spark_jms.client.sending.flow_control import ProducerFlow

__all__ = ("MoveOrder", "Moved", "RedriveOrder", "Redriven", "move", "plan_move", "plan_redrive", "redrive")


@dataclass(frozen=True)
class RedriveOrder:
    """Which messages of the queue `source` go back: those that `selector` takes and that failed in
    `since_ms`..`until_ms`. `target` None: to the destination that each comes from."""

    source: str
    target: str | None = None
    selector: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    limit: int | None = None


@dataclass(frozen=True)
class Redriven:
    """The result of a redrive. `messages` by the destination that they failed in; `claimed` were left to the consumers that have
    claimed them, selected or not."""

    messages: dict[str, int]
    claimed: int


# -- move --------------------------------------------------------------------------------------------------------------


def move(domain: Domain, store: Store, request: MoveOrder, wait_s: float) -> Moved:
    """Raises what claims/upkeep/move.py raises."""
    return carry_out(domain, store, request, wait_s, _pace(domain, request))


def _pace(domain: Domain, request: MoveOrder) -> ProducerFlow | None:
    """Flow control of the target, as of a producer with the default connection factory. None: what stays in its destination is not
    slowed."""
    if request.source == request.target:
        return None
    from spark_jms.client.sending.flow_control import ProducerFlow

    table = domain.log(request.target)
    declared = table.snapshot.destination
    server = declared.server_of(request.target_member) if request.target_member is not None else None
    return ProducerFlow(FlowParameters(), FlowWatch(partial(watched_of, domain, table, server)))


# -- redrive -----------------------------------------------------------------------------------------------------------


def plan_redrive(domain: Domain, store: Store, order: RedriveOrder) -> Redriven:
    """What `redrive` would do now; changes nothing. Raises InvalidDestinationError and InvalidSelectorError."""
    source = domain.log(order.source).refresh().destination
    if source.is_topic:
        raise InvalidDestinationError(f"{order.source} is a topic; an error destination is a queue: name a queue")
    found: Counter[str] = Counter()
    claimed = 0
    snapshot, selector = domain.log(order.source).snapshot, _selector(order)
    for member in source.member_ids:
        state = state_of(store, snapshot, QUEUE_SUBSCRIPTION, member)
        claimed += state.claimed.count
        left = None if order.limit is None else order.limit - found.total()
        picks = selected(domain, order.source, Question(selector), state, member, snapshot.last_sequence(member), left)
        if picks:
            for batch in fetched(domain, order.source, member, picks):
                found.update((row or {})[FROM] for row in map_rows(batch.column("properties")))
    _check_targets(domain, order, sorted(found))
    return Redriven(dict(sorted(found.items())), claimed)


def redrive(domain: Domain, store: Store, order: RedriveOrder, wait_s: float) -> Redriven:
    """Raises InvalidDestinationError before anything moves, and what `move` raises; what has moved by then stays moved."""
    plan = plan_redrive(domain, store, order)
    done: dict[str, int] = {}
    claimed = 0
    for origin, count in plan.messages.items():
        request = MoveOrder(
            order.source,
            order.target or origin,
            selector=_selector(order, origin),
            limit=None if order.limit is None else count,
            actor=REDRIVER,
            convert=_as_sent,
        )
        moved = move(domain, store, request, wait_s)
        done[origin], claimed = moved.moved, moved.claimed
    return Redriven(done, claimed if done else plan.claimed)


def _as_sent(batch: pa.RecordBatch) -> pa.RecordBatch:
    return redriven(batch, now_ms())


def _selector(order: RedriveOrder, origin: str | None = None) -> Selector | None:
    if order.selector:
        Selector.parse(order.selector)  # alone, so that its errors show what the caller wrote
    terms = [f"({order.selector})"] * bool(order.selector)
    terms.append(f"{FROM} IS NOT NULL" if origin is None else f"{FROM} = '{origin}'")
    terms += [f"{TIME} >= {order.since_ms}"] * (order.since_ms is not None)
    terms += [f"{TIME} <= {order.until_ms}"] * (order.until_ms is not None)
    return Selector.parse(" AND ".join(terms))


def _check_targets(domain: Domain, order: RedriveOrder, origins: list[str]) -> None:
    if order.target is not None:
        domain.log(order.target)  # raises, with the names that there are
        return
    existing = domain.destinations()
    for origin in origins:
        which = f"messages of {order.source} come from {origin}"
        way = (
            f"name another destination with --to, or leave these messages out with --selector \"{FROM} <> '{origin}'\""
        )
        if origin not in existing:
            raise InvalidDestinationError(f"{which}, which does not exist any more: {way}")
        if domain.log(origin).refresh().destination.is_topic:
            raise InvalidDestinationError(
                f"{which}, a topic: sent there again, every subscription would get them, not only the one that failed. If "
                f"that is meant, use --to {origin}; or {way}"
            )
