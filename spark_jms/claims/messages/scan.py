"""Which messages may be delivered now: selector, delay, expiration, units of order.

Statistics decide first: a file whose messages may all be delivered is taken as a range, and one whose messages the selector
refuses is refused, both unopened. Of any other file only the header columns are read, once: the planner remembers what a selector
refuses. Within a unit of order, a message that is not delivered blocks those behind it (core/ordering/units_of_order.py), so the
messages of a member are looked at in order, even when a file has to be looked up again: compaction replaces files meanwhile, and a
file that is missing is looked up in the newest snapshot.

Features: C7, C12, C13, C17, D6 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.messages.arrays import repeated
from spark_jms.core.messages.columns import NON_PERSISTENT, STATISTICS_COLUMNS
from spark_jms.core.messages.ranges import EMPTY, Ranges, union
from spark_jms.core.ordering.blocked_units import BlockedUnits
from spark_jms.core.ordering.units_of_order import NO_UNITS, UnitMessages
from spark_jms.core.records.remembered import Later
from spark_jms.errors import DestinationReplacedError
from spark_jms.log.messages.data_files import read_stored
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.files import DataFile
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import Storage

if TYPE_CHECKING:
    from spark_jms.core.selector import Selector

ATTEMPTS = 3
T = TypeVar("T")


class Condition(NamedTuple):
    """A comparison that every message fulfils that a selector takes."""

    name: str
    op: str
    value: object

    def __str__(self) -> str:
        value = "'" + self.value.replace("'", "''") + "'" if isinstance(self.value, str) else str(self.value).upper()
        return f"{self.name} {self.op} {value}"


@dataclass(frozen=True)
class Scan:
    """`picks` may be delivered now; the selector refuses `refused`; `expired` are over; `missed` were sent while the server of the
    subscription was down, and do not wait for it; `gone` are in the log but not on disk; `left` were not looked at, because a
    bound was reached. All others are delayed or blocked.
    `refused_units`: the refused ones that block others of their units; `held_back`: those that the selector takes, and that wait
    behind others of their units, where what it refuses blocks. `later`: those of the delayed ones that need no look before their
    time. `blocked`: those that could be delivered, but for an earlier one of their unit."""

    picks: Ranges = EMPTY
    refused: Ranges = EMPTY
    expired: Ranges = EMPTY
    missed: Ranges = EMPTY
    gone: Ranges = EMPTY
    left: Ranges = EMPTY
    read: int = 0  # rows whose headers were read
    refused_units: UnitMessages = NO_UNITS
    held_back: UnitMessages = NO_UNITS
    later: tuple[Later, ...] = ()
    blocked: tuple[Later, ...] = ()

    def __or__(self, other: Scan) -> Scan:
        """What both have found together; `gone` is that of the later one."""
        return Scan(
            self.picks | other.picks,
            self.refused | other.refused,
            self.expired | other.expired,
            self.missed | other.missed,
            other.gone,
            self.left | other.left,
            self.read + other.read,
            UnitMessages.together([self.refused_units, other.refused_units]),
            UnitMessages.together([self.held_back, other.held_back]),
            self.later + other.later,
            self.blocked + other.blocked,
        )


@dataclass(frozen=True)
class Question:
    """Which messages are asked for. Without `now_ms` delay and expiration do not matter, and without `blocked` units of order
    do not (a browser shows all). `due_ms`: messages with a later delivery time are delayed; it is earlier than `now_ms`
    while insertion is paused. The scan adds the units that it finds blocked to `blocked`. `missed`: sent while the server of
    the subscription was down; those that are not persistent are over."""

    selector: Selector | None = None
    blocked: BlockedUnits | None = None
    now_ms: int | None = None
    due_ms: int | None = None
    skips_refused: bool = False  # what the selector refuses is finished, as in a topic, and blocks nothing
    missed: Ranges = EMPTY

    @property
    def delivers_up_to_ms(self) -> int | None:
        return self.now_ms if self.due_ms is None else self.due_ms

    @property
    def refused_block(self) -> bool:
        return self.selector is not None and self.blocked is not None and not self.skips_refused


@dataclass(frozen=True)
class ScanBounds:
    """Where a scan stops: when `enough` are picked, or the headers of `max_rows` were read. None = no bound."""

    enough: int | None = None
    max_rows: int | None = None

    def reached(self, picked: int, read: int) -> bool:
        return (self.enough is not None and picked >= self.enough) or (
            self.max_rows is not None and read >= self.max_rows
        )

    def after(self, picked: int, read: int) -> ScanBounds:
        """What remains of the bounds."""
        return ScanBounds(
            None if self.enough is None else self.enough - picked,
            None if self.max_rows is None else self.max_rows - read,
        )


UNBOUNDED = ScanBounds()

# -- a scan ------------------------------------------------------------------------------------------------------------


def scan(
    table: DeltaLog,
    member: int,
    candidates: Ranges,
    question: Question,
    bounds: ScanBounds = UNBOUNDED,
    *,
    table_id: str | None = None,
) -> Scan:
    """Look at the candidates in order, up to the bounds. A file that compaction has replaced meanwhile is looked up in the
    newest snapshot. Raises DestinationReplacedError when the table is not `table_id` any more."""
    found, left = Scan(), candidates
    for attempt in range(ATTEMPTS):
        files = snapshot_to_read(table, attempt, table_id).member_files(member)
        near = files.overlapping(left.first, left.last)
        rest = bounds.after(found.picks.count, found.read)
        found = found | _scan_files(table.storage, near, left, question, rest, last_try=attempt == ATTEMPTS - 1)
        left = found.gone
        if not left:
            break
    return found


def _scan_files(
    storage: Storage,
    files: Iterable[DataFile],
    candidates: Ranges,
    question: Question,
    bounds: ScanBounds,
    *,
    last_try: bool,
) -> Scan:
    """Unless it is the last try, it ends at a missing file, and all behind it is `gone`: looked at before that file is found,
    a message could overtake those of its unit."""
    parts: list[Scan] = []
    gone: list[Ranges] = []
    picked = read = 0
    for file in files:
        part = candidates.between(file.first, file.last)
        if not part:
            continue
        if bounds.reached(picked, read):
            parts.append(Scan(left=part))
            continue
        try:
            parts.append(_scan_file(storage, file, part, question, bounds.after(picked, read)))
        except FileNotFoundError:
            gone.append(part if last_try else candidates.between(file.first, candidates.last))
            if not last_try:
                break
            continue
        picked, read = picked + parts[-1].picks.count, read + parts[-1].read
    return Scan(
        union(p.picks for p in parts),
        union(p.refused for p in parts),
        union(p.expired for p in parts),
        union(p.missed for p in parts),
        union(gone),
        union(p.left for p in parts),
        read,
        UnitMessages.together(p.refused_units for p in parts),
        UnitMessages.together(p.held_back for p in parts),
        tuple(later for p in parts for later in p.later),
        tuple(blocked for p in parts for blocked in p.blocked),
    )


def _scan_file(storage: Storage, file: DataFile, part: Ranges, question: Question, bounds: ScanBounds) -> Scan:
    if (
        question.now_ms is not None
        and is_over(file, question.now_ms)
        and not (_misses(file, question) or (question.selector and question.skips_refused))
    ):
        return Scan(expired=part)
    if question.selector and not _expires(file, question) and never_matches(file, question.selector):
        if not (question.refused_block and file.has_groups):
            return Scan(refused=part)
        return _all_refused(storage, file, part, question)
    columns = _columns(file, question)
    return Scan(part) if columns is None else _scan_rows(storage, file, part, columns, question, bounds)


def _scan_rows(
    storage: Storage, file: DataFile, part: Ranges, columns: list[str], question: Question, bounds: ScanBounds
) -> Scan:
    picks, refused, expired, missed = [], [], [], []
    refused_units: list[UnitMessages] = []
    held_back: list[UnitMessages] = []
    later: list[Later] = []
    blocked: list[Later] = []
    picked = read = 0
    left = EMPTY
    for batch, sequences in read_stored(storage, file.hint, part, columns):
        if bounds.reached(picked, read):
            left = part.between(sequences[0].as_py(), part.last)
            break
        matches = pa.repeat(True, len(sequences))
        if question.selector:
            matches = question.selector.mask(batch, file.promoted)
        over, ends = pa.repeat(False, len(sequences)), None
        if question.now_ms is not None and "JMSExpiration" in batch.schema.names:
            ends = batch.column("JMSExpiration")
            over = pc.and_(pc.greater(ends, 0), pc.less_equal(ends, question.now_ms))
            if question.skips_refused:
                over = pc.and_(over, matches)  # what the selector refuses never belonged to the subscription
        if question.missed and "JMSDeliveryMode" in batch.schema.names:
            not_seen = _missed(batch, sequences, question.missed)
            missed.append(Ranges.from_numbers(sequences.filter(not_seen)))
            expired.append(Ranges.from_numbers(sequences.filter(pc.and_not(over, not_seen))))
            over = pc.or_(over, not_seen)
        else:
            expired.append(Ranges.from_numbers(sequences.filter(over)))
        ready = pc.and_not(matches, over)
        unwanted = pc.invert(pc.or_(matches, over))
        due_ms, delayed, units, waiting = question.delivers_up_to_ms, None, None, None
        if due_ms is not None and {"JMSDeliveryTime", "JMSTimestamp"} <= set(batch.schema.names):
            delayed = pc.and_(ready, _delayed(batch, due_ms))
            ready = pc.and_not(ready, delayed)
        if question.blocked is not None and "JMSXGroupID" in batch.schema.names:
            units = batch.column("JMSXGroupID")
            remaining = pc.invert(pc.or_(ready, over))
            if question.skips_refused:
                remaining = pc.and_not(remaining, unwanted)
            question.blocked.block_behind(UnitMessages.of(sequences, units, among=remaining).first_of_units())
            waiting = question.blocked.waiting(sequences, units)
            if waiting is not None:
                blocked.append(_blocked(sequences, pc.and_(ready, waiting), ends, units))
                ready = pc.and_not(ready, waiting)
            if question.refused_block:
                refused_units.append(UnitMessages.of(sequences, units, ends, among=unwanted))
                if waiting is not None:
                    wanted = pc.and_(pc.and_not(matches, over), waiting)
                    held_back.append(UnitMessages.of(sequences, units, among=wanted))
        if delayed is not None:
            if waiting is not None and question.refused_block:
                delayed = pc.and_not(delayed, waiting)  # they are counted among those that are held back, each time
            later.append(_later(batch, sequences, delayed, ends, units))
        picks.append(Ranges.from_numbers(sequences.filter(ready)))
        refused.append(Ranges.from_numbers(sequences.filter(unwanted)))
        picked, read = picked + picks[-1].count, read + len(sequences)
    return Scan(
        union(picks),
        union(refused),
        union(expired),
        union(missed),
        left=left,
        read=read,
        refused_units=UnitMessages.together(refused_units),
        held_back=UnitMessages.together(held_back),
        later=tuple(later),
        blocked=tuple(blocked),
    )


def _blocked(
    sequences: pa.Int64Array, late: pa.BooleanArray, ends: pa.Int64Array | None, units: pa.StringArray
) -> Later:
    times = repeated(0, pa.int64(), len(sequences)) if ends is None else ends
    return Later(sequences.filter(late), times.filter(late), UnitMessages.of(sequences, units, among=late))


def _later(
    batch: pa.RecordBatch,
    sequences: pa.Int64Array,
    delayed: pa.BooleanArray,
    ends: pa.Int64Array | None,
    units: pa.StringArray | None,
) -> Later:
    times = batch.column("JMSDeliveryTime")
    if ends is not None:
        times = pc.if_else(pc.greater(ends, 0), pc.min_element_wise(times, ends), times)
    of_units = NO_UNITS if units is None else UnitMessages.of(sequences, units, among=delayed)
    return Later(sequences.filter(delayed), times.filter(delayed), of_units)


def _all_refused(storage: Storage, file: DataFile, part: Ranges, question: Question) -> Scan:
    """The statistics refuse the file; only its units of order are read."""
    found = UnitMessages.together(_units_in(storage, file, part))
    if question.blocked is not None and found:
        question.blocked.block_behind(found.first_of_units())
    return Scan(refused=part, read=part.count, refused_units=found)


def _missed(batch: pa.RecordBatch, sequences: pa.Int64Array, missed: Ranges) -> pa.BooleanArray:
    """A JMS server that is down keeps no place for messages that are not persistent."""
    concerned = missed.between(sequences[0].as_py(), sequences[-1].as_py())
    volatile = pc.equal(batch.column("JMSDeliveryMode"), NON_PERSISTENT)
    return pc.and_(volatile, pc.is_in(sequences, concerned.numbers()))


def _delayed(batch: pa.RecordBatch, due_ms: int) -> pa.BooleanArray:
    """A message that was sent without a delay is due at once, even if its sender's clock is ahead of ours."""
    delivery = batch.column("JMSDeliveryTime")
    return pc.and_(pc.greater(delivery, due_ms), pc.greater(delivery, batch.column("JMSTimestamp")))


