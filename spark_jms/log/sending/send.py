"""Sending: staged files become messages in one commit.

What happens on a send:

1. `MessageWriter` routes the rows to members and stages one file for each; nothing is visible yet.
2. `_Send.prepare` refuses files that clean-up may delete or that belong to a replaced table, and routes files again whose
   member was removed. With a path service it looks whether units of order are new that were placed as such.
3. `decide_send` refuses members that are paused, numbers the rows behind each member's last sequence, and notes the
   transaction and the paths of new units.
4. `commit_prepared` creates the next log file; another writer may be first, then 2 to 4 run again. While insertion is
   paused, or the destination's quota has no room, `send` waits for as long as its caller allows.

The destination names its quota, or the servers whose quotas count its members, in its own metadata, so the commit that gives it
another quota orders before or after each send. Members on several servers need room in the quota of each, and members that have a
maximum each for itself in what each has: of all, or of none.
core/limits/quota.py has the theory.

    decide on a snapshot -- no quota, or grants cover the files -> commit
            |
            +-- QuotaNeeded -> reserve room (log/limits/quota.py), then decide again

Features: C4, C5, M1, R13, T1, T8 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import NamedTuple

import attrs

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.routing import ANY_MEMBER, Balancing
from spark_jms.core.limits.quota import Grant, MessageUsage, Request, total
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.transactions.producers import NumberedMessages, new_versions
from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.errors import (
    CommitConflictError,
    CommitOutcomeUnknownError,
    DestinationReplacedError,
    InsertionPausedError,
    InvalidDestinationError,
    JmsqError,
)
from spark_jms.log.messages.data_files import discard, too_old
from spark_jms.log.messages.message_writer import rewrite
from spark_jms.log.sending.units_of_order import check_placed, new_paths
from spark_jms.log.tables.commit import Decision, commit_prepared, metadata_action
from spark_jms.log.tables.delta_log import Action, DeltaLog
from spark_jms.log.tables.snapshot import SEQUENCE_PREFIX, RouteId, Snapshot
from spark_jms.log.tables.storage import now_ms

QuotaNeeds = Mapping[str, Mapping[int, MessageUsage]]  # quota -> member -> how much
Reroute = Callable[[Sequence[StagedFile], Destination], list[StagedFile]]
_LONGEST_LOOK_S = 0.05  # between two looks at a paused destination


@dataclass(frozen=True)
class TransactionId:
    """An application's own number: the first send with it counts, repeated ones do not (Delta's txnAppId, txnVersion)."""

    app_id: str
    version: int

    def is_in(self, snapshot: Snapshot) -> bool:
        return snapshot.transactions.get(self.app_id, -1) >= self.version

    def action(self, now: int) -> Action:
        return {"txn": {"appId": self.app_id, "version": self.version, "lastUpdated": now}}


@dataclass(frozen=True)
class Sent:
    """What a send did. `version` is -1 when the transaction was in the log already and nothing was written."""

    version: int
    sequences: Mapping[int, Ranges] = field(default_factory=dict)
    files: Sequence[StagedFile] = ()  # as committed: after a change of route not those that were staged


class Shipping(NamedTuple):
    """Staged files, and the routing epoch by which their sender planned."""

    files: Sequence[StagedFile]
    planned_epoch: int


class Numbering(NamedTuple):
    """add actions with sequences, txn actions with each member's new last sequence, and the sequences by member."""

    actions: list[Action]
    sequences: dict[int, Ranges]


@dataclass(frozen=True)
class SendDecision(Decision):
    sequences: Mapping[int, Ranges] = field(default_factory=dict)
    files: Sequence[StagedFile] = ()


@dataclass(frozen=True)
class Sender:
    """Who sends, for quotas. `by` names the sender for people. `id` is unique to a send. A sender that `stays` keeps its place in
    the queue when it gives up for now, and asks again within seconds."""

    by: str
    id: str
    stays: bool = False


# -- a send ------------------------------------------------------------------------------------------------------------


