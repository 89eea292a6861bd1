"""Parts of units of work as the files of a member have them.

Features: T12 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from spark_jms.claims.file_lookup import read_files
from spark_jms.claims.offer import Offer
from spark_jms.core.ranges import Ranges
from spark_jms.core.selector import Selector
from spark_jms.core.unit_of_work import NO_PARTS, PART_COLUMNS, WorkVerdict, parts, work_order
from spark_jms.log.data_file import DataFile
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.file_reader import read_stored


def read_parts(table: DeltaLog, member: int, messages: Ranges, selector: Selector | None, table_id: str) -> pa.Table:
    """Those of `messages` that are parts, as PARTS_SCHEMA, in no order. A message that is in no file is no part: the plan of
    single messages tells that it is lost."""
    columns = list(dict.fromkeys([*PART_COLUMNS, *(selector.columns if selector else ())]))

    def read(file: DataFile, part: Ranges) -> Iterator[pa.Table]:
        for rows, sequences in read_stored(table.storage, file.hint, part, columns):
            taken = selector.mask(rows) if selector else pa.repeat(True, rows.num_rows)
            yield parts(rows, sequences, taken)

    found, _ = read_files(table, member, messages, read, table_id=table_id)
    return pa.concat_tables([NO_PARTS, *found])


def together(singles: Offer, verdict: WorkVerdict) -> Offer:
    """Single messages and the deliverable units, in the order of delivery."""
    found = verdict.deliverable
    if not found.num_rows:
        return singles
    alone = singles.picks.numbers()
    sequences = pa.concat_arrays([alone, found["sequence"].combine_chunks()])
    units = pa.concat_arrays([pa.nulls(len(alone), pa.string()), found["unit"].combine_chunks()])
    numbers = pa.concat_arrays([pa.nulls(len(alone), pa.int64()), found["number"].combine_chunks()])
    order = work_order(sequences, units, numbers)
    picks = singles.picks | Ranges.from_numbers(found["sequence"].combine_chunks())
    return Offer(picks, order.sequences, order.ends)