def _columns(file: DataFile, question: Question) -> list[str] | None:
    """The headers to read; None when the statistics prove that all messages of the file may be delivered."""
    due_ms = question.delivers_up_to_ms
    delays = due_ms is not None and _high(file, "JMSDeliveryTime") > due_ms
    expires, misses = _expires(file, question), _misses(file, question)
    blocks = file.has_groups and question.blocked is not None and (question.blocked or question.refused_block or delays)
    if not (question.selector or delays or expires or misses or blocks):
        return None
    wanted = [*(question.selector.columns_with(file.promoted) if question.selector else ())]
    wanted += ["JMSDeliveryTime", "JMSTimestamp"] * delays + ["JMSExpiration"] * expires
    wanted += ["JMSDeliveryMode"] * misses + ["JMSXGroupID"] * bool(blocks)
    return list(dict.fromkeys(wanted))


def _expires(file: DataFile, question: Question) -> bool:
    return question.now_ms is not None and may_expire(file)


def _misses(file: DataFile, question: Question) -> bool:
    lowest = file.statistics.get("minValues", {}).get("JMSDeliveryMode", NON_PERSISTENT)
    return lowest == NON_PERSISTENT and bool(question.missed.between(file.first, file.last))


def _units_in(storage: Storage, file: DataFile, part: Ranges) -> list[UnitMessages]:
    read = read_stored(storage, file.hint, part, ["JMSXGroupID"])
    return [UnitMessages.of(sequences, batch.column("JMSXGroupID")) for batch, sequences in read]


