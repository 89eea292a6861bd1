"""Messages as tables, for the tests of selectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from spark_jms.core.selector import Selector

Typed = tuple[str, Any]  # a property: its JMS type and its value

HEADER_TYPES = {
    "JMSMessageID": pa.string(),
    "JMSTimestamp": pa.int64(),
    "JMSPriority": pa.int32(),
    "JMSDeliveryMode": pa.int32(),
    "JMSCorrelationID": pa.string(),
    "JMSType": pa.string(),
    "JMSXGroupID": pa.string(),
    "JMSXGroupSeq": pa.int32(),
}


# -- messages as tables ------------------------------------------------------------------------------------------------
def stored_text(kind: str, value: Any) -> str:
    """A property value as a message table stores it."""
    if kind == "boolean":
        return "true" if value else "false"
    if kind == "float":
        return str(np.float32(value))
    return str(value)


def stored_properties(properties: Mapping[str, Typed]) -> list[tuple[str, str]]:
    """The map entries of typed properties, with the reserved entry that names the types."""
    entries = [(name, stored_text(kind, value)) for name, (kind, value) in properties.items()]
    types = ",".join(f"{name}:{kind}" for name, (kind, _) in properties.items() if kind != "string")
    return [*entries, ("JMS_JMSQ_Types", types)] if types else entries


def table_of(rows: Sequence[tuple[Mapping[str, Any], Mapping[str, Typed]]]) -> pa.Table:
    """A message table of (headers, typed properties)."""
    columns: dict[str, Any] = {
        name: pa.array([headers.get(name) for headers, _ in rows], kind) for name, kind in HEADER_TYPES.items()
    }
    maps = [stored_properties(properties) or None for _, properties in rows]
    columns["properties"] = pa.array(maps, pa.map_(pa.string(), pa.string()))
    return pa.table(columns)


def python_values(properties: Mapping[str, Typed]) -> dict[str, Any]:
    """The typed properties as Python values."""
    return {n: float(np.float32(v)) if kind == "float" else v for n, (kind, v) in properties.items()}


def selector(text: str) -> Selector:
    found = Selector.parse(text)
    assert found is not None
    return found


def chosen(text: str, *properties: Mapping[str, Typed]) -> list[bool]:
    """The selector's result for messages with these properties; `mask` and `matches` must agree."""
    found = selector(text)
    mask: list[bool] = found.mask(table_of([({}, each) for each in properties])).tolist()
    assert mask == [found.matches({}, python_values(each)) for each in properties]
    return mask
