"""Which messages of a run of files may be delivered now: selector, delay, expiration, units of order (C7, C12).

A file whose statistics prove that all of its messages may go is taken as a range, unopened; of any other only the header
columns are read, once: what a selector refuses is remembered by the subscriber.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.ranges import EMPTY, Ranges, union
from spark_jms.core.selector import Selector
from spark_jms.log.files import FileHint, read_stored
from spark_jms.log.snapshot import DataFile
from spark_jms.log.storage import LocalStorage, ObjectStorage


@dataclass(frozen=True)
class Scan:
    """`picks` may be delivered now; `refused` never match the selector; `expired` are over; the rest is delayed or blocked."""

    picks: Ranges
    refused: Ranges = EMPTY
    expired: Ranges = EMPTY


def scan(
    storage: LocalStorage | ObjectStorage,
    files: Iterable[DataFile],
    candidates: Ranges,
    selector: Selector | None,
    blocked_groups: frozenset[str],
    now_ms: int | None,
) -> Scan:
    """`now_ms` None: whatever its delay or expiration (a browser shows all)."""
    picks, refused, expired = [], [], []
    for file in files:
        part = candidates.between(file.first, file.last)
        if not part:
            continue
        found = _scan_file(storage, file, part, selector, blocked_groups, now_ms)
        picks.append(found.picks)
        refused.append(found.refused)
        expired.append(found.expired)
    return Scan(union(picks), union(refused), union(expired))


def _scan_file(
    storage: LocalStorage | ObjectStorage,
    file: DataFile,
    part: Ranges,
    selector: Selector | None,
    blocked_groups: frozenset[str],
    now_ms: int | None,
) -> Scan:
    high = file.statistics.get("maxValues", {})
    delays = now_ms is not None and int(high.get("JMSDeliveryTime", 0) or 0) > now_ms
    expires = now_ms is not None and int(high.get("JMSExpiration", 0) or 0) > 0
    blocks = bool(blocked_groups) and file.has_groups
    if not (selector or delays or expires or blocks):
        return Scan(part)
    columns = list(
        dict.fromkeys(
            [
                *(selector.columns if selector else ()),
                *(["JMSDeliveryTime"] if delays else ()),
                *(["JMSExpiration"] if expires else ()),
                *(["JMSXGroupID"] if blocks else ()),
            ]
        )
    )
    picks, refused, expired = [], [], []
    for batch, sequences in read_stored(storage, hint(file), part, columns):
        matches = selector.mask(batch) if selector else np.ones(len(sequences), dtype=bool)
        over = np.zeros(len(sequences), dtype=bool)
        if expires:
            ends = np.asarray(batch.column("JMSExpiration"))
            over = (ends > 0) & (ends <= now_ms)
        ready = matches & ~over
        if delays:
            ready &= np.asarray(batch.column("JMSDeliveryTime")) <= now_ms
        if blocks:
            among = pc.is_in(batch.column("JMSXGroupID"), value_set=pa.array(sorted(blocked_groups), pa.string()))
            ready &= ~np.asarray(among)
        picks.append(Ranges.from_numbers(sequences[ready]))
        refused.append(Ranges.from_numbers(sequences[~matches & ~over]))
        expired.append(Ranges.from_numbers(sequences[over]))
    return Scan(union(picks), union(refused), union(expired))


def groups_of(storage: LocalStorage | ObjectStorage, files: Iterable[DataFile], picks: Ranges) -> frozenset[str]:
    """The units of order of these messages."""
    groups: set[str] = set()
    for file in files:
        if file.has_groups:
            for batch, _ in read_stored(storage, hint(file), picks, ["JMSXGroupID"]):
                groups.update(g for g in pc.unique(batch.column("JMSXGroupID")).to_pylist() if g is not None)
    return frozenset(groups)


def hint(file: DataFile) -> FileHint:
    return FileHint(file.path, file.first, file.rows, file.bytes)