# -- what a file's statistics prove ------------------------------------------------------------------------------------


def may_expire(file: DataFile) -> bool:
    """Some message of the file does at some time."""
    return _high(file, "JMSExpiration") > 0


def is_over(file: DataFile, now_ms: int) -> bool:
    """Its statistics prove that all its messages have expired."""
    first = int(file.statistics.get("minValues", {}).get("JMSExpiration", 0) or 0)
    return first > 0 and _high(file, "JMSExpiration") <= now_ms


def never_matches(file: DataFile, selector: Selector) -> bool:
    """The file's statistics prove that the selector refuses all its messages."""
    return refuted(file, selector) is not None


def refuted(file: DataFile, selector: Selector) -> Condition | None:
    """A condition of the selector that no message of the file fulfils, as its statistics prove."""
    low, high = file.statistics.get("minValues", {}), file.statistics.get("maxValues", {})
    nulls = file.statistics.get("nullCount", {})
    for condition in map(Condition._make, selector.prunable()):
        name, op, value = condition
        if name not in STATISTICS_COLUMNS and name not in file.promoted:
            continue  # a property may be named like another column, such as `ordinal`
        if nulls.get(name) == file.rows:
            return condition  # a comparison with NULL is unknown
        if name not in low or name not in high:
            continue
        least, most = low[name], high[name]
        if _kind(least) is not _kind(value):
            continue
        if (
            (op == "=" and (value < least or value > most))
            or (op == "<>" and least == most == value)
            or (op == "<" and least >= value)
            or (op == "<=" and least > value)
            or (op == ">" and most <= value)
            or (op == ">=" and most < value)
        ):
            return condition
    return None


