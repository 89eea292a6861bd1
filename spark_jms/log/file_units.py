"""Which units of order the files of one table have, as far as this process has asked.

Rows never change under a path, so what was read once stays true. While the member of many new units is down, each of their
sends asks for the same files, and so does each round of housekeeping.

Features: T10 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
from collections.abc import Set

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jms.core.utf8 import readable
from spark_jms.errors import UnreadableTableError
from spark_jms.log.storage import Storage

LIMIT_BYTES = 64 * 2**20
_UNIT = "JMSXGroupID"
_OVERHEAD_BYTES = 1024  # of an Arrow array


class FileUnits:
    """Of one table. Thread-safe. Beyond the limit the files that were read first are dropped."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._known: dict[str, pa.StringArray] = {}
        self.bytes = 0

    def among(self, path: str, wanted: Set[str]) -> set[str]:
        """Those of the wanted units that have messages in the file. It costs time for each unit of the file, however many are
        wanted. Raises UnreadableTableError, or FileNotFoundError when the file was deleted."""
        with self._lock:
            units = self._known.get(path)
        if units is None:
            units = self._read(path)
            self._keep(path, units)
        if len(wanted) > len(units):
            return {unit for unit in units.to_pylist() if unit in wanted}
        return set(units.filter(pc.is_in(units, value_set=pa.array(wanted, pa.string()))).to_pylist())

    def _read(self, path: str) -> pa.StringArray:
        with self._storage.open_input(path) as source:
            try:
                column = pq.ParquetFile(source).read(columns=[_UNIT])[_UNIT]
            except (pa.ArrowException, OSError) as error:
                raise UnreadableTableError(
                    f"data file {path} of {self._storage.uri} cannot be read: {error}"
                ) from error
        return readable(pc.unique(column)).drop_null()

    def _keep(self, path: str, units: pa.StringArray) -> None:
        with self._lock:
            if path not in self._known:
                self._known[path] = units
                self.bytes += units.nbytes + _OVERHEAD_BYTES
            while self.bytes > LIMIT_BYTES:
                oldest = self._known.pop(next(iter(self._known)))
                self.bytes -= oldest.nbytes + _OVERHEAD_BYTES
