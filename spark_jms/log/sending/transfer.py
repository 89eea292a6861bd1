"""A transfer, or the sends of a transaction, at a target: files staged, then appended or refused by one commit.

core/transactions/transfer.py has the rules. Nothing here deletes a file that the log may name: two processes may finish one
transfer. The sends of a transaction to one destination are staged together, and admitted before the decision; then they are
appended as a transfer is.

Features: C18, T16 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.routing import Balancing, Routing, route, route_of
from spark_jms.core.limits.quota import Grant
from spark_jms.core.messages.carried import NOTHING_CARRIED, CarriedCounts, joined, note_in
from spark_jms.core.messages.columns import ORDINAL, STORED_SCHEMA, check_message_sizes
from spark_jms.core.records.refusal import Sieve, check_counted_sizes
from spark_jms.core.transactions.transfer import StagedFile, TargetOutcome, Ticket, TransferTarget, noted, outcome_of
from spark_jms.errors import CommitOutcomeUnknownError, DestinationReplacedError, InsertionPausedError
from spark_jms.log.messages.data_files import discard
from spark_jms.log.messages.message_writer import MessageWriter, is_misplaced
from spark_jms.log.sending.send import QuotaNeeded, Room, Sender, TransactionId, number, spent, wait_for_change
from spark_jms.log.sending.units_of_order import check_placed, new_paths
from spark_jms.log.tables.commit import Decision, commit, commit_prepared
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms

ROW_COLUMNS = tuple(name for name in STORED_SCHEMA.names if name != ORDINAL)

# -- a transfer --------------------------------------------------------------------------------------------------------


def has_overtaken(log: DeltaLog, ticket: Ticket) -> bool:
    """The target knows this number or a later one of the slot: the record set that gives it was lost or restored."""
    return TransactionId(ticket.app_id, ticket.appended).is_in(log.refresh())


def stage_transfer(
    log: DeltaLog,
    ticket: Ticket,
    rows: Iterable[pa.RecordBatch],
    member: int | None = None,
    table_id: str | None = None,
    sieve: Sieve | None = None,
    carried: CarriedCounts = NOTHING_CARRIED,
) -> TransferTarget:
    """Write rows of `ROW_COLUMNS` to files of the target, routed by its own rules or all to `member`. The messages keep
    their ids. What breaks a rule of the target raises MessageSizeError; with a `sieve` it is left out, and the rows come with their
    `sequence` behind the other columns. `carried`: the delivery counts of messages that all go to `member`, by their places among the
    rows. Raises DestinationReplacedError when the table is not `table_id` any more. After an error
    nothing is left."""
    snapshot = log.verify()  # in a table that was replaced, the files would be staged for nothing
    if table_id not in (None, snapshot.table_id):
        raise DestinationReplacedError(f"{snapshot.destination.name} was dropped and created again: nothing moved")
    writer = _writer(log, snapshot.destination, ticket)
    try:
        for batch in rows:
            if sieve is None:
                check_counted_sizes(batch, snapshot.destination.max_message_bytes)
            else:
                batch = sieve.accepted(batch, snapshot.destination)
            if member is None:
                writer.write_normalised(batch)
            else:
                writer.write_to(batch, member)
        files = noted(writer.close(), carried)
    except BaseException:
        writer.abort()
        raise
    log.storage.sync([file.path for file in files])  # the intent outlives the power, and these may be the only copy
    return TransferTarget(snapshot.destination.name, snapshot.table_id, tuple(files), member)


def target_outcome(log: DeltaLog, target: TransferTarget, ticket: Ticket) -> TargetOutcome:
    """Nothing looks for the files of a decided transfer."""
    outcome = _outcome(log.refresh(), target, ticket)
    if outcome is TargetOutcome.UNDECIDED and not all(log.storage.exists(file.path) for file in target.files):
        outcome = _outcome(log.verify(), target, ticket)  # another process has ended it, or the table was replaced
        return TargetOutcome.INCOMPLETE if outcome is TargetOutcome.UNDECIDED else outcome
    if outcome is TargetOutcome.APPENDED:
        log.sync()  # before the messages leave their source
    return outcome


def append_transfer(log: DeltaLog, target: TransferTarget, ticket: Ticket, origin: str = "") -> None:
    """Make the staged files messages, unless the transfer is decided. Repeatable, by several processes at once. `origin` is the
    id of the table that the messages come from: within one table they need no room. Raises InsertionPausedError and
    QuotaExceededError, and then keeps a place in the quota's queue for a few seconds; the files stay."""
    now = now_ms()
    room = Room(log, Sender(f"transfer {ticket}", str(ticket), stays=True), deadline=0)
    within = origin == target.table_id
    while True:
        try:
            done = commit_prepared(
                log,
                partial(_files_for, log, target, ticket),
                lambda snapshot, files: decide_append(snapshot, target, ticket, files, now, room.grants, within=within),
            )
        except QuotaNeeded as needed:
            room.reserve(needed)
        except CommitOutcomeUnknownError:
            raise  # the reservation stays: the log may name the files
        except Exception:
            room.give_back()
            raise
        else:
            if done is None:  # another process has appended it
                room.give_back()
            log.sync()  # the messages leave their source now, and the store forces that
            return