def send(
    log: DeltaLog,
    staged: Sequence[StagedFile],
    routed_by: RouteId,
    transaction: TransactionId | None = None,
    reroute: Reroute | None = None,
    wait_s: float = 0,
    balancing: Balancing = ANY_MEMBER,
    sender: Sender | None = None,
    numbered: Sequence[NumberedMessages] = (),
) -> Sent:
    """Commit staged files as new messages, in the given order. `routed_by` is the `route_id` of the snapshot by whose declaration
    they were routed. When the declaration or a pause has changed since, `reroute` stages them again, which makes them new messages;
    without it only the rows of removed members are routed again, by `balancing`. Of several sends with one transaction exactly one
    counts, and the others delete their files. `numbered`: which of the messages are of producers with an id, in their order. While
    insertion is paused, or the destination's quota has no room, this waits up to `wait_s`.

    Raises QuotaExceededError, what `new_versions` raises, ProductionPausedError, InsertionPausedError, DestinationReplacedError
    when they were routed for another table, and CommitOutcomeUnknownError when the storage cannot tell whether it has the commit.
    After any error but the latter nothing was committed. ResourceAllocationException while the store of a member's server is
    overloaded."""
    shipment, now = _Send(log, list(staged), routed_by, transaction, reroute, balancing), now_ms()
    deadline = time.monotonic() + wait_s
    room = Room(log, sender, deadline)
    try:
        if transaction is None:  # else the messages may be in the log already
            room.reserve_for(staged)
        while True:
            declared = log.snapshot.destination
            log.admit({declared.server_of(file.member) for file in shipment.files})
            epoch = declared.epoch
            try:
                done = commit_prepared(
                    log,
                    shipment.prepare,
                    lambda snapshot, ready: decide_send(snapshot, ready, transaction, now, room.grants, numbered),
                )
                break
            except QuotaNeeded as needed:
                room.reserve(needed)
            except InsertionPausedError:
                room.give_back()
                if not wait_for_change(log, epoch, deadline):
                    raise
    except CommitOutcomeUnknownError:
        raise  # the files and the reservation stay: the log may name them
    except Exception:
        room.give_back()
        with suppress(OSError):  # clean-up deletes what is left
            discard(log.storage, shipment.files)
        raise
    if done is None:
        room.give_back()
        if shipment.repeated:
            discard(log.storage, shipment.files)
        return Sent(-1)
    return Sent(done.version, done.decision.sequences, done.decision.files)


def find(log: DeltaLog, files: Sequence[StagedFile]) -> Sent | None:
    """Look into the log for a send whose caller was interrupted. None: it is not there and will not be. Raises
    CommitOutcomeUnknownError when it is not there yet, or when the log cannot be read."""
    try:
        snapshot = log.refresh()
    except OSError as error:
        raise CommitOutcomeUnknownError(
            f"{log.name}: a send was interrupted while it was committed, and the log cannot be read ({error})"
        ) from error
    known = [snapshot.files[file.path] for file in files if file.path in snapshot.files]
    if len(known) == len(files):
        sequences = {
            file.member: Ranges.of(*((f.first, f.last) for f in known if f.member == file.member)) for file in known
        }
        return Sent(snapshot.version, sequences, tuple(files))
    if log.storage.failed_writes_may_arrive or any(file.path in snapshot.removed_ms for file in files):
        raise CommitOutcomeUnknownError(
            f"{log.name}: a send was interrupted while it was committed, and its files are not in the log now: it may have "
            "been committed and compacted since, or its commit may still arrive"
        )
    return None


def explained(log: DeltaLog, error: InvalidDestinationError) -> JmsqError:
    """For a file that could not be staged because the table's folder was deleted: the error that tells what became of the
    destination."""
    try:
        log.verify()
    except JmsqError as reason:
        return reason
    return error


def wait_for_change(log: DeltaLog, epoch: int, deadline: float) -> bool:
    """Wait until the destination has another routing epoch: then a member may have been resumed. False at the deadline, a
    time of time.monotonic()."""
    look_s = 0.001
    while log.refresh().destination.epoch == epoch:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(look_s, left))
        look_s = min(2 * look_s, _LONGEST_LOOK_S)
    return True


