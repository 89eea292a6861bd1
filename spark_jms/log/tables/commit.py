"""Committing to a table's log: the only way anything gets into it.

    refresh -> prepare(snapshot) -> decide(snapshot, prepared) -> append as version + 1 -- created --> Committed
       ^                                                                |
       +------------------ random pause <-- another writer was first ---+

`prepare` does all I/O that the decision needs: it stages files, routes them again, asks the store. `decide` is pure: an immutable
snapshot (and what was prepared) in, a decision out. Each attempt decides on the newest snapshot, so a decision never overlooks a
transaction that is in the log already, a changed declaration or a removed file.

Here too are the actions that begin a table, declare what it is, and end it, and the columns of the tables beside a destination's
own.

Features: C3, C5, C14, C15, C18, T6 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import pyarrow as pa

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.messages.columns import ORDINAL
from spark_jms.core.messages.properties import PromotedColumns
from spark_jms.errors import CommitConflictError, InvalidDestinationError
from spark_jms.log.tables.checkpoints import LogListing, commit_path
from spark_jms.log.tables.delta_log import Action, DeltaLog
from spark_jms.log.tables.files import ACKNOWLEDGED, shown_statistics
from spark_jms.log.tables.snapshot import DROPPED, ENGINE, Snapshot
from spark_jms.log.tables.storage import Storage
from spark_jms.settings.fields import folded

MAX_ATTEMPTS = 200
_MAX_PAUSE_S = 0.05
HAPPENED = "happened_ms"
ACKNOWLEDGEMENT_SCHEMA = pa.schema(
    [
        (ORDINAL, pa.int64()),
        ("subscription", pa.string()),
        ("consumer", pa.string()),
        ("claim", pa.string()),
        ("epoch", pa.int64()),
        (ACKNOWLEDGED, pa.int64()),
        ("messages", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("ranges", pa.string()),
    ]
)
LIFE_CYCLE_SCHEMA = pa.schema(
    [
        (ORDINAL, pa.int64()),
        ("key", pa.string()),
        ("event", pa.string()),
        (HAPPENED, pa.int64()),
        ("subscription", pa.string()),
        ("consumer", pa.string()),
        ("claim", pa.string()),
        ("messages", pa.int64()),
        ("first", pa.int64()),
        ("last", pa.int64()),
        ("ranges", pa.string()),
        ("detail", pa.string()),
    ]
)
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

# -- a commit ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decision:
    """One version of the log. Subclasses add what their caller wants to know once it is committed."""

    operation: str
    actions: Sequence[Action]
    parameters: Mapping[str, str] = field(default_factory=dict)


D = TypeVar("D", bound=Decision)
P = TypeVar("P")


@dataclass(frozen=True)
class Committed(Generic[D]):
    version: int
    decision: D


def commit(log: DeltaLog, decide: Callable[[Snapshot], D | None]) -> Committed[D] | None:
    """Commit a decision that needs nothing but the snapshot."""
    return commit_prepared(log, lambda snapshot: None, lambda snapshot, nothing: decide(snapshot))


def commit_prepared(
    log: DeltaLog,
    prepare: Callable[[Snapshot], P],
    decide: Callable[[Snapshot, P], D | None],
    *,
    attempts: int = MAX_ATTEMPTS,
    pause: Callable[[float], None] = time.sleep,
) -> Committed[D] | None:
    """None when `decide` found nothing to do. Raises CommitConflictError after `attempts`."""
    for attempt in range(attempts):
        with log.lock:
            snapshot = log.refresh()
            decision = decide(snapshot, prepare(snapshot))
            if decision is None:
                return None
            if log.append(snapshot, decision.operation, decision.actions, decision.parameters):
                return Committed(snapshot.version + 1, decision)
        pause(random.uniform(0, min(_MAX_PAUSE_S, 0.001 * 2 ** min(attempt, 8))))
    raise CommitConflictError(
        f"destination {log.name}: other writers were first {attempts} times in a row: nothing was committed; try again"
    )


# -- a table's first commit and its columns, in the words of Delta's log -----------------------------------------------


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


# -- a destination's declaration ---------------------------------------------------------------------------------------


def metadata_action(snapshot: Snapshot, destination: Destination) -> dict[str, dict[str, Any]]:
    """The metaData action that makes `destination` the table's declaration. Properties that are promoted now become columns.
    Raises InvalidDestinationError when the table has such a column of another type."""
    stored: dict[str, str] = dict(snapshot.metadata.get("configuration") or {})
    kept = {key: value for key, value in stored.items() if not key.startswith("jmsq.") or key == DROPPED}
    changed = {**kept, **removed_retention(destination), **destination.to_configuration()}
    promoted = PromotedColumns.of(destination.promoted_properties)
    metadata = with_columns(snapshot.metadata, promoted.fields) if promoted else snapshot.metadata
    return {"metaData": {**metadata, "configuration": changed}}


def removed_retention(destination: Destination) -> dict[str, str]:
    """How long a Delta checkpoint remembers removed files: clean-up needs them until the grace is over."""
    return {"delta.deletedFileRetentionDuration": f"interval {max(destination.file_grace_ms // 1000, 1)} seconds"}


# -- the end of a table ------------------------------------------------------------------------------------------------


def decide_drop(snapshot: Snapshot) -> Decision:
    """Pure. After this commit every send and receive raises DestinationDroppedError."""
    configuration = {**(snapshot.metadata.get("configuration") or {}), DROPPED: "true"}
    return Decision("DROP", [{"metaData": {**snapshot.metadata, "configuration": configuration}}])


def delete_dropped_table(storage: Storage, path: str) -> None:
    """Delete all files below `path`, or those that an interrupted call has left. The commit that drops the table is deleted
    last: without it a process that slept could send to the rest."""
    last = f"{path}/{commit_path(LogListing.of(storage.child(path)).newest)}"
    for file in list(storage.list(path)):
        if file.path != last:
            storage.delete(file.path)
    storage.delete_all(path)
