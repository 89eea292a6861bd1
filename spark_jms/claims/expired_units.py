"""What is over of a destination that handles units of work: a unit expires as a whole.

Features: T6, T12 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.claims.file_lookup import read_files
from spark_jms.core.expiration import NEVER
from spark_jms.core.ranges import EMPTY, Ranges
from spark_jms.core.unit_of_work import NO_PARTS, PART_COLUMNS, judge, parts
from spark_jms.log.data_file import DataFile
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.file_reader import read_stored
from spark_jms.log.snapshot import Snapshot

_SINGLES = pa.schema([("sequence", pa.int64()), ("expires_ms", pa.int64())]).empty_table()


class ExpiredUnits(NamedTuple):
    """`over` expire now; `waits`: a consumer has a part of a unit that is over; `next_ms`: when the next one is over."""

    over: Ranges
    waits: bool
    next_ms: int


def expired_units(
    table: DeltaLog, snapshot: Snapshot, member: int, unfinished: Ranges, free: Ranges, now_ms: int
) -> ExpiredUnits:
    """Of the unfinished messages of a member, of which `free` may expire: whole units, and messages of none."""
    rest = [_SINGLES]

    def read(file: DataFile, part: Ranges) -> Iterator[pa.Table]:
        for rows, sequences in read_stored(table.storage, file.hint, part, list(PART_COLUMNS)):
            found = parts(rows, sequences, pa.repeat(True, rows.num_rows))
            alone = pc.invert(pc.is_in(sequences, found["sequence"].combine_chunks()))
            rest.append(pa.table([sequences, rows.column("JMSExpiration")], schema=_SINGLES.schema).filter(alone))
            yield found

    found, _ = read_files(table, member, unfinished, read, table_id=snapshot.table_id)
    in_units, singles = pa.concat_tables([NO_PARTS, *found]).sort_by("sequence"), pa.concat_tables(rest)
    after_ms = snapshot.destination.incomplete_work_expiration_ms
    numbers = Ranges.from_numbers(in_units["sequence"].combine_chunks())
    ended = pc.and_(pc.greater(singles["expires_ms"], 0), pc.less_equal(singles["expires_ms"], now_ms))
    alone = Ranges.from_numbers(singles["sequence"].filter(ended).combine_chunks())
    ever = judge(in_units, numbers, now_ms, after_ms).expired
    over = judge(in_units, numbers & free, now_ms, after_ms).expired if ever else EMPTY
    times = [in_units["expires_ms"], singles["expires_ms"]]
    times += [pc.add(in_units["sent_ms"], after_ms)] * (after_ms is not None)
    next_ms = min(next_end_ms(column, now_ms) for column in times)
    return ExpiredUnits(over | (alone & free), bool(ever - over or alone - free), next_ms)


def next_end_ms(ends: pa.Int64Array | pa.ChunkedArray, now_ms: int) -> int:
    """The first of these times that is to come."""
    return pc.min(ends.filter(pc.greater(ends, now_ms))).as_py() or NEVER
