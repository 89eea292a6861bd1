"""Writing the outbox of record sets to the acknowledgement table.

The store is the truth, and the table follows it. An acknowledgement waits in its record set's outbox until it is a row of
the table. A transaction of the table keeps the position up to which it has a record set's rows, so that a repeated write
adds nothing, whichever process repeats it.

Features: C5, C14 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from spark_jms.core.acknowledgement import Acknowledgement
from spark_jms.core.ranges import Ranges, union
from spark_jms.core.staged_file import StagedFile
from spark_jms.log.acknowledgements import ACKNOWLEDGEMENT_SCHEMA
from spark_jms.log.commit import Decision, commit_prepared
from spark_jms.log.delta_log import Action, DeltaLog
from spark_jms.log.file_reader import read_stored
from spark_jms.log.file_writer import FileWriter
from spark_jms.log.send import number
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.staged_file import discard
from spark_jms.log.storage import now_ms


@dataclass
class StagedRows:
    """The rows of one attempt: their files, and the new position of each source of rows."""

    files: list[StagedFile] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)  # txn app id -> position


class AcknowledgementTable:
    """The rows of one subscription in the acknowledgement table of its destination, whose messages are in the table
    `table_id`."""

    def __init__(self, table: DeltaLog, table_id: str, subscription: str) -> None:
        self.table, self.table_id, self.subscription = table, table_id, subscription

    def write(self, outboxes: Mapping[int, Sequence[Acknowledgement]]) -> dict[int, int]:
        """Write the outboxes of these members in one commit. Returns up to which position the table has each."""
        staged = StagedRows()
        written: dict[int, int] = {}

        def prepare(snapshot: Snapshot) -> StagedRows:
            nonlocal staged
            discard(self.table.storage, staged.files)
            staged = StagedRows()
            for member, waiting in outboxes.items():
                app_id = position_id(self.table_id, self.subscription, member)
                position = snapshot.transactions.get(app_id, 0)
                new = [row for row in waiting if row.position > position]
                written[member] = max([position, *(row.position for row in waiting)])
                if new:
                    rows = [row for row in self._unwritten(snapshot, member, new, position) if row.picks]
                    if rows:
                        staged.files.append(self._stage(member, rows))
                    staged.positions[app_id] = new[-1].position
            return staged

        now = now_ms()
        commit_prepared(self.table, prepare, lambda snapshot, ready: decide_rows(snapshot, ready, now))
        return written

    def _unwritten(
        self, snapshot: Snapshot, member: int, rows: Sequence[Acknowledgement], position: int
    ) -> list[Acknowledgement]:
        """A row folded of acknowledgements in the table and of later ones keeps only the latter. A message is acknowledged
        once, so the rows in the table tell which. Rare: an earlier write was not noted in the store, and then the table
        could not be written for a long time."""
        out = list(rows)
        for i, row in enumerate(rows):
            if row.since and row.since <= position:
                out[i] = replace(row, picks=row.picks - self._in_table(snapshot, member))
        return out

    def _in_table(self, snapshot: Snapshot, member: int) -> Ranges:
        found: list[Ranges] = []
        for file in snapshot.member_files(member).files:
            everything = Ranges.of((file.first, file.last))
            for batch, _ in read_stored(self.table.storage, file.hint, everything, ["subscription", "ranges"]):
                for row in batch.to_pylist():
                    if row["subscription"] == self.subscription:
                        found.append(Ranges.from_json(json.loads(row["ranges"])))
        return union(found)

    def _stage(self, member: int, rows: Sequence[Acknowledgement]) -> StagedFile:
        writer = FileWriter(self.table.storage, member, ACKNOWLEDGEMENT_SCHEMA)
        columns = {
            "ordinal": range(len(rows)),
            "subscription": [self.subscription] * len(rows),
            "consumer": [row.consumer for row in rows],
            "claim": [row.claim for row in rows],
            "epoch": [row.epoch for row in rows],
            "acknowledged_ms": [row.acknowledged_ms for row in rows],
            "messages": [row.picks.count for row in rows],
            "first": [row.picks.first for row in rows],
            "last": [row.picks.last for row in rows],
            "ranges": [json.dumps(row.picks.to_json()) for row in rows],
        }
        arrays = [pa.array(columns[f.name], f.type) for f in ACKNOWLEDGEMENT_SCHEMA]
        writer.append(pa.RecordBatch.from_arrays(arrays, schema=ACKNOWLEDGEMENT_SCHEMA))
        return writer.close()


def position_id(table_id: str, subscription: str, member: int) -> str:
    """The txn app id that keeps the position of one record set. Of the table, because positions of a destination that is
    created again start at 1 again."""
    return f"ack/{table_id}/{subscription}/{member}"


def decide_rows(snapshot: Snapshot, staged: StagedRows, now: int) -> Decision | None:
    """Pure. Append the rows, and keep the positions in the same commit."""
    if not staged.positions:
        return None
    positions: list[Action] = [
        {"txn": {"appId": app_id, "version": position, "lastUpdated": now}}
        for app_id, position in staged.positions.items()
    ]
    return Decision("WRITE", [*number(snapshot, staged.files, now).actions, *positions], {"mode": "Append"})
