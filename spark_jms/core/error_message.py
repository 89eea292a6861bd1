"""What an error destination keeps of a message beside the message itself: where it failed, why, how often, when.

Properties say so, typed, so that selectors, SQL and `jmsq redrive` can use them:

    JMS_JMSQ_ErrorFrom         the destination it comes from
    JMS_JMSQ_ErrorPosition     destination/subscription/member#sequence
    JMS_JMSQ_ErrorReason       text
    JMS_JMSQ_ErrorDeliveries   int: how often it was delivered there
    JMS_JMSQ_ErrorTime         long: when it was moved, ms since 1970
    JMS_JMSQ_ErrorExpiration   long: its JMSExpiration, if it had one; in the error destination it does not expire

Features: C8 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.typed_properties import TYPES_PROPERTY
from spark_jms.core.utf8 import map_column, map_rows

FROM, POSITION, REASON = "JMS_JMSQ_ErrorFrom", "JMS_JMSQ_ErrorPosition", "JMS_JMSQ_ErrorReason"
DELIVERIES, TIME, EXPIRATION = "JMS_JMSQ_ErrorDeliveries", "JMS_JMSQ_ErrorTime", "JMS_JMSQ_ErrorExpiration"
_TYPES = {DELIVERIES: "int", TIME: "long", EXPIRATION: "long"}
_OURS = (FROM, POSITION, REASON, DELIVERIES, TIME, EXPIRATION)
SET_ASIDE_FROM, SET_ASIDE_REASON, SET_ASIDE_TYPES = (
    "JMS_JMSQ_SetAsideFrom",
    "JMS_JMSQ_SetAsideReason",
    "JMS_JMSQ_SetAsideTypes",
)
_ADDED = pa.array([*_OURS, SET_ASIDE_FROM, SET_ASIDE_REASON, SET_ASIDE_TYPES])
_ADDED_TYPE = rf"(^|,)({'|'.join(_TYPES)}):[a-z]+"


@dataclass(frozen=True)
class MessageFailure:
    """Why messages of one member move to an error destination. `label` names the record set they come from."""

    destination: str
    label: str
    reason: str
    time_ms: int


def described(
    batch: pa.RecordBatch, sequences: Sequence[int], deliveries: Sequence[int], failure: MessageFailure
) -> pa.RecordBatch:
    """Rows as the error destination keeps them. `batch` has the columns `properties` and JMSExpiration."""
    properties = []
    for row, sequence, count, expiration in zip(
        map_rows(batch.column("properties")),
        sequences,
        deliveries,
        batch.column("JMSExpiration").to_pylist(),
        strict=True,
    ):
        added = {
            FROM: failure.destination,
            POSITION: f"{failure.label}#{sequence}",
            REASON: failure.reason,
            DELIVERIES: str(count),
            TIME: str(failure.time_ms),
            **({EXPIRATION: str(expiration)} if expiration else {}),
        }
        properties.append(_with_types({**without_failure(row or {}), **added}, added))
    return _replaced(batch, properties, pa.array([0] * batch.num_rows, pa.int64()))


def redriven(batch: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
    """The rows as they were before they failed. One whose expiration has passed meanwhile gets none: a person has decided
    that it shall be delivered."""
    properties, expirations = [], []
    for row in map_rows(batch.column("properties")):
        known = row or {}
        expiration = int(known.get(EXPIRATION, 0))
        expirations.append(expiration if expiration > now_ms else 0)
        properties.append(without_failure(known))
    return _replaced(batch, properties, pa.array(expirations, pa.int64()))


def without_failure(properties: Mapping[str, str]) -> dict[str, str]:
    """Without the properties of an error destination and their types."""
    kept = {name: text for name, text in properties.items() if name not in _OURS}
    if TYPES_PROPERTY in kept:
        types = [item for item in kept[TYPES_PROPERTY].split(",") if item.split(":")[0] not in _OURS]
        kept[TYPES_PROPERTY] = ",".join(types)
        if not types:
            del kept[TYPES_PROPERTY]
    return kept


def added_bytes(rows: pa.RecordBatch) -> pa.Int64Array | None:
    """How many bytes of each row's properties are of an error destination, or of `jmsq-set-aside`; None: none."""
    properties = rows.column("properties")
    keys, values = properties.keys, properties.items
    ours = pc.is_in(keys, _ADDED)
    if not pc.any(ours, min_count=0).as_py():
        return None
    names, texts = _lengths(keys), _lengths(values)
    types = pc.utf8_ltrim(pc.replace_substring_regex(values, _ADDED_TYPE, ""), ",")
    left = _lengths(types)
    of_types = pc.add(pc.subtract(texts, left), pc.if_else(pc.equal(left, 0), names, 0))
    is_types = pc.equal(keys, TYPES_PROPERTY)
    by_entry = pc.if_else(ours, pc.add(names, texts), pc.if_else(is_types, of_types, 0))
    through = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(by_entry)]).take(properties.offsets)
    by_row = pc.subtract(through[1:], through[:-1])
    return pc.if_else(properties.is_valid(), by_row, 0)


def _lengths(texts: pa.StringArray) -> pa.Int64Array:
    return pc.cast(pc.fill_null(pc.binary_length(texts), 0), pa.int64())


def _with_types(properties: dict[str, str], added: Mapping[str, str]) -> dict[str, str]:
    declared = [item for item in properties.get(TYPES_PROPERTY, "").split(",") if item]
    declared += [f"{name}:{kind}" for name, kind in _TYPES.items() if name in added]
    return {**properties, TYPES_PROPERTY: ",".join(declared)}


def _replaced(batch: pa.RecordBatch, properties: list[dict[str, str]], expirations: pa.Array) -> pa.RecordBatch:
    rows = map_column([row or None for row in properties])
    for name, column in (("properties", rows), ("JMSExpiration", expirations)):
        batch = batch.set_column(batch.schema.get_field_index(name), name, column)
    return batch
