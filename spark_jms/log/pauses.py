"""Pausing and resuming a destination: commits to its table's metadata. core/pause.py has the rules.

Features: T14 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import attrs

from spark_jms.core.pause import INSERTION, PRODUCTION, Pauses
from spark_jms.log.commit import Decision, commit
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.metadata import metadata_action
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import now_ms


@dataclass(frozen=True)
class PauseOrder:
    """Which operations to pause or to resume. `members` None: of the whole destination."""

    operations: tuple[str, ...]
    members: tuple[int, ...] | None
    resume: bool = False


def set_pauses(log: DeltaLog, order: PauseOrder) -> bool:
    """False when nothing changed. Whatever commits after this returns obeys the pauses."""
    now = now_ms()
    return commit(log, lambda snapshot: decide_pauses(snapshot, order, now)) is not None


def decide_pauses(snapshot: Snapshot, order: PauseOrder, now: int) -> Decision | None:
    """Pure. None when it is so already. Routing follows the pauses of senders, so those begin a new epoch."""
    declared = snapshot.destination
    routes = any(operation in (PRODUCTION, INSERTION) for operation in order.operations)
    epoch = declared.epoch + 1 if routes else declared.epoch
    after = _changed(declared.pauses, order, epoch, now)
    if after == declared.pauses:
        return None
    changed = attrs.evolve(declared, pauses=after, epoch=epoch)
    return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, changed)])


def _changed(pauses: Pauses, order: PauseOrder, epoch: int, now: int) -> Pauses:
    operations: Collection[str] = order.operations
    if order.resume:
        return pauses.resume(operations, order.members)
    return pauses.pause(operations, order.members, epoch, now)