class _Send:
    """The files of one send. They change when the destination's members do."""

    def __init__(
        self,
        log: DeltaLog,
        files: list[StagedFile],
        routed_by: RouteId,
        transaction: TransactionId | None,
        reroute: Reroute | None,
        balancing: Balancing,
    ) -> None:
        self._log, self._routed_by, self._transaction = log, routed_by, transaction
        self._reroute = reroute or partial(rewrite, log.storage, balancing=balancing)
        self._plans_again = reroute is not None
        self._planned_epoch = routed_by.epoch
        self.files = files
        self.repeated = False

    def prepare(self, snapshot: Snapshot) -> Shipping:
        """The files as they can be committed on this snapshot. Raises CommitConflictError when they are too old,
        DestinationReplacedError when they belong to another table."""
        if snapshot.table_id != self._routed_by.table_id:
            raise DestinationReplacedError(
                f"destination {self._log.name} was dropped and created again after the messages of this send were routed: "
                "nothing was committed; send again, to the new destination"
            )
        self.repeated = self._transaction is not None and self._transaction.is_in(snapshot)
        if self.repeated:  # the files will be deleted, but never one that is in the log
            self.files = [file for file in self.files if file.path not in snapshot.files]
        elif self.files:
            storage, destination = self._log.storage, snapshot.destination
            late = too_old(storage, self.files, destination, now_ms())
            if late:
                raise CommitConflictError(
                    f"destination {self._log.name}: {len(late)} of {len(self.files)} file(s) of this send were written "
                    "too long ago, and clean-up has deleted them or may do so: nothing was committed; send again"
                )
            if snapshot.route_id != self._routed_by:
                self.files = self._reroute(self.files, destination)
                self._routed_by = snapshot.route_id
                if self._plans_again:
                    self._planned_epoch = snapshot.route_id.epoch
            check_placed(self._log, snapshot, self.files)
        return Shipping(tuple(self.files), self._planned_epoch)


def decide_send(
    snapshot: Snapshot,
    shipping: Shipping,
    transaction: TransactionId | None,
    now: int,
    grants: Sequence[Grant] = (),
    numbered: Sequence[NumberedMessages] = (),
) -> SendDecision | None:
    """Pure. None when the transaction is in the log, or there is nothing to send. Raises ProductionPausedError,
    InsertionPausedError, QuotaNeeded when a quota counts the messages and no grant fits, and what `new_versions` raises."""
    files = shipping.files
    if (transaction and transaction.is_in(snapshot)) or not (files or transaction):
        return None
    producers = new_versions(snapshot.transactions, numbered, snapshot.destination.name) if numbered else {}
    snapshot.destination.check_up(file.member for file in files)
    snapshot.destination.check_production((file.member for file in files), shipping.planned_epoch)
    room = spent(snapshot, files, grants, now)
    actions, sequences = number(snapshot, files, now)
    actions += new_paths(snapshot, files)
    actions += room
    if transaction:
        actions.append(transaction.action(now))
    actions += (TransactionId(app_id, version).action(now) for app_id, version in producers.items())
    return SendDecision("WRITE", actions, {"mode": "Append"}, sequences, tuple(files))


def number(snapshot: Snapshot, files: Sequence[StagedFile], now: int) -> Numbering:
    """Give the files dense sequences behind each member's last one; txn actions keep the new last ones. The first files
    with compressed bodies raise the table's format, which earlier releases refuse."""
    actions: list[Action] = []
    last: dict[int, int] = {}
    sequences: dict[int, Ranges] = {}
    for file in files:
        before = last.get(file.member, snapshot.last_sequence(file.member))
        actions.append(file.add_action(before + 1, data_change=True))
        last[file.member] = before + file.rows
        sequences[file.member] = sequences.get(file.member, EMPTY) | Ranges.of((before + 1, before + file.rows))
    for member, sequence in sorted(last.items()):
        actions.append(TransactionId(f"{SEQUENCE_PREFIX}{member}", sequence).action(now))
    if any(file.has_compressed for file in files) and not snapshot.destination.has_compressed:
        actions.insert(0, metadata_action(snapshot, attrs.evolve(snapshot.destination, has_compressed=True)))
    return Numbering(actions, sequences)


def _this_process() -> Sender:
    return Sender(f"process {os.getpid()} of {socket.gethostname()}", uuid.uuid4().hex)


