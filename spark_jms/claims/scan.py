"""Which messages of a run of files may be delivered now: selector, delay, expiration, units of order (C7, C12).

A file whose statistics prove that all of its messages may go is taken as a range, unopened; one of which they prove that
the selector refuses all is refused, unopened. Of any other only the header columns are read, once: what a selector
refuses is remembered by the planner.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.ranges import EMPTY, Ranges, union
from spark_jms.core.selector import Selector
from spark_jms.log.data_file import DataFile
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.file_reader import read_stored
from spark_jms.log.storage import Storage

_ATTEMPTS = 3


@dataclass(frozen=True)
class Scan:
    """`picks` may be delivered now; `refused` never match the selector; `expired` are over; `gone` are in the log and not
    on the disk; `left` were not looked at, because enough was found or enough was read. The rest is delayed or blocked."""

    picks: Ranges = EMPTY
    refused: Ranges = EMPTY
    expired: Ranges = EMPTY
    gone: Ranges = EMPTY
    left: Ranges = EMPTY
    read: int = 0  # rows whose headers were read

    def __or__(self, other: Scan) -> Scan:
        """What both have found together; `gone` as the later one says."""
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
    """What may go? `now_ms` None: whatever its delay or expiration (a browser shows all)."""

    selector: Selector | None = None
    blocked: frozenset[str] = frozenset()  # units of order that are in others' hands
    now_ms: int | None = None


def scan(table: DeltaLog, member: int, candidates: Ranges, question: Question,
         enough: int | None = None, most_rows: int | None = None) -> Scan:  # fmt: skip
    """Look at the candidates in order, until `enough` are found or the headers of `most_rows` were read. A file that
    compaction has replaced meanwhile is looked up anew."""
    found, left = Scan(), candidates
    for attempt in range(_ATTEMPTS):
        with table.lock:
            files = (table.refresh() if attempt else table.snapshot).member_files(member)
            near = files.overlapping(left.first, left.last)
        found = found | _scan_files(table.storage, near, left, question, enough, most_rows)
        left = found.gone
        if not left:
            break
    return found


def _scan_files(
    storage: Storage,
    files: Iterable[DataFile],
    candidates: Ranges,
    question: Question,
    enough: int | None,
    most_rows: int | None,
) -> Scan:
    parts: list[Scan] = []
    gone: list[Ranges] = []
    picked = read = 0
    for file in files:
        part = candidates.between(file.first, file.last)
        if not part:
            continue
        if (enough is not None and picked >= enough) or (most_rows is not None and read >= most_rows):
            parts.append(Scan(left=part))
            continue
        if question.selector and not _expires(file, question) and never_matches(file, question.selector):
            parts.append(Scan(refused=part))
            continue
        columns = _columns(file, question)
        if columns is None:
            parts.append(Scan(part))
        else:
            try:
                parts.append(
                    _scan_rows(
                        storage, file, part, columns, question,
                        None if enough is None else enough - picked, None if most_rows is None else most_rows - read,
                    )
                )  # fmt: skip
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
    """Which headers have to be read; None when the statistics prove that all of the file may go."""
    delays = question.now_ms is not None and _high(file, "JMSDeliveryTime") > question.now_ms
    expires, blocks = _expires(file, question), bool(question.blocked) and file.has_groups
    if not (question.selector or delays or expires or blocks):
        return None
    wanted = [*(question.selector.columns if question.selector else ())]
    wanted += ["JMSDeliveryTime"] * delays + ["JMSExpiration"] * expires + ["JMSXGroupID"] * blocks
    return list(dict.fromkeys(wanted))


def never_matches(file: DataFile, selector: Selector) -> bool:
    """The file's statistics prove that the selector is true for none of its messages."""
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
    storage: Storage,
    file: DataFile,
    part: Ranges,
    columns: list[str],
    question: Question,
    enough: int | None,
    most_rows: int | None,
) -> Scan:
    picks, refused, expired = [], [], []
    picked = read = 0
    left = EMPTY
    for batch, sequences in read_stored(storage, file.hint, part, columns):
        if (enough is not None and picked >= enough) or (most_rows is not None and read >= most_rows):
            left = part.between(int(sequences[0]), part.last)
            break
        everything = np.ones(len(sequences), dtype=bool)
        matches = question.selector.mask(batch) if question.selector else everything
        over = ~everything
        if question.now_ms is not None and "JMSExpiration" in batch.schema.names:
            ends = np.asarray(batch.column("JMSExpiration"))
            over = (ends > 0) & (ends <= question.now_ms)
        ready = matches & ~over
        if question.now_ms is not None and "JMSDeliveryTime" in batch.schema.names:
            ready &= np.asarray(batch.column("JMSDeliveryTime")) <= question.now_ms
        if question.blocked and file.has_groups:
            among = pa.array(sorted(question.blocked), pa.string())
            ready &= ~np.asarray(pc.is_in(batch.column("JMSXGroupID"), value_set=among))
        picks.append(Ranges.from_numbers(sequences[ready]))
        refused.append(Ranges.from_numbers(sequences[~matches & ~over]))
        expired.append(Ranges.from_numbers(sequences[over]))
        picked, read = picked + int(ready.sum()), read + len(sequences)
    return Scan(union(picks), union(refused), union(expired), left=left, read=read)


def groups_of(table: DeltaLog, member: int, picks: Ranges) -> frozenset[str]:
    """The units of order of these messages. Those that are gone from the disk have none: whoever claimed them fails."""
    groups: set[str] = set()
    left = picks
    for attempt in range(_ATTEMPTS):
        gone: list[Ranges] = []
        with table.lock:
            files = (table.refresh() if attempt else table.snapshot).member_files(member)
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
