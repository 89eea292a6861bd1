"""Passing barriers of units of order, and forgetting them: commits to the metadata of the destination's table. core/slots.py
has the rules.

Features: T10 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from spark_jms.core.active_subscription import is_durable
from spark_jms.core.destination import Subscription
from spark_jms.core.slots import Barrier, SlotMap
from spark_jms.log.commit import Decision, commit
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.metadata import metadata_action
from spark_jms.log.snapshot import Snapshot


def pass_barriers(log: DeltaLog, subscription: str, passed: Collection[Barrier]) -> None:
    """Does nothing when others have done it already."""
    commit(log, lambda snapshot: decide_passed(snapshot, subscription, passed))


def decide_passed(snapshot: Snapshot, subscription: str, passed: Collection[Barrier]) -> Decision | None:
    """Pure. One that was dropped meanwhile has passed nothing, or another one of its name would have."""
    declared = snapshot.destination
    if declared.slots is None:
        return None
    if declared.is_topic and is_durable(subscription) and subscription not in declared.subscriptions:
        return None
    return _with(snapshot, declared.slots.pass_by(passed, subscription, is_last=not declared.is_topic))


def forget_barriers(log: DeltaLog, known: Collection[Barrier], live: Mapping[str, Subscription]) -> None:
    """Those of a topic that no subscription waits behind. `known`: the barriers of a snapshot that was fixed before the subscriptions
    were read that are not durable, so one that begins later begins behind them. Commits only when something changes."""
    commit(log, partial(decide_forgotten, frozenset(known), live))


def decide_forgotten(
    known: Collection[Barrier], live: Mapping[str, Subscription], snapshot: Snapshot
) -> Decision | None:
    """Pure."""
    declared = snapshot.destination
    if declared.slots is None or not declared.is_topic:
        return None

    def floor(subscription: str, member: int) -> int:
        if subscription in live:
            return live[subscription].floor(member, snapshot.last_sequence(member))
        return declared.start_floor(subscription, member)

    return _with(snapshot, declared.slots.forgotten(known, {*declared.subscriptions, *live}, floor))


def _with(snapshot: Snapshot, slots: SlotMap) -> Decision | None:
    declared = snapshot.destination
    if slots == declared.slots:
        return None
    after = declared.with_barriers(slots, snapshot.last_sequence)
    return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, after)])
