"""Where record sets lie in the store: one record each, several objects in it.

Features: C9, C18 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging

from spark_jms.claims.active_subscriptions import not_durable
from spark_jms.claims.stores import record_of
from spark_jms.core.active_subscription import is_durable
from spark_jms.core.life_event import LifeEvent
from spark_jms.core.record_set import RecordSet
from spark_jms.core.record_set_form import changed_objects, from_objects
from spark_jms.log.snapshot import Snapshot
from spark_jms.store import Delete, Handle, Operation, Put, Store

log = logging.getLogger("spark_jms")
_EMPTY = RecordSet()


def read_state(store: Store, record: str, label: str = "") -> RecordSet:
    """A record set as last committed, without opening its record. `label` names it in errors."""
    return from_objects(store.peek(record), label or record)


def state_of(store: Store, snapshot: Snapshot, subscription: str, member: int) -> RecordSet:
    """The record set of one member as last committed, with the start of its subscription applied."""
    destination, start = snapshot.destination, None
    if not is_durable(subscription):
        start = not_durable(store, snapshot.table_id).get(subscription)
    state = read_state(
        store,
        record_of(snapshot, subscription, member),
        label_of(destination.name, subscription, member),
    )
    if start is not None:
        return state.start_at(start.floor(member, snapshot.last_sequence(member)))
    return state.start_at(destination.start_floor(subscription, member))


def opened_state(handle: Handle, label: str = "") -> RecordSet:
    """The record set of an open record."""
    return from_objects(handle.objects(), label or handle.name)


def operations(before: RecordSet, after: RecordSet) -> list[Operation]:
    """What to write when a record set changes. Of a new one nothing is stored, so everything is written."""
    known = None if before == _EMPTY else before
    return [Delete(key) if value is None else Put(key, value) for key, value in changed_objects(known, after).items()]


def label_of(destination: str, subscription: str, member: int) -> str:
    """A record set as people know it."""
    return f"{destination}/{subscription}/{member}"


def without_lost(state: RecordSet, snapshot: Snapshot, member: int, label: str) -> RecordSet:
    """The state of an open record without what went with the power. What is claimed goes when its claim has ended."""
    lost = snapshot.lost_of(member)
    if not (lost and (lost := state.unfinished_of(lost) - state.claimed - state.moving)):
        return state
    log.warning("%s: %d message(s) went with the power (%s) and are skipped", label, lost.count, lost)
    return state.skip(lost, LifeEvent.SKIPPED, "lost with the power")
