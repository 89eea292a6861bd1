"""Writing a Delta checkpoint.

A Delta checkpoint is a Parquet file with the state of a table at one version: one row for the protocol, one for the
metadata, one per transaction and active file. `_last_checkpoint` points to the newest one, and new readers start there. Our
own, because delta-rs, which writes them too, would more than double the size of an installation. It has no tombstones of
removed files: readers need none, and clean-up has lists of its own (removed_files.py), so a checkpoint costs the same after
a million removals.

Features: C13 (docs/FEATURES.md)
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from spark_jms.core.unit_paths import PATH_PREFIX
from spark_jms.errors import UnreadableTableError
from spark_jms.log.checkpoints import LOG, hinted_checkpoint
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import Storage

LAST_CHECKPOINT = f"{LOG}/_last_checkpoint"
TABLE_FEATURES = 7  # the writer version from which a table lists features, each with state of its own

_TEXTS = pa.map_(pa.string(), pa.string())
_SCHEMA = pa.schema(
    {
        "protocol": pa.struct({"minReaderVersion": pa.int32(), "minWriterVersion": pa.int32()}),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "description": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "createdTime": pa.int64(),
                "configuration": _TEXTS,
            }
        ),
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": _TEXTS,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
                "tags": _TEXTS,
            }
        ),
    }
)


def checkpoint_path(version: int) -> str:
    return f"{LOG}/{version:020d}.checkpoint.parquet"


def write_checkpoint(storage: Storage, snapshot: Snapshot) -> None:
    """Raises UnreadableTableError when another program has given the table features of Delta that are not known here."""
    import pyarrow.parquet as pq

    if int(snapshot.protocol["minWriterVersion"]) >= TABLE_FEATURES:
        raise UnreadableTableError(
            f"{snapshot.where} uses Delta writer version {snapshot.protocol['minWriterVersion']} "
            f"({snapshot.protocol.get('writerFeatures')}): destinations use writer version 2, and no Delta checkpoint is "
            "written; undo the change of table features"
        )
    rows = list(_rows(snapshot))
    whole = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), whole)
    data = whole.getvalue()
    storage.put(checkpoint_path(snapshot.version), data)
    pointer = {"version": snapshot.version, "size": len(rows), "sizeInBytes": len(data)}
    newest = hinted_checkpoint(storage)
    if newest is None or newest.version < snapshot.version:
        storage.put(LAST_CHECKPOINT, json.dumps({**pointer, "numOfAddFiles": len(snapshot.files)}).encode())


def _rows(snapshot: Snapshot) -> Iterator[dict[str, dict[str, Any]]]:
    metadata = snapshot.metadata
    yield {"protocol": dict(snapshot.protocol)}
    yield {
        "metaData": {
            **metadata,
            "format": {**metadata["format"], "options": list((metadata["format"].get("options") or {}).items())},
            "configuration": list((metadata.get("configuration") or {}).items()),
        }
    }
    for app_id, version in snapshot.transactions.items():
        yield {"txn": {"appId": app_id, "version": version}}
    for unit, member in snapshot.paths.items():
        yield {"txn": {"appId": PATH_PREFIX + unit, "version": member + 1}}
    for file in snapshot.files.values():
        yield {
            "add": {
                "path": file.path,
                "partitionValues": list(file.partition_values.items()),
                "size": file.bytes,
                "modificationTime": file.modified_ms,
                "dataChange": False,
                "stats": file.stats,
            }
        }
