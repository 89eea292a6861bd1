"""Which messages may be delivered now: selector, delay, expiration, units of order (C7, C12).

Statistics decide first: a file whose messages may all be delivered is taken as a range, and one whose messages the
selector refuses is refused, both unopened. Of any other file only the header columns are read, once: the planner
remembers what a selector refuses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.ranges import EMPTY, Ranges, union
from spark_jms.core.selector import Selector
from spark_jms.errors import DestinationReplacedError
from spark_jms.log.data_file import DataFile
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.file_reader import read_stored
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import Storage

_ATTEMPTS = 3


@dataclass(frozen=True)
class Scan:
    """`picks` may be delivered now; the selector refuses `refused`; `expired` are over; `gone` are in the log but not on
    disk; `left` were not looked at, because a bound was reached. All others are delayed or blocked."""

    picks: Ranges = EMPTY
    refused: Ranges = EMPTY
    expired: Ranges = EMPTY
    gone: Ranges = EMPTY
    left: Ranges = EMPTY
    read: int = 0  # rows whose headers were read

    def __or__(self, other: Scan) -> Scan:
        """What both have found together; `gone` is that of the later one."""
        return Scan(
            self.picks | other.picks,
            self.refused | other.refused,
            self.expired | other.expired,
            other.gone,
            self.left | other.left,
            self.read + other.read,
        )


@dataclass(frozen=True)
class Question:
    """Which messages are asked for. Without `now_ms` delay and expiration do not matter (a browser shows all). `due_ms`:
    messages with a later delivery time are delayed; it is earlier than `now_ms` while insertion is paused."""

    selector: Selector | None = None
    blocked: frozenset[str] = frozenset()  # units of order that other consumers hold
    now_ms: int | None = None
    due_ms: int | None = None

    @property
    def delivers_up_to_ms(self) -> int | None:
        return self.now_ms if self.due_ms is None else self.due_ms


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
    for attempt in range(_ATTEMPTS):
        files = _snapshot(table, attempt, table_id).member_files(member)
        near = files.overlapping(left.first, left.last)
        found = found | _scan_files(table.storage, near, left, question, bounds)
        left = found.gone
        if not left:
            break
    return found


def _snapshot(table: DeltaLog, attempt: int, table_id: str | None) -> Snapshot:
    """The known one, and after a file was missing the newest."""
    snapshot = table.verify() if attempt else table.snapshot
    if table_id not in (None, snapshot.table_id):
        raise DestinationReplacedError()
    return snapshot


def _scan_files(
    storage: Storage, files: Iterable[DataFile], candidates: Ranges, question: Question, bounds: ScanBounds
) -> Scan:
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
        if question.selector and not _expires(file, question) and never_matches(file, question.selector):
            parts.append(Scan(refused=part))
            continue
        columns = _columns(file, question)
        try:
            rest = bounds.after(picked, read)
            parts.append(Scan(part) if columns is None else _scan_rows(storage, file, part, columns, question, rest))
        except FileNotFoundError:
            gone.append(part)
            continue
        picked, read = picked + parts[-1].picks.count, read + parts[-1].read
    return Scan(
        union(p.picks for p in parts),
        union(p.refused for p in parts),
        union(p.expired for p in parts),
        union(gone),
        union(p.left for p in parts),
        read,
    )


def _high(file: DataFile, name: str) -> int:
    return int(file.statistics.get("maxValues", {}).get(name, 0) or 0)


def _expires(file: DataFile, question: Question) -> bool:
    return question.now_ms is not None and _high(file, "JMSExpiration") > 0


def _columns(file: DataFile, question: Question) -> list[str] | None:
    """The headers to read; None when the statistics prove that all messages of the file may be delivered."""
    due_ms = question.delivers_up_to_ms
    delays = due_ms is not None and _high(file, "JMSDeliveryTime") > due_ms
    expires, blocks = _expires(file, question), bool(question.blocked) and file.has_groups
    if not (question.selector or delays or expires or blocks):
        return None
    wanted = [*(question.selector.columns if question.selector else ())]
    wanted += ["JMSDeliveryTime"] * delays + ["JMSExpiration"] * expires + ["JMSXGroupID"] * blocks
    return list(dict.fromkeys(wanted))


def never_matches(file: DataFile, selector: Selector) -> bool:
    """The file's statistics prove that the selector refuses all its messages."""
    low, high = file.statistics.get("minValues", {}), file.statistics.get("maxValues", {})
    nulls = file.statistics.get("nullCount", {})
    for name, op, value in selector.prunable():
        if nulls.get(name) == file.rows:
            return True  # a comparison with NULL is unknown
        if name not in low or name not in high:
            continue
        least, most, text = low[name], high[name], isinstance(value, str)
        if isinstance(least, str) != text or isinstance(value, bool) or not isinstance(value, str | int | float):
            continue
        if (
            (op == "=" and (value < least or value > most))
            or (op == "<>" and least == most == value)
            or (op == "<" and least >= value)
            or (op == "<=" and least > value)
            or (op == ">" and most <= value)
            or (op == ">=" and most < value)
        ):
            return True
    return False


def _scan_rows(
    storage: Storage, file: DataFile, part: Ranges, columns: list[str], question: Question, bounds: ScanBounds
) -> Scan:
    picks, refused, expired = [], [], []
    picked = read = 0
    left = EMPTY
    for batch, sequences in read_stored(storage, file.hint, part, columns):
        if bounds.reached(picked, read):
            left = part.between(sequences[0].as_py(), part.last)
            break
        matches = question.selector.mask(batch) if question.selector else pa.repeat(True, len(sequences))
        over = pa.repeat(False, len(sequences))
        if question.now_ms is not None and "JMSExpiration" in batch.schema.names:
            ends = batch.column("JMSExpiration")
            over = pc.and_(pc.greater(ends, 0), pc.less_equal(ends, question.now_ms))
        ready = pc.and_not(matches, over)
        due_ms = question.delivers_up_to_ms
        if due_ms is not None and "JMSDeliveryTime" in batch.schema.names:
            ready = pc.and_(ready, pc.less_equal(batch.column("JMSDeliveryTime"), due_ms))
        if question.blocked and file.has_groups:
            among = pa.array(sorted(question.blocked), pa.string())
            ready = pc.and_not(ready, pc.is_in(batch.column("JMSXGroupID"), value_set=among))
        picks.append(Ranges.from_numbers(sequences.filter(ready)))
        refused.append(Ranges.from_numbers(sequences.filter(pc.invert(pc.or_(matches, over)))))
        expired.append(Ranges.from_numbers(sequences.filter(over)))
        picked, read = picked + picks[-1].count, read + len(sequences)
    return Scan(union(picks), union(refused), union(expired), left=left, read=read)


def groups_of(table: DeltaLog, member: int, picks: Ranges, *, table_id: str | None = None) -> frozenset[str]:
    """The units of order of these messages. Messages that are not on disk have none: their consumer fails anyway. Raises
    DestinationReplacedError when the table is not `table_id` any more."""
    groups: set[str] = set()
    left = picks
    for attempt in range(_ATTEMPTS):
        gone: list[Ranges] = []
        files = _snapshot(table, attempt, table_id).member_files(member)
        near = files.overlapping(left.first, left.last) if left else []
        for file in near:
            if file.has_groups:
                try:
                    for batch, _ in read_stored(table.storage, file.hint, left, ["JMSXGroupID"]):
                        groups.update(g for g in pc.unique(batch.column("JMSXGroupID")).to_pylist() if g is not None)
                except FileNotFoundError:
                    gone.append(left.between(file.first, file.last))
        left = union(gone)
    return frozenset(groups)
