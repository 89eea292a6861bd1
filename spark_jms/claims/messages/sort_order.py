"""The order of delivery of a sorted member.

A plain destination delivers in the order of the sequences. For a sorted one the order needs the keys of every message that
may be delivered now. Reading and sorting them costs time for the whole backlog, so the planner keeps the order that it has
computed: the next plan continues behind what was claimed, and only new or returned messages make it sort again.

Features: C12, T12, T15 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.claims.messages.scan import read_files
from spark_jms.core.messages.properties import PromotedColumns
from spark_jms.core.messages.ranges import Ranges, ascends, union
from spark_jms.core.ordering.sort_order import SortOrder
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.take import Offer
from spark_jms.log.messages.data_files import read_stored
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.files import DataFile
from spark_jms.log.tables.snapshot import Snapshot


class SortedBacklogs:
    """The order of each member of a sorted destination, as far as it is known. Not thread-safe."""

    def __init__(self, table: DeltaLog) -> None:
        self._table = table
        self._known: dict[int, tuple[SortOrder, Offer]] = {}

    def offer(self, snapshot: Snapshot, member: int, state: RecordSet, picks: Ranges, order: SortOrder) -> Offer:
        """`picks` in the order of delivery."""
        known = self._known.get(member)
        kept = _without_claimed(known[1], picks) if known and known[0] == order else None
        made = Offer(picks, self._sorted(snapshot, member, state, picks, order)) if kept is None else kept
        # A unit's next message has a place of its own once the one before it is delivered.
        if order.follows_deliveries or snapshot.member_files(member).has_groups:
            self._known.pop(member, None)
        else:
            self._known[member] = order, made
        return made

    def _sorted(
        self, snapshot: Snapshot, member: int, state: RecordSet, picks: Ranges, order: SortOrder
    ) -> pa.Int64Array:
        sequences, rows = self.keys(snapshot, member, picks, order)
        redelivered = pc.is_in(sequences, union(state.redelivered(picks).values()).numbers())
        return sequences.take(order.by_keys(rows, sequences, redelivered))

    def keys(self, snapshot: Snapshot, member: int, picks: Ranges, order: SortOrder) -> tuple[pa.Int64Array, pa.Table]:
        """The sequences of `picks` and what sorts them (SortOrder.key_rows). A file that compaction has replaced is looked up
        again; messages that are in no file any more have no keys, and the consumer that reads them tells that they are gone."""
        schema = order.key_schema
        promoted = PromotedColumns.of(snapshot.destination.promoted_properties).sorted_by(order.keys)

        def without_keys(messages: Ranges) -> tuple[pa.Int64Array, pa.RecordBatch]:
            nothing = [pa.nulls(messages.count, field.type) for field in schema]
            return messages.numbers(), pa.RecordBatch.from_arrays(nothing, schema=schema)

        def read(file: DataFile, part: Ranges) -> Iterator[tuple[pa.Int64Array, pa.RecordBatch]]:
            there = promoted & file.promoted
            columns = order.columns_with(there)
            if columns == ["JMSXGroupID"] and not file.has_groups:
                yield without_keys(part)  # FIFO and LIFO read nothing
                return
            for batch, numbers in read_stored(self._table.storage, file.hint, part, columns):
                yield numbers, order.key_rows(batch, there)

        parts, left = read_files(self._table, member, picks, read, table_id=snapshot.table_id)
        if left:
            parts.append(without_keys(left))
        parts.sort(key=lambda item: item[0][0].as_py())
        rows = pa.Table.from_batches([batch for _, batch in parts], schema)
        sequences = pa.concat_arrays([numbers for numbers, _ in parts])
        if left and not ascends(sequences):
            by_sequence = pc.sort_indices(sequences)
            sequences, rows = sequences.take(by_sequence), rows.take(by_sequence)
        return sequences, rows


def _without_claimed(known: Offer, picks: Ranges) -> Offer | None:
    """The known order without messages that are not in `picks` any more; None when it lacks some of `picks`."""
    assert known.order is not None
    claimed = known.picks - picks
    if picks.count != known.picks.count - claimed.count:
        return None
    if not claimed:
        return known
    if Ranges.from_numbers(known.order[: claimed.count]) == claimed:
        return Offer(picks, known.order[claimed.count :])
    return Offer(picks, known.order.filter(pc.invert(pc.is_in(known.order, claimed.numbers()))))
