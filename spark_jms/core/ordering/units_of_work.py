"""Units of work: messages that are delivered together or not at all. Pure.

Three properties make a message part of a unit of work, on a destination that handles them
(`unitOfWorkHandlingPolicy: SingleMessageDelivery`):

    JMS_BEA_UnitOfWork                 string    the unit's name; never use one again
    JMS_BEA_UnitOfWorkSequenceNumber   integer   from 1 on
    JMS_BEA_IsUnitOfWorkEnd            boolean   true for the last one

The parts of a unit go to one member, in any order and from any number of senders. Each subscription judges, over its
unfinished messages, in the order of arrival:

    a part                                                    is faulty, and leaves the unit
    no number, or one below 1; with a unit of order too       always
    a number that is there already                            the later one
    a number above that of the end, or a second end           the later one
    an end below a number that is there already               the end

    the unit of the other parts is                            then
    expired: one of them has expired, or it is incomplete     what is there of it is finished, undelivered
             and its first part was sent too long ago
    complete: 1, 2 … to the end; available and due            it is delivered, in the order of the numbers
    anything else                                             it waits

A unit has its place in the order of delivery where its last part arrived.

Features: T12 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.messages.arrays import empty_table
from spark_jms.core.messages.properties import MapEntries
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.messages.types import readable
from spark_jms.errors import MessageFormatError

UNIT, NUMBER, END = "JMS_BEA_UnitOfWork", "JMS_BEA_UnitOfWorkSequenceNumber", "JMS_BEA_IsUnitOfWorkEnd"
PARTS_SCHEMA = pa.schema(
    [
        ("sequence", pa.int64()),
        ("unit", pa.string()),
        ("number", pa.int64()),
        ("end", pa.bool_()),
        ("fault", pa.string()),  # what is wrong with the message alone; null: nothing
        ("sent_ms", pa.int64()),
        ("due_ms", pa.int64()),  # 0: at once
        ("expires_ms", pa.int64()),  # 0: never
        ("taken", pa.bool_()),  # by the consumer's selector
    ]
)
PART_COLUMNS = ("JMSXGroupID", "properties", "JMSTimestamp", "JMSDeliveryTime", "JMSExpiration")  # what `parts` reads
NO_PARTS = empty_table(PARTS_SCHEMA)
ASLEEP_SCHEMA = PARTS_SCHEMA.append(pa.field("wakes_ms", pa.int64()))  # when the unit may expire
_FOR_EVER_MS = 2**63 - 1
_MOST_CHUNKS = 64
_NONE_ASLEEP = empty_table(ASLEEP_SCHEMA)


@dataclass(frozen=True)
class WorkVerdict:
    """What becomes of the parts of one member now. `deliverable`: rows of PARTS_SCHEMA, whole units; `refused`: complete units
    that the selector does not take; `faulty`: reason -> parts. All others wait, or are claimed. `incomplete`: rows of ASLEEP_SCHEMA,
    in no order, of units that only another part or the end of their time can change."""

    deliverable: pa.Table
    refused: Ranges = EMPTY
    expired: Ranges = EMPTY
    faulty: Mapping[str, Ranges] = field(default_factory=dict)
    incomplete: pa.Table = field(default_factory=lambda: empty_table(ASLEEP_SCHEMA))


# -- what the properties say -------------------------------------------------------------------------------------------
def unit_names(properties: Any) -> pa.StringArray:
    """The unit of work of each row, or null. `properties` is a map array."""
    return readable(_property(MapEntries(properties), UNIT))


def routing_groups(rows: pa.RecordBatch, handles_units_of_work: bool) -> pa.StringArray:
    """What decides the member of each row: its unit of order, or its unit of work; null: neither."""
    groups = rows.column("JMSXGroupID")
    properties = rows.column("properties")
    if not handles_units_of_work or properties.null_count == rows.num_rows:
        return groups
    return pc.coalesce(groups, unit_names(properties))


def check_parts(rows: pa.RecordBatch) -> None:
    """Raises MessageFormatError for a sender's row whose part of a unit of work is wrong in itself. Contradictions between
    messages are not looked for: they may be of different senders."""
    if rows.column("properties").null_count == rows.num_rows:
        return
    said = _said(rows)
    faults = said["fault"]
    if faults.null_count < rows.num_rows:
        row = pc.index(pc.is_valid(faults), True).as_py()
        raise MessageFormatError(
            f"row {row}: {faults[row].as_py()} (unit of work {said['unit'][row].as_py()!r}): nothing was sent"
        )


def parts(rows: pa.RecordBatch, sequences: pa.Int64Array, taken: pa.BooleanArray) -> pa.Table:
    """The rows that belong to units of work, as PARTS_SCHEMA. `rows` has PART_COLUMNS."""
    said = _said(rows)
    sent, delivery = rows.column("JMSTimestamp"), rows.column("JMSDeliveryTime")
    due = pc.if_else(pc.greater(delivery, sent), delivery, 0)
    columns = [sequences, *said.columns, sent, due, rows.column("JMSExpiration"), taken]
    return pa.Table.from_arrays(columns, schema=PARTS_SCHEMA).filter(pc.is_valid(said["unit"]))


def _said(rows: pa.RecordBatch) -> pa.Table:
    """The columns `unit`, `number`, `end` and `fault` of these rows."""
    entries = MapEntries(rows.column("properties"))
    names = readable(_property(entries, UNIT))
    numbers, ends = _numbers(_property(entries, NUMBER)), _property(entries, END)
    grouped = pc.and_(pc.is_valid(names), pc.is_valid(rows.column("JMSXGroupID")))
    faults = pc.case_when(
        pc.make_struct(
            grouped,
            pc.equal(pc.binary_length(names), 0),
            pc.and_(pc.is_valid(names), pc.invert(pc.fill_null(pc.greater_equal(numbers, 1), False))),
            pc.and_(pc.is_valid(names), pc.invert(pc.is_in(ends, pa.array(["true", "false", None])))),
        ),
        "a message has a unit of order (JMSXGroupID) and a unit of work, but may have only one of them",
        f"{UNIT} is empty, but must be the name of the unit",
        f"{NUMBER} is missing, or is not a whole number from 1 on",
        f"{END} is neither true nor false",
    )
    said = [names, numbers, pc.fill_null(pc.equal(ends, "true"), False), faults]
    return pa.table(said, names=["unit", "number", "end", "fault"])


def _property(entries: MapEntries, name: str) -> Any:
    return entries.items.take(entries.of(pc.equal(entries.keys, name)))


def _numbers(texts: Any) -> Any:
    try:
        return pc.cast(texts, pa.int64())
    except pa.ArrowInvalid:
        whole = pc.match_substring_regex(texts, r"^-?[0-9]{1,18}$")
        return pc.cast(pc.if_else(whole, texts, None), pa.int64())


# -- the verdict -------------------------------------------------------------------------------------------------------
def judge(
    parts: pa.Table, available: Ranges, now_ms: int, expires_after_ms: int | None, due_ms: int | None = None
) -> WorkVerdict:
    """`parts`: all unfinished ones of one member, in the order of their sequences. `available`: those that may be claimed.
    `due_ms`: messages with a later delivery time are delayed; it is earlier than `now_ms` while insertion is paused.
    `expires_after_ms`: when an incomplete unit expires, counted from the sending of its first part (None: never)."""
    if not parts.num_rows:
        return WorkVerdict(NO_PARTS)
    free = are_in(parts["sequence"], available)
    faults = _faults(parts)
    faulty = _by_reason(parts.append_column("reason", faults).filter(pc.and_(pc.is_valid(faults), free)))
    good = parts.append_column("free", free).filter(pc.is_null(faults))
    if not good.num_rows:
        return WorkVerdict(NO_PARTS, faulty=faulty)
    over = pc.and_(pc.greater(good["expires_ms"], 0), pc.less_equal(good["expires_ms"], now_ms))
    ends = pc.if_else(pc.greater(good["expires_ms"], 0), good["expires_ms"], _FOR_EVER_MS)
    rows = (
        good.append_column("over", over)
        .append_column("due", pc.less_equal(good["due_ms"], now_ms if due_ms is None else due_ms))
        .append_column("ends_ms", ends)
    )
    units = rows.group_by("unit", use_threads=False).aggregate(
        [
            ("number", "count"),
            ("number", "max"),
            ("end", "any"),
            ("free", "all"),
            ("due", "all"),
            ("over", "any"),
            ("taken", "all"),
            ("sent_ms", "min"),
            ("ends_ms", "min"),
        ]
    )
    whole = pc.and_(units["end_any"], pc.equal(units["number_count"], units["number_max"]))
    over, wakes = units["over_any"], units["ends_ms_min"]
    if expires_after_ms is not None:
        late_ms = pc.add(units["sent_ms_min"], expires_after_ms)
        over = pc.or_(over, pc.and_not(pc.less_equal(late_ms, now_ms), whole))
        wakes = pc.min_element_wise(wakes, late_ms)
    doubtful = pc.is_in(units["unit"], pc.unique(parts["unit"].filter(pc.is_valid(faults))))
    incomplete = pc.and_not(pc.invert(pc.or_(whole, over)), doubtful)
    expired = pc.and_(over, units["free_all"])
    ready = pc.and_not(pc.and_(pc.and_(whole, units["free_all"]), units["due_all"]), expired)
    of = pc.index_in(good["unit"], value_set=units["unit"].combine_chunks())

    def chosen(mask: Any) -> pa.Table:
        return good.filter(mask.combine_chunks().take(of)).drop_columns("free")

    return WorkVerdict(
        chosen(pc.and_(ready, units["taken_all"])),
        _ranges(chosen(pc.and_not(ready, units["taken_all"]))),
        _ranges(chosen(expired)),
        faulty,
        _asleep(chosen(incomplete), wakes.combine_chunks().take(of), incomplete.combine_chunks().take(of)),
    )


def _asleep(rows: pa.Table, wakes: Any, mask: Any) -> pa.Table:
    return rows.append_column(ASLEEP_SCHEMA.field("wakes_ms"), wakes.filter(mask))


def are_in(sequences: Any, chosen: Ranges) -> Any:
    """Of a column. It costs by the smaller part: of a million waiting parts, all but a few are available and unfinished."""
    everything = Ranges.from_numbers(sequences.combine_chunks())
    others = everything - chosen
    if 2 * others.count > everything.count:
        return pc.is_in(sequences, (everything & chosen).numbers())
    return pc.invert(pc.is_in(sequences, others.numbers()))


def _faults(parts: pa.Table) -> pa.StringArray:
    """The reason why each part is faulty, or null. Only units that cannot be right are looked at part by part."""
    faults = parts["fault"].combine_chunks()
    alone = pc.is_null(faults)
    units = (
        parts.filter(alone)
        .group_by("unit", use_threads=False)
        .aggregate([("number", "count"), ("number", "count_distinct"), ("number", "max"), ("end", "sum")])
    )
    last = parts.filter(pc.and_(alone, parts["end"])).group_by("unit", use_threads=False).aggregate([("number", "min")])
    end = last["number_min"].take(pc.index_in(units["unit"], value_set=last["unit"].combine_chunks()))
    wrong = pc.or_(
        pc.or_(
            pc.not_equal(units["number_count"], units["number_count_distinct"]),
            pc.greater(units["end_sum"], 1),
        ),
        pc.fill_null(pc.less(end, units["number_max"]), False),
    )
    suspects = units.filter(wrong)["unit"].combine_chunks()
    if not len(suspects):
        return faults
    found = faults.to_pylist()
    looked_at = pc.indices_nonzero(pc.and_(alone, pc.is_in(parts["unit"], suspects))).to_pylist()
    known: dict[str, _Numbers] = {}
    for row in looked_at:
        unit, number, is_end = (parts[name][row].as_py() for name in ("unit", "number", "end"))
        found[row] = known.setdefault(unit, _Numbers()).fault(number, is_end)
    return pa.array(found, pa.string())


class _Numbers:
    """The numbers of one unit that have arrived."""

    def __init__(self) -> None:
        self._known: set[int] = set()
        self._end: int | None = None

    def fault(self, number: int, is_end: bool) -> str | None:
        """What is wrong with the next part; None: nothing, and it belongs to the unit."""
        if number in self._known:
            return f"its unit of work has a message {number} already"
        if self._end is not None and number > self._end:
            return f"its number {number} is above that of the end of its unit of work, {self._end}"
        if is_end and self._known and number < max(self._known):
            return (
                f"it is the end of its unit of work by number {number}, which has a message {max(self._known)} already"
            )
        if is_end and self._end is not None:
            return f"its unit of work has an end already, number {self._end}"
        self._known.add(number)
        self._end = number if is_end else self._end
        return None


def _by_reason(rows: pa.Table) -> dict[str, Ranges]:
    return {
        reason: _ranges(rows.filter(pc.equal(rows["reason"], reason)))
        for reason in pc.unique(rows["reason"]).to_pylist()
    }


def _ranges(rows: pa.Table) -> Ranges:
    return Ranges.from_numbers(rows["sequence"].combine_chunks())


# -- the order of delivery ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class WorkOrder:
    """Messages in the order of delivery. Behind `ends[n]` of them a batch may end: a unit is not split."""

    sequences: pa.Int64Array
    ends: pa.Int64Array


def work_order(sequences: pa.Int64Array, units: pa.StringArray, numbers: pa.Int64Array) -> WorkOrder:
    """Of single messages (unit null) and whole units."""
    at, ranks = _places(sequences, units, numbers)
    ranks = ranks.take(at)
    changes = pc.not_equal(ranks[1:], ranks[:-1])
    ends = pa.concat_arrays([pc.add(pc.indices_nonzero(changes).cast(pa.int64()), 1), pa.array([len(at)], pa.int64())])
    return WorkOrder(sequences.take(at), ends)


@dataclass(frozen=True)
class UnitOfWorkOrder:
    """As SortOrder, for a destination that handles units of work."""

    @property
    def columns(self) -> list[str]:
        return ["properties"]

    def delivery(self, rows: pa.Table, sequences: pa.Int64Array, redelivered: pa.BooleanArray) -> pa.Int64Array:
        """The positions of `rows`, which are single messages and whole units, in the order of delivery."""
        entries = MapEntries(rows.column("properties").combine_chunks())
        return _places(sequences, _property(entries, UNIT), _numbers(_property(entries, NUMBER)))[0]


def _places(sequences: Any, units: Any, numbers: Any) -> tuple[Any, Any]:
    """The positions in the order of delivery, and the rank of each row: the sequence of its unit's last part."""
    table = pa.table({"sequence": sequences, "unit": units})
    last = table.filter(pc.is_valid(units)).group_by("unit", use_threads=False).aggregate([("sequence", "max")])
    of_unit = last["sequence_max"].combine_chunks().take(pc.index_in(units, value_set=last["unit"].combine_chunks()))
    ranks = pc.coalesce(pc.if_else(pc.is_valid(units), of_unit, None), sequences)
    keys = pa.table({"rank": ranks, "number": numbers, "sequence": sequences})
    by = [("rank", "ascending"), ("number", "ascending"), ("sequence", "ascending")]
    return pc.sort_indices(keys, sort_keys=by).view(pa.int64()), ranks


