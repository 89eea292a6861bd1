"""Arrow of other libraries: the same values in the types that message columns have. Pure.

Libraries have several layouts for one kind of value: text with long offsets (Spark with `useLargeVarTypes`), as views (Polars,
DuckDB) or as a dictionary (pandas' categories), runs, and their own names for a stored type. A sender may give any of them.

Features: C2 (docs/FEATURES.md)
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The plain type of values of this type; a type of one layout only is its own."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_map(kind):
        return pa.map_(plain_type(kind.key_type), plain_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain_type(field.type)) for field in kind])
    return kind


def plain(array: Any) -> Any:
    """The array with its plain type. Raises ArrowInvalid for text or bytes of 2 GiB and more together."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return plain(array.storage)
    if pa.types.is_dictionary(kind):
        return plain(array.dictionary).take(array.indices)
    if pa.types.is_run_end_encoded(kind):
        runs = pa.RunEndEncodedArray.from_arrays(array.run_ends, plain(array.values))
        return pc.run_end_decode(runs.slice(array.offset, len(array)))
    if pa.types.is_struct(kind):
        fields = [pa.field(field.name, plain_type(field.type)) for field in kind]
        nulls = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(
            [plain(array.field(n)) for n in range(len(fields))], fields=fields, mask=nulls
        )
    wanted = plain_type(kind)
    if pa.types.is_map(kind) and wanted != kind:
        offsets, nulls = pc.add(array.offsets, 0), array.is_null() if array.null_count else None  # no offset of a slice
        return pa.MapArray.from_arrays(offsets, plain(array.keys), plain(array.items), mask=nulls)
    return array if wanted == kind else pc.cast(array, wanted)