# -- room in the quotas of the destination -----------------------------------------------------------------------------


class QuotaNeeded(Exception):
    """Not an error: the commit needs reservations. `needs`: quota -> member -> how much; `epoch`: of the declaration that says so."""

    def __init__(self, needs: QuotaNeeds, epoch: int) -> None:
        super().__init__(needs, epoch)
        self.needs, self.epoch = needs, epoch


class Room:
    """The reservations of one commit in the quotas of its destination. The commit ends them. After an interrupt they stay until
    other senders need the room: whether the commit is in the log is unknown."""

    def __init__(self, log: DeltaLog, sender: Sender | None, deadline: float) -> None:
        self._log, self._sender, self._deadline = log, sender, deadline
        self.grants: tuple[Grant, ...] = ()

    def reserve(self, needed: QuotaNeeded) -> None:
        """In all quotas, or in none. Raises QuotaExceededError at the deadline, a time of time.monotonic()."""
        quotas = self._log.quotas
        if quotas is None:
            raise AssertionError(f"{self._log.name} has a quota, but its log was opened without quotas")
        self.give_back()
        self._sender = sender = self._sender or _this_process()
        declared = self._log.snapshot.destination
        for quota, needs in sorted(needed.needs.items(), key=itemgetter(0)):  # in one order: no two wait for each other
            apart = quotas.members_apart(quota, declared)
            for member in [None] if None in apart else sorted(needs):
                id = sender.id if member is None else f"{sender.id}+{member}"
                need = total(needs.values()) if member is None else needs[member]
                request = Request(id, self._log.name, need, sender.by)
                wait_s = self._deadline - time.monotonic()
                grant = quotas.reserve(request, quota, needed.epoch, wait_s, stays=sender.stays, member=member)
                self.grants += (grant,) if grant is not None else ()

    def reserve_for(self, files: Sequence[StagedFile]) -> None:
        """Ahead of the first attempt to commit, which would find out that it needs room."""
        declared = self._log.snapshot.destination
        if declared.measures_usage and not declared.pauses and (needs := needs_of(declared, files)):
            self.reserve(QuotaNeeded(needs, declared.epoch))

    def give_back(self) -> None:
        """When there will be no commit. Raises nothing."""
        grants, self.grants = self.grants, ()
        for grant in grants:
            if self._log.quotas is not None:
                self._log.quotas.withdraw(grant)


def needs_of(declared: Destination, files: Iterable[StagedFile]) -> QuotaNeeds:
    """What the files need in each quota, by member."""
    needs: dict[str, dict[int, MessageUsage]] = {}
    for file in files:
        quota = declared.quota_of(file.member)
        if quota is not None:
            known = needs.setdefault(quota, {})
            known[file.member] = known.get(file.member, MessageUsage()) + MessageUsage(file.rows, file.message_bytes)
    return needs


def spent(snapshot: Snapshot, files: Sequence[StagedFile], grants: Sequence[Grant], now: int) -> list[Action]:
    """Pure. What the commit of these files adds to the log: the transactions that end the reservations; nothing where no quota
    counts them. Raises QuotaNeeded unless there is a grant of each quota, or of each member of it, which covers its files and has not
    ended."""
    declared = snapshot.destination
    if declared.quota is None and not declared.limited:
        return []
    needs, known = needs_of(declared, files), {(grant.quota, grant.member): grant for grant in grants}
    used = []
    for quota, by_member in sorted(needs.items(), key=itemgetter(0)):
        whole = {None: total(by_member.values())} if (quota, None) in known else by_member
        for member, need in whole.items():
            grant = known.get((quota, member))
            if grant is None or not _fits(snapshot, grant, need):
                raise QuotaNeeded(needs, declared.epoch)
            used.append(grant)
    return [{"txn": {"appId": one.transaction, "version": one.number, "lastUpdated": now}} for one in used]


def _fits(snapshot: Snapshot, grant: Grant, need: MessageUsage) -> bool:
    left = grant.request.need - need
    ended = snapshot.transactions.get(grant.transaction, 0) >= grant.number
    return grant.epoch == snapshot.destination.epoch and not ended and left.messages >= 0 and left.bytes >= 0