# -- from plan to plan -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class PendingParts:
    """The unfinished parts of units of work of one member, as a consumer knows them from plan to plan. `looked_at`: all messages,
    `sequences` those that are parts. `awake` is PARTS_SCHEMA in the order of the sequences, `asleep` ASLEEP_SCHEMA in no order.
    `patience_ms`: by which the times in `asleep` were found.

    A million parts may wait for the rest of their units, and a plan comes several times a second. So a plan judges only the parts
    that are *awake*:

        the unit of a part ...                                 the part is
        ----------------------                                 -----------
        is incomplete, not expired, and has no faulty part     asleep, until a part of the unit arrives or the unit may expire
        anything else                                          awake

    What is asleep gets no verdict: only another part can complete its unit, and only time can end it. All parts of a unit are
    awake, or all are asleep.
    """

    looked_at: Ranges = EMPTY
    sequences: Ranges = EMPTY
    awake: pa.Table = field(default_factory=lambda: NO_PARTS)
    asleep: pa.Table = field(default_factory=lambda: _NONE_ASLEEP)
    patience_ms: int | None = None

    def unfinished(self, left: Ranges) -> PendingParts:
        """`left`: what is unfinished of the messages looked at."""
        if left == self.looked_at:
            return self
        parts = self.sequences & left
        if parts == self.sequences:
            return replace(self, looked_at=left)
        awake, asleep = (rows.filter(are_in(rows["sequence"], parts)) for rows in (self.awake, self.asleep))
        return replace(self, looked_at=left, sequences=parts, awake=awake, asleep=asleep)

    def with_new(self, messages: Ranges, parts: pa.Table) -> PendingParts:
        """With messages that were just looked at, of which these are parts (PARTS_SCHEMA, in no order)."""
        looked_at = self.looked_at | messages
        if not parts.num_rows:
            return replace(self, looked_at=looked_at)
        known = self._waking(pc.is_in(self.asleep["unit"], pc.unique(parts["unit"])))
        new = Ranges.from_numbers(parts["sequence"].combine_chunks())
        awake = pa.concat_tables([known.awake, parts]).sort_by("sequence")
        return replace(known, looked_at=looked_at, sequences=self.sequences | new, awake=awake)

    def judged(
        self, available: Ranges, now_ms: int, patience_ms: int | None, due_ms: int | None = None
    ) -> tuple[PendingParts, WorkVerdict]:
        """As `judge` of all parts; and what is asleep then."""
        over = pc.less_equal(self.asleep["wakes_ms"], now_ms)
        if patience_ms != self.patience_ms:
            over = pc.is_valid(over)
        known = self._waking(over)
        verdict = judge(known.awake, available, now_ms, patience_ms, due_ms)
        if not verdict.incomplete.num_rows:
            return replace(known, patience_ms=patience_ms), verdict
        asleep = pa.concat_tables([known.asleep, verdict.incomplete])
        if asleep["unit"].num_chunks > _MOST_CHUNKS:
            asleep = asleep.combine_chunks()
        falling = Ranges.from_numbers(verdict.incomplete["sequence"].combine_chunks())
        awake = known.awake.filter(pc.invert(are_in(known.awake["sequence"], falling)))
        return replace(known, awake=awake, asleep=asleep, patience_ms=patience_ms), verdict

    def _waking(self, rows: pa.ChunkedArray) -> PendingParts:
        """`rows`: which of those that are asleep wake."""
        if not pc.any(rows).as_py():
            return self
        woken = self.asleep.filter(rows).select(PARTS_SCHEMA.names)
        awake = pa.concat_tables([self.awake, woken]).sort_by("sequence")
        return replace(self, awake=awake, asleep=self.asleep.filter(pc.invert(rows)))
