"""The entries of a column of maps, flat: which row each belongs to, and which entry of a row has a name.

Features: C2, C7 (docs/FEATURES.md)
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.integers import inside, plus, view


class MapEntries:
    """Of one array of type map<string, string>. `keys`, `items` and `row_of` have one value for each entry."""

    def __init__(self, maps: Any) -> None:
        start, stop = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
        self.rows = len(maps)
        self.keys = maps.keys.slice(start, stop - start)
        self.items = maps.items.slice(start, stop - start)
        self.row_of = pc.list_parent_indices(
            pa.ListArray.from_arrays(pc.subtract(maps.offsets, start), pa.nulls(stop - start))
        )
        self._present = maps.is_valid() if maps.null_count else None

    def of(self, chosen: Any) -> Any:
        """For every row the number of its chosen entry, or null: an Int64Array. The last of several counts. `chosen` has
        one bit for each entry."""
        entries = pc.indices_nonzero(chosen).view(pa.int64())
        rows = self.row_of.take(entries)
        if len(rows) > 1:
            last = pa.concat_arrays([pc.not_equal(rows[:-1], rows[1:]), pa.array([True])])
            if not pc.all(last).as_py():
                entries, rows = entries.filter(last), rows.filter(last)
        if len(rows) < self.rows:
            begins = view(rows)
            entries = pc.replace_with_mask(
                pa.nulls(self.rows, pa.int64()), inside(begins, plus(begins, 1), self.rows), entries
            )
        return entries if self._present is None else pc.if_else(self._present, entries, None)
