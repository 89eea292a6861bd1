"""The sends of a transaction to one destination: staged together, and admitted before the decision.

Features: T16 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from spark_jms.core.balancing import Balancing
from spark_jms.core.message import check_message_sizes
from spark_jms.core.staged_file import StagedFile
from spark_jms.core.transfer import Ticket, TransferTarget
from spark_jms.errors import DestinationReplacedError, InsertionPausedError
from spark_jms.log.admission import QuotaNeeded, Sender, spent
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.message_writer import MessageWriter
from spark_jms.log.send import Room, wait_for_change
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.staged_file import discard
from spark_jms.log.storage import now_ms
from spark_jms.log.unit_paths import check_placed


@dataclass(frozen=True)
class CollectedRows:
    """Neighbouring messages of one producer: `rows` of log/transfer.ROW_COLUMNS, with their ids, in pieces that may be paged. `turn`
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
            log.admit()
            snapshot = log.verify()
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
