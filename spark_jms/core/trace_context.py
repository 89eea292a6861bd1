"""The trace context of W3C in the properties of messages: which sender's span a message belongs to. Pure.

Both names are identifiers, so they are property names of JMS, and selectors, `columns` and Spark can use them. A message keeps the
context that it was given; baggage is not carried.

Features: M5 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.map_entries import MapEntries

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_NAMES = (TRACEPARENT, TRACESTATE)
_MAP = pa.map_(pa.string(), pa.string())


def carried_context(properties: Mapping[str, Any]) -> dict[str, str]:
    """The trace context of a message; {} when it has none."""
    return {name: properties[name] for name in _NAMES if isinstance(properties.get(name), str)}


def has_context(properties: Mapping[str, Any]) -> bool:
    return any(name in properties for name in _NAMES)


def with_context(batch: pa.RecordBatch, context: Mapping[str, str]) -> pa.RecordBatch:
    """Columns of messages, where those without a trace context get this one. Properties that are neither a map nor a struct stay as
    they are: the sender refuses them later."""
    rows = batch.num_rows
    if "properties" not in batch.schema.names:
        return batch.append_column("properties", _in_each(context, rows))
    place = batch.schema.get_field_index("properties")
    given = batch.column(place)
    if given.null_count == rows:
        found = _in_each(context, rows)
    elif pa.types.is_struct(given.type):
        found = _struct(given, context)
    elif pa.types.is_map(given.type):
        found = _map(given, context)
    else:
        return batch
    return batch.set_column(place, "properties", found)


def _in_each(context: Mapping[str, str], rows: int) -> pa.MapArray:
    offsets = pa.array(range(0, (rows + 1) * len(context), len(context)), pa.int32())
    keys, values = (pa.array(list(part) * rows, pa.string()) for part in (context.keys(), context.values()))
    return pa.MapArray.from_arrays(offsets, keys, values)


def _struct(given: pa.StructArray, context: Mapping[str, str]) -> pa.StructArray:
    names = [given.type.field(number).name for number in range(given.type.num_fields)]
    columns = dict(zip(names, given.flatten(), strict=True))
    known = {name: pc.cast(columns[name], pa.string()) for name in _NAMES if name in columns}
    has = pa.repeat(pa.scalar(False), len(given))
    for column in known.values():
        has = pc.or_(has, column.is_valid())
    for name in _NAMES:
        before = known.get(name, pa.nulls(len(given), pa.string()))
        columns[name] = pc.if_else(has, before, pa.scalar(context.get(name), pa.string()))
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


def _map(given: pa.MapArray, context: Mapping[str, str]) -> pa.MapArray:
    """The new entries behind those of their rows, by kernels."""
    maps = given.cast(_MAP)
    entries = MapEntries(maps)
    missing = entries.of(pc.is_in(entries.keys, pa.array(_NAMES))).is_null()
    more = pc.indices_nonzero(missing).cast(pa.int64())
    order = pc.sort_indices(pa.concat_arrays([entries.row_of.cast(pa.int64()), *[more] * len(context)]))  # it is stable
    keys, items = [entries.keys], [entries.items]
    for name, value in context.items():
        keys.append(pa.repeat(pa.scalar(name, pa.string()), len(more)))
        items.append(pa.repeat(pa.scalar(value, pa.string()), len(more)))
    added = pc.multiply(pc.cumulative_sum(pc.cast(missing, pa.int32())), len(context))
    begins = pc.subtract(maps.offsets, maps.offsets[0])
    ends = pc.add(begins[1:], pc.cast(added, pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cast(ends, pa.int32())])
    return pa.MapArray.from_arrays(offsets, pa.concat_arrays(keys).take(order), pa.concat_arrays(items).take(order))