def abort_transfer(log: DeltaLog, target: TransferTarget, ticket: Ticket) -> None:
    """Refuse the staged files for good, unless the transfer is decided."""
    now = now_ms()
    commit(log, lambda snapshot: decide_abort(snapshot, target, ticket, now))


def decide_append(
    snapshot: Snapshot,
    target: TransferTarget,
    ticket: Ticket,
    files: Sequence[StagedFile],
    now: int,
    grants: Sequence[Grant] = (),
    *,
    within: bool = False,
) -> Decision | None:
    """Pure. None when another process has decided, or the table is another one. Raises InsertionPausedError, and QuotaNeeded when
    a quota counts the messages and no grant fits, unless the messages stay `within` the destination."""
    if _outcome(snapshot, target, ticket) is not TargetOutcome.UNDECIDED:
        return None
    snapshot.destination.check_up(file.member for file in files)
    snapshot.destination.check_insertion(file.member for file in files)
    actions = [] if within else spent(snapshot, files, grants, now)
    actions += number(snapshot, files, now).actions
    actions += new_paths(snapshot, files)
    return Decision(
        "TRANSFER", [*actions, TransactionId(ticket.app_id, ticket.appended).action(now)], {"mode": "Append"}
    )


def decide_abort(snapshot: Snapshot, target: TransferTarget, ticket: Ticket, now: int) -> Decision | None:
    """Pure. The commit has no files, only the transaction that refuses them."""
    if _outcome(snapshot, target, ticket) is not TargetOutcome.UNDECIDED:
        return None
    return Decision("TRANSFER", [TransactionId(ticket.app_id, ticket.aborted).action(now)], {"mode": "Abort"})


def _outcome(snapshot: Snapshot, target: TransferTarget, ticket: Ticket) -> TargetOutcome:
    if snapshot.table_id != target.table_id:
        return TargetOutcome.REPLACED
    return outcome_of(ticket, snapshot.transactions.get(ticket.app_id))


def _files_for(log: DeltaLog, target: TransferTarget, ticket: Ticket, snapshot: Snapshot) -> Sequence[StagedFile]:
    """The staged files as they fit this snapshot. Those of removed members are written again for the others. When a unit of order
    belongs to another member by now, as its slot has moved or it has got or lost a path, all files are written again, which
    keeps the order of each unit. The old files stay: another process may commit them, and clean-up deletes them when the
    transfer is decided."""
    destination = snapshot.destination
    if _outcome(snapshot, target, ticket) is not TargetOutcome.UNDECIDED:
        return ()
    routing, reachable = route_of(destination), set(destination.reachable_members)
    misplaced = target.member is None and any(is_misplaced(log.storage, file, routing) for file in target.files)
    kept = [file for file in target.files if file.member in reachable and not misplaced]
    if len(kept) == len(target.files):
        return target.files
    writer = _writer(log, destination, ticket)
    left = [file for file in target.files if file not in kept]
    before = accumulate((file.rows for file in left), initial=0)
    carried = joined(note_in(file.stats).shifted(rows) for file, rows in zip(left, before, strict=False))
    for file in left:
        with log.storage.open_input(file.path) as source:
            for batch in pq.ParquetFile(source).iter_batches():
                rows = batch.select(ROW_COLUMNS)
                if carried:  # all in one file, as before: their places are noted
                    writer.write_to(rows, sorted(reachable)[ticket.number % len(reachable)])
                elif file.member in reachable:
                    writer.write_routed(rows, _members_of(rows, file, routing))
                else:
                    writer.write_normalised(rows)
    moved = noted(writer.close(), carried)
    log.storage.sync([file.path for file in moved])
    return kept + moved


