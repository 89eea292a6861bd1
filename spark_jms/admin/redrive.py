"""Bring messages back from an error destination to where they failed, exactly once.

Each origin's messages go in moves of their own (move.py). They arrive as they were sent: without the properties that the
error destination added, and with their expiration if it lies ahead.

Features: C8, C14, M2 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pyarrow as pa

from spark_jms.admin.move import MoveOrder, fetched, move, selected
from spark_jms.claims.record_sets import state_of
from spark_jms.claims.scan import Question
from spark_jms.core.destination import QUEUE_SUBSCRIPTION
from spark_jms.core.error_message import FROM, TIME, redriven
from spark_jms.core.selector import Selector
from spark_jms.core.utf8 import map_rows
from spark_jms.errors import InvalidDestinationError
from spark_jms.log.domain import Domain
from spark_jms.log.storage import now_ms
from spark_jms.store import Store

REDRIVER = "jmsq redrive"  # the consumer in the acknowledgement table


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
    """`messages` by the destination that they failed in; `claimed` were left to the consumers that have claimed them,
    selected or not."""

    messages: dict[str, int]
    claimed: int


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
