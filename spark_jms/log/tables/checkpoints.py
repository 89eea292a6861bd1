"""Delta checkpoints: which ones a log has, reading and writing one.

A table is read from its newest checkpoint and the commit files behind it. `_last_checkpoint` names the newest one, but it is a
hint: it may be lost, damaged or late, and then the listing of the log decides (`LogListing`).

A checkpoint is a Parquet file with the state of a table at one version: one row for the protocol, one for the metadata, one per
transaction and active file. We write it ourselves, because delta-rs, which writes them too, would more than double the size of an
installation. It has no tombstones of removed files: readers need none, and clean-up has lists of its own (log/upkeep/clean_up.py),
so a checkpoint costs the same after a million removals.

A checkpoint has no `commitInfo`, so it does not tell which program made the commits before it. Therefore each of our commits notes
its own version as a transaction (`NEWEST_OWN_COMMIT`). We never commit on top of a change that we refuse, so only the commits
behind that version can hold one, and `LogReplay.judge` looks at them.

Features: C3, C5, C13 (docs/FEATURES.md)
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from spark_jms.core.ordering.units_of_order import PATH_PREFIX
from spark_jms.errors import UnreadableTableError
from spark_jms.log.tables.snapshot import LogReplay, Snapshot, digest_of
from spark_jms.log.tables.storage import Storage

LOG = "_delta_log"
LAST_CHECKPOINT = f"{LOG}/_last_checkpoint"
NEWEST_OWN_COMMIT = "jmsq/newest-own-commit"  # txn app id
TABLE_FEATURES = 7  # the writer version from which a table lists features, each with state of its own
_COMMIT = re.compile(r"(\d{20})\.json\Z")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet\Z")
_WANTED = {"add", "remove", "txn", "metaData", "protocol"}
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


def commit_path(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def checkpoint_path(version: int) -> str:
    return f"{LOG}/{version:020d}.checkpoint.parquet"


# -- which there are ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Checkpoint:
    """The files of one complete checkpoint. `modified_ms` is 0 when it was not listed."""

    version: int
    paths: tuple[str, ...]
    modified_ms: int = 0

    @staticmethod
    def named(version: int, parts: int) -> Checkpoint:
        stem = f"{LOG}/{version:020d}.checkpoint"
        if parts == 1:
            return Checkpoint(version, (f"{stem}.parquet",))
        return Checkpoint(version, tuple(f"{stem}.{i:010d}.{parts:010d}.parquet" for i in range(1, parts + 1)))


@dataclass(frozen=True)
class LogListing:
    """The versions of all commit files, and the complete checkpoints; both in ascending order."""

    commits: tuple[int, ...]
    checkpoints: tuple[Checkpoint, ...]

    @property
    def newest(self) -> int:
        """-1 for an empty log."""
        return max([*self.commits[-1:], *(checkpoint.version for checkpoint in self.checkpoints[-1:])], default=-1)

    @staticmethod
    def of(storage: Storage) -> LogListing:
        commits: list[int] = []
        modified_ms: dict[str, int] = {}
        stems: set[tuple[int, int]] = set()
        for info in storage.list(LOG):
            name = info.path.rsplit("/", 1)[-1]
            if found := _COMMIT.match(name):
                commits.append(int(found[1]))
            elif found := _CHECKPOINT.match(name):
                stems.add((int(found[1]), int(found[3] or 1)))
                modified_ms[f"{LOG}/{name}"] = info.modified_ms
        checkpoints = []
        for version, parts in sorted(stems):
            paths = Checkpoint.named(version, parts).paths
            if all(path in modified_ms for path in paths):
                checkpoints.append(Checkpoint(version, paths, max(modified_ms[path] for path in paths)))
        return LogListing(tuple(sorted(commits)), tuple(checkpoints))


def hinted_checkpoint(storage: Storage) -> Checkpoint | None:
    """The checkpoint that `_last_checkpoint` names; None when the hint is lost or damaged."""
    try:
        hint = json.loads(storage.get(f"{LOG}/_last_checkpoint") or b"null")
        return Checkpoint.named(int(hint["version"]), int(hint.get("parts") or 1))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def newest_checkpoint_version(storage: Storage) -> int | None:
    """None when there is no checkpoint, or none is needed because the log is complete."""
    hinted = hinted_checkpoint(storage)
    if hinted is not None:
        return hinted.version
    if storage.exists(commit_path(0)):
        return None
    checkpoints = LogListing.of(storage).checkpoints
    return checkpoints[-1].version if checkpoints else None


# -- reading -----------------------------------------------------------------------------------------------------------


def read_checkpoint(storage: Storage, start: Snapshot, checkpoint: Checkpoint) -> Snapshot:
    """`start` is an empty snapshot. Raises UnreadableTableError, or ForeignWriteError when it names files of another
    program. `Snapshot.foreign` is set when the checkpoint contains a commit that we refuse."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    replay = LogReplay(start)
    for path in checkpoint.paths:
        try:
            with storage.open_input(path) as source:
                file = pq.ParquetFile(source)
                rows = file.read(columns=[c for c in file.schema_arrow.names if c in _WANTED]).to_pylist()
        except (OSError, pa.ArrowException) as error:
            raise UnreadableTableError(f"{start.where}: checkpoint {path} cannot be read ({error})") from error
        for row in rows:
            if row.get("metaData"):
                row["metaData"] = _metadata(row["metaData"])
        replay.apply_actions(rows, checkpoint.version)
    _judge_newest(storage, replay, checkpoint.version)
    newest = storage.get(commit_path(checkpoint.version))
    return replace(replay.snapshot(), digest="" if newest is None else digest_of(newest))


def _judge_newest(storage: Storage, replay: LogReplay, version: int) -> None:
    """The commits behind our newest one, as far as they are still in the log. A table that we have not committed to since
    this rule has no such transaction: then all commits in the log are judged."""
    own = replay.transaction(NEWEST_OWN_COMMIT)
    first = own + 1 if own is not None else min(LogListing.of(storage).commits, default=version + 1)
    for judged in range(first, version + 1):
        data = storage.get(commit_path(judged))
        if data is not None:
            replay.judge(judged, data)


def _metadata(metadata: dict[str, Any]) -> Mapping[str, Any]:
    """As in a commit file (maps as objects, no nulls), because the next metaData action is made from it."""
    out = {key: value for key, value in metadata.items() if value is not None}
    out["configuration"] = dict(metadata["configuration"] or {})
    out["format"] = {**metadata["format"], "options": dict(metadata["format"].get("options") or {})}
    return out


# -- writing -----------------------------------------------------------------------------------------------------------


def write_checkpoint(storage: Storage, snapshot: Snapshot) -> None:
    """Write the checkpoint of this version. Raises UnreadableTableError when another program has given the table features of Delta
    that are not known here."""
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
