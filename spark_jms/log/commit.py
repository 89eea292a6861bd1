"""Committing to a table's log: the only way anything gets into it.

    refresh -> prepare(snapshot) -> decide(snapshot, prepared) -> append as version + 1 -- created --> Committed
       ^                                                                |
       +------------------ random pause <-- another writer was first ---+

`prepare` does all I/O that the decision needs: it stages files, routes them again, asks the store. `decide` is pure: an
immutable snapshot (and what was prepared) in, a decision out. Each attempt decides on the newest snapshot, so a decision
never overlooks a transaction that is in the log already, a changed declaration or a removed file.

Features: C5 (docs/FEATURES.md)
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from spark_jms.errors import CommitConflictError
from spark_jms.log.delta_log import Action, DeltaLog
from spark_jms.log.snapshot import Snapshot

MAX_ATTEMPTS = 200
_MAX_PAUSE_S = 0.05


@dataclass(frozen=True)
class Decision:
    """One version of the log. Subclasses add what their caller wants to know once it is committed."""

    operation: str
    actions: Sequence[Action]
    parameters: Mapping[str, str] = field(default_factory=dict)


D = TypeVar("D", bound=Decision)
P = TypeVar("P")


@dataclass(frozen=True)
class Committed(Generic[D]):
    version: int
    decision: D


def commit(log: DeltaLog, decide: Callable[[Snapshot], D | None]) -> Committed[D] | None:
    """Commit a decision that needs nothing but the snapshot."""
    return commit_prepared(log, lambda snapshot: None, lambda snapshot, nothing: decide(snapshot))


def commit_prepared(
    log: DeltaLog,
    prepare: Callable[[Snapshot], P],
    decide: Callable[[Snapshot, P], D | None],
    *,
    attempts: int = MAX_ATTEMPTS,
    pause: Callable[[float], None] = time.sleep,
) -> Committed[D] | None:
    """None when `decide` found nothing to do. Raises CommitConflictError after `attempts`."""
    for attempt in range(attempts):
        with log.lock:
            snapshot = log.refresh()
            decision = decide(snapshot, prepare(snapshot))
            if decision is None:
                return None
            if log.append(snapshot, decision.operation, decision.actions, decision.parameters):
                return Committed(snapshot.version + 1, decision)
        pause(random.uniform(0, min(_MAX_PAUSE_S, 0.001 * 2 ** min(attempt, 8))))
    raise CommitConflictError(
        f"destination {log.name}: other writers were first {attempts} times in a row: nothing was committed; try again"
    )
