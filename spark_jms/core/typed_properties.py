"""Checks that the typed properties of a batch can be read back.

A sender may give the map of properties as it is stored, with the entry JMS_JMSQ_Types ("amount:double,count:long"), as a
stream does that is piped on. A value that does not have its declared type would make the message undecodable for every
reader, so the sender gets the error. Values are checked by columns; only a value that fails is looked at by itself.

Features: C2, C20 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.map_entries import MapEntries
from spark_jms.errors import MessageFormatError

TYPES_PROPERTY = "JMS_JMSQ_Types"
NUMBERS: Mapping[str, pa.DataType] = {
    "byte": pa.int64(),
    "short": pa.int64(),
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float64(),
    "double": pa.float64(),
}


def declared_types(text: str) -> dict[str, str]:
    """name -> type, from the entry JMS_JMSQ_Types."""
    return dict(part.split(":", 1) for part in text.split(",") if ":" in part)


def decode_property(text: str | None, kind: str) -> object:
    """A property's value from its stored text. Raises ValueError."""
    if text is None or kind == "string":
        return text
    if kind == "boolean":
        if text not in ("true", "false"):
            raise ValueError(f"{text!r} is not a boolean")
        return text == "true"
    if kind in ("float", "double"):
        return float(text)
    if kind not in NUMBERS:
        raise ValueError(f"there is no property type {kind!r}")
    return int(text)


def check_typed_properties(properties: Any) -> None:
    """`properties` is a map array of text. Raises MessageFormatError, which names row, property and type."""
    if not pc.any(pc.equal(properties.keys, TYPES_PROPERTY)).as_py():
        return
    entries = MapEntries(properties)
    types = entries.items.take(entries.of(pc.equal(entries.keys, TYPES_PROPERTY))).dictionary_encode()
    types_of_entry = types.indices.take(entries.row_of)
    for code, text in enumerate(types.dictionary.to_pylist()):
        declared = pc.fill_null(pc.equal(types_of_entry, code), False)
        for name, kind in declared_types(text or "").items():
            chosen = pc.and_(declared, pc.equal(entries.keys, name))
            if not _all_read(entries.items.filter(chosen), kind):
                _refuse(entries, pc.indices_nonzero(chosen), name, kind)


def _all_read(values: Any, kind: str) -> bool:
    if kind == "string":
        return True
    if kind == "boolean":
        known = pc.is_in(values, pa.array(["true", "false"], values.type))
        return bool(pc.all(pc.or_(known, pc.is_null(values)), min_count=0).as_py())
    if kind not in NUMBERS:
        return False
    try:
        pc.cast(values, NUMBERS[kind])
    except pa.ArrowInvalid:
        return False
    return True


def _refuse(entries: MapEntries, chosen: Any, name: str, kind: str) -> None:
    """Raises the error for the first value that does not read; there may be none, since Arrow reads less than Python."""
    for entry in chosen.tolist():
        text = entries.items[entry].as_py()
        try:
            decode_property(text, kind)
        except ValueError as error:
            raise MessageFormatError(
                f"row {entries.row_of[entry]}: property {name!r} is {text!r}, but {TYPES_PROPERTY} declares it as {kind!r}: "
                "give the value in that type, or leave the type out"
            ) from error
