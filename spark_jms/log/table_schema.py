"""A table's columns and first commit in the words of Delta's log.

Features: C3 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_jms.errors import InvalidDestinationError
from spark_jms.log.replay import ENGINE
from spark_jms.log.shown_statistics import shown_statistics
from spark_jms.settings.promoted_property import folded

PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
_PRIMITIVES = {
    pa.string(): "string",
    pa.binary(): "binary",
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
}
_JMS_NAMES = {"integer": "int"}


def first_commit(
    name: str, schema: pa.Schema, partitioned_by: Sequence[str], configuration: Mapping[str, str], now: int
) -> bytes:
    """The content of version 0."""
    metadata = {
        "id": str(uuid.uuid4()),
        "name": name,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(_struct(schema)),
        "partitionColumns": list(partitioned_by),
        "createdTime": now,
        "configuration": {**configuration, **shown_statistics(schema.names)},
    }
    info = {"timestamp": now, "operation": "CREATE TABLE", "operationParameters": {}, "engineInfo": f"{ENGINE}/1"}
    actions = ({"commitInfo": info}, {"protocol": PROTOCOL}, {"metaData": metadata})
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()


def column_types(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a table's metaData action, by name."""
    return {field["name"]: field["type"] for field in json.loads(str(metadata["schemaString"]))["fields"]}


def with_columns(metadata: Mapping[str, Any], added: Iterable[pa.Field]) -> dict[str, Any]:
    """The metaData action with these columns as well, at the end. Raises InvalidDestinationError for one that the table has
    with another type, or by a name that differs in upper and lower case alone: a column once there stays."""
    known = {folded(name): (name, kind) for name, kind in column_types(metadata).items()}
    missing = []
    for column in added:
        name, kind = known.setdefault(folded(column.name), (column.name, None))
        if name != column.name or kind not in (None, _type(column.type)):
            raise InvalidDestinationError(
                f"the table of destination {metadata.get('name')} has a column {name!r} of type {kind} since that property was "
                f"promoted first, and cannot have {column.name!r} of type {_type(column.type)}: a column of a Delta table stays. "
                f"Promote {name}:{_JMS_NAMES.get(kind, kind)}, or send the value as another property"
            )
        if kind is None:
            missing.append(column)
    if not missing:
        return dict(metadata)
    whole = json.loads(str(metadata["schemaString"]))
    whole["fields"] += _struct(pa.schema(missing))["fields"]
    return {**metadata, "schemaString": json.dumps(whole)}


def _struct(schema: pa.Schema) -> dict[str, Any]:
    fields = [{"name": f.name, "type": _type(f.type), "nullable": f.nullable, "metadata": {}} for f in schema]
    return {"type": "struct", "fields": fields}


def _type(kind: pa.DataType) -> Any:
    """Raises KeyError for a type that no table of ours has."""
    if pa.types.is_map(kind):
        key, value = _type(kind.key_type), _type(kind.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    return _PRIMITIVES[kind]
