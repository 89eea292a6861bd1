"""Reading one data file by ranges of sequences (C3)."""

from __future__ import annotations

from collections.abc import Iterator

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


def read_stored(
    storage: Storage,
    file: FileHint,
    picks: Ranges,
    columns: list[str],
) -> Iterator[StoredRows]:
    """The picked rows of one file with their sequences, in order. Raises FileNotFoundError when the file was deleted."""
    wanted = picks.between(file.first, file.last)
    if not wanted:
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
                yield from _read_group(storage, file, parquet, group, first, wanted, names)
            first += rows


def _read_group(
    storage: Storage,
    file: FileHint,
    parquet: pq.ParquetFile,
    group: int,
    first: int,
    wanted: Ranges,
    names: list[str],
) -> Iterator[StoredRows]:
    size = max(min(_READ_BATCH_BYTES * file.rows // max(file.bytes, 1), 16_384), 64)
    try:
        for batch in parquet.iter_batches(batch_size=size, row_groups=[group], columns=names, use_threads=False):
            begin, first = first, first + batch.num_rows
            inside = wanted.between(begin, first - 1)
            if not inside:
                continue
            if inside.count == batch.num_rows:
                yield batch, counting(begin, batch.num_rows)
            elif len(inside) == 1:
                yield batch.slice(inside.first - begin, inside.count), counting(inside.first, inside.count)
            else:
                sequences = inside.numbers()
                yield batch.take(pc.subtract(sequences, begin)), sequences
    except (pa.ArrowException, OSError) as error:
        raise _damaged(storage, file, error) from error


def _damaged(storage: Storage, file: FileHint, error: Exception) -> UnreadableTableError:
    return UnreadableTableError(f"data file {file.path} of {storage.uri} cannot be read: {error}")
