"""Positions of subscriptions that no longer exist, cleared by housekeeping (C10, C13).

`jmsq subscriptions --drop` clears the positions itself. But a consumer that was stopped in the wrong moment may write them
once more, and a new subscription of the same name would take the messages they name for finished.
"""

from __future__ import annotations

from spark_jms.claims.record_sets import opened_state, operations, read_state
from spark_jms.log.delta_log import DeltaLog
from spark_jms.store import RecordHeldError, Session, Store


def clear_leftovers(store: Store, session: Session, log: DeltaLog) -> list[str]:
    """Clear the record sets of dropped subscriptions that no session holds; returns their names.

    While we hold a record no consumer can write it. So if the log does not have the subscription then, the record's content
    is from an earlier one, also when a new one of that name is created meanwhile.
    """
    if not log.refresh().destination.is_topic:
        return []
    cleared = []
    for name in store.names(f"members/{log.snapshot.table_id}/"):
        known = read_state(store, name)
        if not _is_dropped(log, name) or known == known.cleared():
            continue
        try:
            handle = session.open(name)
        except RecordHeldError:
            session.cancel(name)
            continue
        with handle:
            state = opened_state(handle)
            log.refresh()
            if _is_dropped(log, name) and state != state.cleared():
                handle.commit(operations(state, state.cleared()))
                cleared.append(name)
    return cleared


def _is_dropped(log: DeltaLog, name: str) -> bool:
    subscription = name.rsplit("/", 2)[-2]
    return subscription not in log.snapshot.destination.subscriptions