def _members_of(rows: pa.RecordBatch, file: StagedFile, routing: Routing) -> pa.Int32Array:
    """Only units of order leave a member that messages may go to."""
    units = rows.column("JMSXGroupID")
    here = pa.repeat(pa.scalar(file.member, pa.int32()), rows.num_rows)
    return pc.if_else(pc.is_valid(units), route(routing, units, 0), here)


def _writer(log: DeltaLog, destination: Destination, ticket: Ticket) -> MessageWriter:
    return MessageWriter(log.storage, destination, ticket.number, prefix=ticket.file_prefix)


# -- the sends of a transaction ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CollectedRows:
    """Neighbouring messages of one producer: `rows` of ROW_COLUMNS, with their ids, in pieces that may be paged. `turn`
    is the round-robin turn of the first."""

    rows: Iterable[pa.RecordBatch]
    balancing: Balancing
    turn: int
    producer: str


@dataclass(frozen=True)
class StagedSends:
    """Files that no log names yet, and the snapshot by which they were routed."""

    snapshot: Snapshot
    files: tuple[StagedFile, ...]


def stage_collected(
    log: DeltaLog, collected: Iterable[CollectedRows], table_id: str, ticket: Ticket | None = None
) -> StagedSends:
    """In the order of the messages, which were sent to the table `table_id`. `ticket`: of the transaction that appends the files;
    clean-up spares them until it is decided. Raises MessageSizeError, DestinationReplacedError and PagingError; then nothing is
    left."""
    snapshot = log.verify()  # the decision would not notice that the table was replaced
    if snapshot.table_id != table_id:
        raise DestinationReplacedError(f"{log.name} was dropped and created again: nothing was sent; send again")
    declared = snapshot.destination
    files: list[StagedFile] = []
    try:
        for run in collected:
            writer = MessageWriter(
                log.storage,
                declared,
                run.turn,
                prefix=ticket.file_prefix if ticket else "",
                routing=run.balancing.keeping(declared).routing(declared),
                producer=run.producer,
            )
            try:
                for rows in run.rows:
                    check_message_sizes(rows, declared.max_message_bytes)
                    writer.write_normalised(rows)
                files += writer.close()
            except BaseException:
                writer.abort()
                raise
        if ticket is not None:  # the decision outlives the power
            log.storage.sync([file.path for file in files])
    except BaseException:
        discard(log.storage, files)
        raise
    return StagedSends(snapshot, tuple(files))


def admit(log: DeltaLog, target: TransferTarget, ticket: Ticket, planned_epoch: int, deadline: float) -> Room:
    """Whether the target takes these files now: it is up, not paused, and its quotas have room, which is reserved. Waits until
    `deadline`, a time of time.monotonic(), as `send` does, and raises what it raises."""
    room = Room(log, Sender(f"transaction {ticket}", str(ticket)), deadline)
    members = [file.member for file in target.files]
    try:
        while True:
            snapshot = log.verify()
            log.admit({snapshot.destination.server_of(member) for member in members})
            if snapshot.table_id != target.table_id:
                raise DestinationReplacedError(f"{target.destination} was dropped and created again: nothing was sent")
            epoch = snapshot.destination.epoch
            try:
                snapshot.destination.check_up(members)
                snapshot.destination.check_production(members, planned_epoch)
                check_placed(log, snapshot, target.files)
                spent(snapshot, target.files, room.grants, now_ms())
                return room
            except QuotaNeeded as needed:
                room.reserve(needed)
            except InsertionPausedError:
                room.give_back()
                if not wait_for_change(log, epoch, deadline):
                    raise
    except BaseException:
        room.give_back()
        raise
