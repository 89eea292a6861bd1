"""Positions of subscriptions that no longer exist, cleared by housekeeping: dropped ones, and ones that were not
durable and whose consumers have died.

`jmsq subscriptions --drop` clears the positions itself. But a consumer that was stopped in the wrong moment may write them
once more, and a new subscription of the same name would take the messages they name for finished.

Features: C10, C13 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Collection

from spark_jms.claims.active_subscriptions import active_subscriptions
from spark_jms.claims.record_sets import opened_state, operations, read_state
from spark_jms.claims.stores import addressed
from spark_jms.claims.subscription_use import forget_dead_uses
from spark_jms.core.active_subscription import is_durable
from spark_jms.log.delta_log import DeltaLog
from spark_jms.store import RecordHeldError, Session, Store, StoreError


def clear_leftovers(store: Store, session: Session, log: DeltaLog) -> list[str]:
    """Clear the record sets of dropped subscriptions that no session holds; returns their names. A server that is away does not
    hold up the others: its error is raised at the end.

    While we hold a record no consumer can write it. So if neither the log nor a live use has the subscription then, the
    record's content is from an earlier one, also when a new one of that name is created meanwhile.
    """
    if not log.refresh().destination.is_topic:
        return []
    forget_dead_uses(store, session, log.snapshot.table_id)
    live = active_subscriptions(store, log.snapshot.table_id).keys()  # once: each look at it reads all uses
    cleared, errors = [], []
    declared = log.snapshot.destination
    for server in (server for server in declared.servers_in_use() if server not in declared.stopped):
        try:
            cleared += _clear_on(server, store, session, log, live)
        except StoreError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return cleared


def _clear_on(server: str, store: Store, session: Session, log: DeltaLog, live: Collection[str]) -> list[str]:
    """`live` may be old: whether a record is left over is decided while it is open."""
    cleared = []
    for name in store.names(addressed(server, f"members/{log.snapshot.table_id}/")):
        if _subscription_of(name) in live or _subscription_of(name) in log.snapshot.destination.subscriptions:
            continue
        known = read_state(store, name)
        if known == known.cleared():
            continue
        try:
            handle = session.open(name)
        except RecordHeldError:
            session.cancel(name)
            continue
        with handle:
            state = opened_state(handle)
            log.refresh()
            if _is_dropped(store, log, name) and state != state.cleared():
                handle.commit(operations(state, state.cleared()))
                cleared.append(name)
    return cleared


def _is_dropped(store: Store, log: DeltaLog, name: str) -> bool:
    subscription = _subscription_of(name)
    if not is_durable(subscription):
        return subscription not in active_subscriptions(store, log.snapshot.table_id)
    return subscription not in log.snapshot.destination.subscriptions


def _subscription_of(record: str) -> str:
    return record.rsplit("/", 2)[-2]
