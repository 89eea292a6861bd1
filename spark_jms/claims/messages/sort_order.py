"""What one member offers to a batch, in the order of delivery.

A plain destination delivers in the order of the sequences. For a sorted one the order needs the keys of every message that
may be delivered now. Reading and sorting them costs time for the whole backlog, so the planner keeps the order that it has
computed: the next plan continues behind what was claimed, and only new or returned messages make it sort again.

Features: C12, T12, T15 (docs/FEATURES.md)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.claims.messages.scan import read_files
from spark_jms.core.messages.properties import PromotedColumns
from spark_jms.core.messages.ranges import EMPTY, Ranges, ascends, union, view
from spark_jms.core.ordering.sort_order import SortOrder
from spark_jms.core.records.batch import MAX_RANGES_PER_MEMBER
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import MAX_ORDER
from spark_jms.log.messages.data_files import read_stored
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.files import DataFile
from spark_jms.log.tables.snapshot import Snapshot


@dataclass(frozen=True)
class MemberBacklog:
    """What one member offers to a batch. `picks` may be claimed. `order`: their sequences in the order of delivery; None:
    ascending. `ends`: behind how many of them a batch may end; None: behind each. `expired` are over: the holder expires them.
    `alone` of the picks are claimed one by one (core/records/redelivery.py)."""

    picks: Ranges = EMPTY
    order: pa.Int64Array | None = None
    ends: pa.Int64Array | None = None
    expired: Ranges = EMPTY
    alone: Ranges = EMPTY

    @property
    def together(self) -> int:
        """How many of the first messages one claim may have: those before the first that is claimed alone."""
        if not self.alone:
            return self.picks.count
        if self.order is None:
            return self.picks.between(1, self.alone.first - 1).count
        before: int = pc.index(pc.is_in(self.order, self.alone.numbers()), True).as_py()
        if self.ends is None:
            return before
        places = view(self.ends)
        whole = bisect_right(places, before)
        return places[whole - 1] if whole else 0

    @property
    def one(self) -> int:
        """How many messages the consumer shows first: a single one, or a unit of work."""
        return view(self.ends)[0] if self.ends is not None else 1

    def shown(self, picks: Ranges) -> tuple[Ranges, ...] | None:
        """What a consumer with these first picks shows at a time, as `Claim.order` has it."""
        if self.order is None:
            return None
        ends = view(self.ends)[:MAX_ORDER] if self.ends is not None else range(1, MAX_ORDER + 1)
        first, found = 0, list[Ranges]()
        for end in ends:
            if first >= picks.count:
                break
            found.append(Ranges.from_numbers(self.order[first:end]))
            first = end
        return tuple(found)

    def beside(self, expired: Ranges) -> MemberBacklog:
        return replace(self, expired=self.expired | expired) if expired else self

    def first(self, count: int) -> Ranges:
        """The first `count` messages, or somewhat fewer if they are too scattered for one claim or belong together with
        later ones. At least one unit of work, however large."""
        if self.order is None:
            return self.picks.take(count).take_ranges(MAX_RANGES_PER_MEMBER)
        if self.ends is not None:
            return self._whole(self.ends, count) if count else EMPTY
        while True:
            chosen = Ranges.from_numbers(self.order[:count])
            if len(chosen) <= MAX_RANGES_PER_MEMBER:
                return chosen
            count = count * MAX_RANGES_PER_MEMBER // len(chosen)

    def _whole(self, ends: pa.Int64Array, count: int) -> Ranges:
        assert self.order is not None
        places = view(ends)
        last = max(bisect_right(places, count) - 1, 0)
        while True:
            chosen = Ranges.from_numbers(self.order[: places[last]])
            if len(chosen) <= MAX_RANGES_PER_MEMBER or not last:
                return chosen
            last = last * MAX_RANGES_PER_MEMBER // len(chosen)


class SortedBacklogs:
    """The order of each member of a sorted destination, as far as it is known. Not thread-safe."""

    def __init__(self, table: DeltaLog) -> None:
        self._table = table
        self._known: dict[int, tuple[SortOrder, MemberBacklog]] = {}

    def offer(
        self, snapshot: Snapshot, member: int, state: RecordSet, picks: Ranges, order: SortOrder
    ) -> MemberBacklog:
        """`picks` in the order of delivery."""
        known = self._known.get(member)
        kept = _without_claimed(known[1], picks) if known and known[0] == order else None
        made = MemberBacklog(picks, self._sorted(snapshot, member, state, picks, order)) if kept is None else kept
        # A unit's next message has a place of its own once the one before it is delivered.
        if order.follows_deliveries or any(file.has_groups for file in snapshot.member_files(member).files):
            self._known.pop(member, None)
        else:
            self._known[member] = order, made
        return made

    def _sorted(
        self, snapshot: Snapshot, member: int, state: RecordSet, picks: Ranges, order: SortOrder
    ) -> pa.Int64Array:
        sequences, rows = self._keys(snapshot, member, picks, order)
        redelivered = pc.is_in(sequences, union(state.redelivered(picks).values()).numbers())
        return sequences.take(order.by_keys(rows, sequences, redelivered))

    def _keys(self, snapshot: Snapshot, member: int, picks: Ranges, order: SortOrder) -> tuple[pa.Int64Array, pa.Table]:
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


def _without_claimed(known: MemberBacklog, picks: Ranges) -> MemberBacklog | None:
    """The known order without messages that are not in `picks` any more; None when it lacks some of `picks`."""
    assert known.order is not None
    claimed = known.picks - picks
    if picks.count != known.picks.count - claimed.count:
        return None
    if not claimed:
        return known
    if Ranges.from_numbers(known.order[: claimed.count]) == claimed:
        return MemberBacklog(picks, known.order[claimed.count :])
    return MemberBacklog(picks, known.order.filter(pc.invert(pc.is_in(known.order, claimed.numbers()))))
