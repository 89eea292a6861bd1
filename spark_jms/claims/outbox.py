"""The acknowledgement table follows the store (C5, C14).

The store is the truth. Each acknowledgement waits in its record set's outbox until a row of the Delta table says the
same; the table's transaction of that record set is the position up to which it has them, so a repeated write adds
nothing, whoever repeats it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from spark_jms.core.ranges import Ranges, union
from spark_jms.core.record_set import Acknowledgement
from spark_jms.log.committer import Decision, commit, number
from spark_jms.log.delta_log import Action, DeltaLog
from spark_jms.log.domain import ACKNOWLEDGEMENT_SCHEMA
from spark_jms.log.files import FileHint, FileWriter, StagedFile, discard, read_stored
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import now_ms


class Outbox:
    def __init__(self, table: DeltaLog, destination: str, subscription: str) -> None:
        self.table = table
        self.destination, self.subscription = destination, subscription

    def write(self, rows: Mapping[int, Sequence[Acknowledgement]]) -> dict[int, int]:
        """One commit with the waiting rows of these members; returns up to which position each is in the table."""
        staged: list[StagedFile] = []
        written: dict[int, int] = {}

        def decide(snapshot: Snapshot) -> Decision | None:
            discard(self.table.storage, staged)
            staged.clear()
            transactions: list[Action] = []
            for member, waiting in rows.items():
                app_id = f"ack/{self.subscription}/{member}"
                position = snapshot.transactions.get(app_id, 0)
                new = [a for a in waiting if a.position > position]
                written[member] = max([position, *(a.position for a in waiting)])
                if new:
                    rows_to_write = [a for a in self._unwritten(snapshot, member, new, position) if a.picks]
                    if rows_to_write:
                        staged.append(self._stage(member, rows_to_write))
                    transactions.append(
                        {"txn": {"appId": app_id, "version": new[-1].position, "lastUpdated": now_ms()}}
                    )
            if not transactions:
                return None
            return Decision("WRITE", [*number(snapshot, staged, {}), *transactions], {"mode": "Append"})

        commit(self.table, decide)
        return written

    def _unwritten(
        self, snapshot: Snapshot, member: int, rows: Sequence[Acknowledgement], position: int
    ) -> list[Acknowledgement]:
        """One that was folded of what the table has and what it has not keeps the latter. A message is acknowledged once,
        so what the table says of it tells. Rare: a write that was never noted down, and a table out of reach since."""
        out = list(rows)
        for i, row in enumerate(rows):
            if row.since and row.since <= position:
                out[i] = replace(row, picks=row.picks - self._in_table(snapshot, member))
        return out

    def _in_table(self, snapshot: Snapshot, member: int) -> Ranges:
        found: list[Ranges] = []
        for file in snapshot.member_files(member).files:
            everything = Ranges.of((file.first, file.last))
            hint = FileHint(file.path, file.first, file.rows, file.bytes)
            for batch, _ in read_stored(self.table.storage, hint, everything, ["subscription", "ranges"]):
                for row in batch.to_pylist():
                    if row["subscription"] == self.subscription:
                        found.append(Ranges.from_json(json.loads(row["ranges"])))
        return union(found)

    def _stage(self, member: int, rows: Sequence[Acknowledgement]) -> StagedFile:
        writer = FileWriter(self.table.storage, member, ACKNOWLEDGEMENT_SCHEMA)
        columns = {
            "ordinal": np.arange(len(rows), dtype=np.int64),
            "subscription": [self.subscription] * len(rows),
            "consumer": [a.consumer for a in rows],
            "claim": [a.claim for a in rows],
            "epoch": [a.epoch for a in rows],
            "acknowledged_ms": [a.acknowledged_ms for a in rows],
            "messages": [a.picks.count for a in rows],
            "first": [a.picks.first for a in rows],
            "last": [a.picks.last for a in rows],
            "ranges": [json.dumps(a.picks.to_json()) for a in rows],
        }
        arrays = [pa.array(columns[f.name], f.type) for f in ACKNOWLEDGEMENT_SCHEMA]
        writer.append(pa.RecordBatch.from_arrays(arrays, schema=ACKNOWLEDGEMENT_SCHEMA))
        return writer.close()
