"""The end of a table: the commit that drops it, and the deletion of its files.

Features: C15, C18 (docs/FEATURES.md)
"""

from __future__ import annotations

from spark_jms.log.checkpoints import LogListing, commit_path
from spark_jms.log.commit import Decision
from spark_jms.log.snapshot import DROPPED, Snapshot
from spark_jms.log.storage import Storage


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
