"""Writing a Delta checkpoint, and forgetting the log before it (C13).

A Delta checkpoint is a Parquet file with the state of a table at one version: one row for the protocol, one for the
metadata, one per transaction, tombstone and active file. `_last_checkpoint` points to the newest one, and new readers
start there. Our own, because delta-rs, which writes them too, would more than double the size of an installation.

Expiry deletes a log file when it is older than the log's retention and a checkpoint of a later version is older than the
retention as well. Whatever a process finds through `_last_checkpoint` therefore stays readable for that time, even if two
processes write checkpoints at once and the older pointer wins.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from spark_jms.errors import UnreadableTableError
from spark_jms.log.checkpoints import LOG, LogListing, hinted_checkpoint
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import Storage
from spark_jms.settings.duration import parse_duration_ms

LAST_CHECKPOINT = f"{LOG}/_last_checkpoint"
TABLE_FEATURES = 7  # the writer version from which a table lists features, each with state of its own
_LOG_FILE = re.compile(r"/(\d{20})\.(?:json|checkpoint(?:\.\d{10}\.\d{10})?\.parquet)\Z")
_DEFAULT_LOG_RETENTION = "interval 30 days"  # Delta's

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
        "remove": pa.struct({"path": pa.string(), "deletionTimestamp": pa.int64(), "dataChange": pa.bool_()}),
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
    for path, when_ms in snapshot.removed_ms.items():
        yield {"remove": {"path": path, "deletionTimestamp": when_ms, "dataChange": False}}
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


def expire_log(storage: Storage, snapshot: Snapshot, now: int) -> int:
    """Delete log files that the retention does not protect, oldest first. Returns how many."""
    before = now - _retention_ms(snapshot)
    files = [(int(found[1]), file) for file in storage.list(LOG) if (found := _LOG_FILE.search(file.path))]
    checkpoints = [found.version for found in LogListing.of(storage).checkpoints if found.modified_ms < before]
    needed_from = max(checkpoints, default=0)
    expired = sorted(
        (version, file.path) for version, file in files if version < needed_from and file.modified_ms < before
    )
    for _, path in expired:
        storage.delete(path)
    return len(expired)


def _retention_ms(snapshot: Snapshot) -> int:
    written = str(
        (snapshot.metadata.get("configuration") or {}).get("delta.logRetentionDuration", _DEFAULT_LOG_RETENTION)
    )
    try:
        return parse_duration_ms(written.removeprefix("interval "))
    except ValueError as error:
        raise UnreadableTableError(f"{snapshot.where}: delta.logRetentionDuration: {error}") from error
