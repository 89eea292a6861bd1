"""The one way anything gets into a destination's log: decide on a snapshot, number, compare-and-swap, retry (C5).

    refresh -> decide(snapshot) -> append as the next version -- created --> done
       ^                                   |
       +------- jittered pause <-- somebody was first

`decide` is pure: it sees the newest snapshot each time, so a transaction that is already in the log, a declaration that
has changed, a file that is no longer there, are noticed by whoever they concern.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_jms.core.ranges import EMPTY, Ranges
from spark_jms.errors import CommitConflictError
from spark_jms.log.delta_log import Action, DeltaLog
from spark_jms.log.files import StagedFile, discard, reroute, staged_grace_ms
from spark_jms.log.snapshot import SEQUENCE_PREFIX, Snapshot
from spark_jms.log.storage import now_ms

MAX_ATTEMPTS = 200
_MAX_PAUSE_S = 0.05


@dataclass(frozen=True)
class Decision:
    operation: str
    actions: Sequence[Action]
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Transaction:
    """An application's own number: committed once, whoever repeats it (Delta's txnAppId and txnVersion)."""

    app_id: str
    version: int


@dataclass(frozen=True)
class Sent:
    """What a send did. `version` is -1 when the transaction was in the log already and nothing was written."""

    version: int
    sequences: Mapping[int, Ranges] = field(default_factory=dict)
    files: Sequence[StagedFile] = ()  # as committed, which after a change of route are not those that were staged


def commit(
    log: DeltaLog,
    decide: Callable[[Snapshot], Decision | None],
    *,
    attempts: int = MAX_ATTEMPTS,
    pause: Callable[[float], None] = time.sleep,
) -> int | None:
    """The version written, or None when `decide` found nothing to do. Raises CommitConflictError after `attempts`."""
    for attempt in range(attempts):
        with log.lock:
            snapshot = log.refresh()
            decision = decide(snapshot)
            if decision is None:
                return None
            if log.append(snapshot, decision.operation, decision.actions, decision.parameters):
                return snapshot.version
        pause(random.uniform(0, min(_MAX_PAUSE_S, 0.001 * 2 ** min(attempt, 8))))
    raise CommitConflictError(
        f"destination {log.name}: other writers were first {attempts} times in a row: nothing was committed; try again"
    )


def send(log: DeltaLog, staged: Sequence[StagedFile], route_epoch: int, transaction: Transaction | None = None) -> Sent:
    """Commit staged files as new messages, in the given order. `route_epoch` is that of the declaration by which they
    were routed; if it has changed, they are routed anew. Exactly one of repeated calls with a transaction counts;
    the files of the others are deleted."""
    files = list(staged)
    numbered: dict[int, Ranges] = {}
    duplicate = False

    def decide(snapshot: Snapshot) -> Decision | None:
        nonlocal files, route_epoch, duplicate
        if transaction and snapshot.transactions.get(transaction.app_id, -1) >= transaction.version:
            duplicate = True
            files = [file for file in files if file.path not in snapshot.files]  # never those that are messages by now
            return None
        if not files and not transaction:
            return None
        late = too_old(log, files, snapshot)
        if late:
            raise CommitConflictError(
                f"destination {log.name}: {len(late)} of {len(files)} file(s) of this send were written too long ago, and "
                "clean-up has deleted them or may do so: nothing was committed; send again"
            )
        if snapshot.destination.epoch != route_epoch and files:
            files = reroute(log.storage, files, snapshot.destination)
            route_epoch = snapshot.destination.epoch
        actions = number(snapshot, files, numbered)
        if transaction:
            actions.append(
                {"txn": {"appId": transaction.app_id, "version": transaction.version, "lastUpdated": now_ms()}}
            )
        return Decision("WRITE", actions, {"mode": "Append"})

    try:
        version = commit(log, decide)
    except CommitConflictError:  # certainly not committed; after any other error it is not certain, so the files stay
        discard(log.storage, files)
        raise
    if version is None:
        if duplicate:
            discard(log.storage, files)
        return Sent(-1)
    return Sent(version, dict(numbered), tuple(files))


def too_old(log: DeltaLog, files: Sequence[StagedFile], snapshot: Snapshot) -> list[StagedFile]:
    """Those that clean-up has deleted or may be about to: their writer slept (a stopped process, a suspended machine)."""
    oldest_ms = now_ms() - staged_grace_ms(snapshot.destination) // 2
    return [file for file in files if file.modified_ms < oldest_ms or not log.storage.exists(file.path)]


def number(snapshot: Snapshot, files: Sequence[StagedFile], numbered: dict[int, Ranges]) -> list[Action]:
    """Give the files dense sequences behind each member's last one; the new last ones are txn actions (C5)."""
    numbered.clear()
    actions: list[Action] = []
    last: dict[int, int] = {}
    for file in files:
        before = last.get(file.member, snapshot.last_sequence(file.member))
        actions.append(file.add_action(before + 1, data_change=True))
        last[file.member] = before + file.rows
        numbered[file.member] = numbered.get(file.member, EMPTY) | Ranges.of((before + 1, before + file.rows))
    for member, sequence in sorted(last.items()):
        actions.append({"txn": {"appId": f"{SEQUENCE_PREFIX}{member}", "version": sequence, "lastUpdated": now_ms()}})
    return actions
