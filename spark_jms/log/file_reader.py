"""Reading one data file by ranges of sequences.

Features: C3 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jms.core.integers import counting
from spark_jms.core.message import ORDINAL
from spark_jms.core.ranges import Ranges
from spark_jms.errors import UnreadableTableError
from spark_jms.log.data_file import FileHint
from spark_jms.log.storage import Storage

_READ_BATCH_BYTES = 4 * 2**20

StoredRows = tuple[pa.RecordBatch, pa.Int64Array]  # rows and their sequences


@dataclass(frozen=True)
class _Decoded:
    path: str
    names: list[str]
    rows: pa.RecordBatch
    first: int  # sequence of the first row


class LastRows:
    """The rows that one consumer has decoded last, at most about 4 MiB of a file. It takes a hundred messages after the other
    from a file of thousands, and would otherwise decode all of them each time. Not thread-safe."""

    def __init__(self) -> None:
        self._decoded: _Decoded | None = None

    def keep(self, path: str, names: list[str], rows: pa.RecordBatch, first: int) -> None:
        self._decoded = _Decoded(path, names, rows, first)

    def find(self, path: str, names: list[str], wanted: Ranges) -> Iterator[StoredRows] | None:
        """None unless all wanted rows are here."""
        known = self._decoded
        if known is None or known.path != path or known.names != names:
            return None
        if wanted.first < known.first or wanted.last >= known.first + known.rows.num_rows:
            return None
        return picked_rows(known.rows, known.first, wanted)


def read_stored(
    storage: Storage,
    file: FileHint,
    picks: Ranges,
    columns: list[str],
    last: LastRows | None = None,
) -> Iterator[StoredRows]:
    """The picked rows of one file with their sequences, in order. `last` keeps decoded rows for the next call. Raises
    FileNotFoundError when the file was deleted and is needed."""
    wanted = picks.between(file.first, file.last)
    if not wanted:
        return
    known = last.find(file.path, columns or [ORDINAL], wanted) if last is not None else None
    if known is not None:
        yield from known
        return
    with storage.open_input(file.path) as source:
        try:
            parquet = pq.ParquetFile(source, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise _damaged(storage, file, error) from error
        if parquet.metadata.num_rows != file.rows:
            raise UnreadableTableError(
                f"data file {file.path} of {storage.uri} has {parquet.metadata.num_rows} rows, the log says {file.rows}"
            )
        first = file.first
        names = columns or [ORDINAL]
        for group in range(parquet.metadata.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            if wanted.between(first, first + rows - 1):
                yield from _read_group(storage, file, parquet, group, first, wanted, names, last)
            first += rows


def _read_group(
    storage: Storage,
    file: FileHint,
    parquet: pq.ParquetFile,
    group: int,
    first: int,
    wanted: Ranges,
    names: list[str],
    last: LastRows | None,
) -> Iterator[StoredRows]:
    size = max(min(_READ_BATCH_BYTES * file.rows // max(file.bytes, 1), 16_384), 64)
    try:
        for batch in parquet.iter_batches(batch_size=size, row_groups=[group], columns=names, use_threads=False):
            if last is not None and first <= wanted.last:
                last.keep(file.path, names, batch, first)
            yield from picked_rows(batch, first, wanted)
            first += batch.num_rows
            if first > wanted.last:
                break
    except (pa.ArrowException, OSError) as error:
        raise _damaged(storage, file, error) from error


def picked_rows(batch: pa.RecordBatch, first: int, wanted: Ranges) -> Iterator[StoredRows]:
    """The wanted rows of a batch whose first row has this sequence."""
    inside = wanted.between(first, first + batch.num_rows - 1)
    if not inside:
        return
    if inside.count == batch.num_rows:
        yield batch, counting(first, batch.num_rows)
    elif len(inside) == 1:
        yield batch.slice(inside.first - first, inside.count), counting(inside.first, inside.count)
    else:
        sequences = inside.numbers()
        yield batch.take(pc.subtract(sequences, first)), sequences


def _damaged(storage: Storage, file: FileHint, error: Exception) -> UnreadableTableError:
    return UnreadableTableError(f"data file {file.path} of {storage.uri} cannot be read: {error}")
