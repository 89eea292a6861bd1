"""A table's columns and first commit in the words of Delta's log (C3)."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark_jms.log.replay import ENGINE

PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
_PRIMITIVES = {pa.string(): "string", pa.binary(): "binary", pa.int64(): "long", pa.int32(): "integer"}


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
        "configuration": dict(configuration),
    }
    info = {"timestamp": now, "operation": "CREATE TABLE", "operationParameters": {}, "engineInfo": f"{ENGINE}/1"}
    actions = ({"commitInfo": info}, {"protocol": PROTOCOL}, {"metaData": metadata})
    return "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions).encode()


def _struct(schema: pa.Schema) -> dict[str, Any]:
    fields = [{"name": f.name, "type": _type(f.type), "nullable": f.nullable, "metadata": {}} for f in schema]
    return {"type": "struct", "fields": fields}


def _type(kind: pa.DataType) -> Any:
    """Raises KeyError for a type that no table of ours has."""
    if pa.types.is_map(kind):
        key, value = _type(kind.key_type), _type(kind.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    return _PRIMITIVES[kind]
