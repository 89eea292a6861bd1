"""Passing barriers of units of order: commits to the metadata of the destination's table (T10). core/slots.py has the rules."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import attrs

from spark_jms.core.active_subscription import is_durable
from spark_jms.core.slots import Barrier
from spark_jms.log.commit import Decision, commit
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.metadata import metadata_action
from spark_jms.log.snapshot import Snapshot


def pass_barriers(log: DeltaLog, subscription: str, passed: Collection[Barrier]) -> None:
    """Does nothing when others have done it already."""
    commit(log, lambda snapshot: decide_passed(snapshot, subscription, passed))


def decide_passed(snapshot: Snapshot, subscription: str, passed: Collection[Barrier]) -> Decision | None:
    """Pure. A topic's barrier goes when what is before it is purged: a subscription that begins earlier may come until then.
    One that was dropped meanwhile has passed nothing, or another one of its name would have."""
    declared = snapshot.destination
    if declared.slots is None:
        return None
    if declared.is_topic and is_durable(subscription) and subscription not in declared.subscriptions:
        return None
    slots = declared.slots.pass_by(passed, subscription, is_last=not declared.is_topic)
    if declared.is_topic:
        slots = replace(slots, barriers=tuple(b for b in slots.barriers if not _is_purged(snapshot, b)))
    if slots == declared.slots:
        return None
    return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, attrs.evolve(declared, slots=slots))])


def forget_purged_barriers(log: DeltaLog) -> None:
    """Of a topic, whose barriers no subscription may ever pass: one without subscriptions. Commits only when one goes."""
    commit(log, decide_purged)


def decide_purged(snapshot: Snapshot) -> Decision | None:
    """Pure."""
    declared = snapshot.destination
    if declared.slots is None or not declared.is_topic:
        return None
    left = tuple(b for b in declared.slots.barriers if not _is_purged(snapshot, b))
    if len(left) == len(declared.slots.barriers):
        return None
    slots = replace(declared.slots, barriers=left)
    return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, attrs.evolve(declared, slots=slots))])


def _is_purged(snapshot: Snapshot, barrier: Barrier) -> bool:
    return not any(snapshot.member_files(barrier.old).overlapping(1, barrier.old_last))