def _high(file: DataFile, name: str) -> int:
    return int(file.statistics.get("maxValues", {}).get(name, 0) or 0)


def _kind(value: object) -> type:
    return type(value) if isinstance(value, bool | str) else float


# -- reading the files of a member -------------------------------------------------------------------------------------


def snapshot_to_read(table: DeltaLog, attempt: int, table_id: str | None) -> Snapshot:
    """The known one, and after a file was missing the newest. Raises DestinationReplacedError when the table is not `table_id`
    any more (None: it may be another one)."""
    snapshot = table.verify() if attempt else table.snapshot
    if table_id not in (None, snapshot.table_id):
        raise DestinationReplacedError()
    return snapshot


def read_files(
    table: DeltaLog,
    member: int,
    wanted: Ranges,
    read: Callable[[DataFile, Ranges], Iterable[T]],
    *,
    table_id: str | None = None,
) -> tuple[list[T], Ranges]:
    """What `read` makes of each file and the part of `wanted` in it; and the messages that are in no file. A file whose reading
    raises FileNotFoundError gives nothing; its messages are looked up again, so the results may not be in their order. Raises
    DestinationReplacedError as `snapshot_to_read` does."""
    found: list[T] = []
    left = wanted
    for attempt in range(ATTEMPTS if wanted else 0):
        given: list[Ranges] = []
        missing = False
        for file in snapshot_to_read(table, attempt, table_id).member_files(member).overlapping(left.first, left.last):
            part = left.between(file.first, file.last)
            if not part:
                continue
            try:
                found += list(read(file, part))
            except FileNotFoundError:
                missing = True
                continue
            given.append(part)
        left = left - union(given)
        if not missing:
            break
    return found, left


def first_delivery_time(table: DeltaLog, member: int, picks: Ranges, *, table_id: str | None = None) -> int:
    """The earliest delivery time of these messages, in ms; 0 when none is on disk."""

    def read(file: DataFile, part: Ranges) -> list[int]:
        found = read_stored(table.storage, file.hint, part, ["JMSDeliveryTime"])
        return [pc.min(batch.column("JMSDeliveryTime")).as_py() for batch, _ in found]

    return min(read_files(table, member, picks, read, table_id=table_id)[0], default=0)


def units_of(table: DeltaLog, member: int, picks: Ranges, *, table_id: str | None = None) -> UnitMessages:
    """Those of `picks` that belong to a unit of order. Messages that are not on disk do not: their consumer fails anyway.
    Raises DestinationReplacedError when the table is not `table_id` any more."""
    return units_and_lost(table, member, picks, table_id=table_id)[0]


def units_and_lost(
    table: DeltaLog, member: int, picks: Ranges, *, table_id: str | None = None
) -> tuple[UnitMessages, Ranges]:
    """The same, and the messages that are in no file of the table as it is known."""

    def read(file: DataFile, part: Ranges) -> list[UnitMessages]:
        return _units_in(table.storage, file, part) if file.has_groups else []

    found, lost = read_files(table, member, picks, read, table_id=table_id)
    return UnitMessages.together(found), lost
