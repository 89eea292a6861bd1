"""A Delta log, followed and appended to (C3, C5).

Reading: `refresh` applies the commit files that have come since. Writing: `append` creates the next commit file if nobody
has: that one put-if-absent is the compare-and-swap on which everything else stands. It costs the same at version 10 and
at version 5,000, which delta-rs's commit does not (see docs/ARCHITECTURE.md); tables are created and checkpoints written
by delta-rs.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from spark_jms.errors import InvalidDestinationError, UnreadableTableError
from spark_jms.log.snapshot import ENGINE, Snapshot
from spark_jms.log.storage import LocalStorage, ObjectStorage, now_ms

LOG = "_delta_log"
Action = Mapping[str, Mapping[str, Any]]
_GAP_CHECK_INTERVAL_MS = 30_000


def commit_path(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def _metadata_from_parquet(metadata: dict[str, Any]) -> dict[str, Any]:
    """As in a commit file: maps are objects and what is null is absent, since the next declaration is made from it."""
    out = {key: value for key, value in metadata.items() if value is not None}
    out["configuration"] = dict(metadata["configuration"] or {})
    out["format"] = {**metadata["format"], "options": dict(metadata["format"].get("options") or {})}
    return out


class DeltaLog:
    """The log of one table. Thread-safe. `snapshot` is as of the last `refresh`."""

    def __init__(self, storage: LocalStorage | ObjectStorage, name: str) -> None:
        self.storage = storage
        self.name = name
        self.lock = threading.RLock()
        self._snapshot: Snapshot | None = None
        self._gap_checked_ms = 0

    # -- reading --------------------------------------------------------------------------------------------------
    @property
    def snapshot(self) -> Snapshot:
        return self._snapshot or self.refresh()

    def has_news(self) -> bool:
        """One look at one name: cheap enough to ask 100 times a second."""
        snapshot = self._snapshot
        if snapshot is None or self.storage.exists(commit_path(snapshot.version + 1)):
            return True
        return now_ms() - self._gap_checked_ms > _GAP_CHECK_INTERVAL_MS

    def refresh(self) -> Snapshot:
        """Apply what has come. Raises InvalidDestinationError when there is no table."""
        with self.lock:
            if self._snapshot is None:
                self._snapshot = self._load()
                self._gap_checked_ms = now_ms()
            snapshot = self._advance(self._snapshot)
            if now_ms() - self._gap_checked_ms > _GAP_CHECK_INTERVAL_MS:
                self._gap_checked_ms = now_ms()
                snapshot = self._recover_from_gap(snapshot)
                snapshot.forget_removed(now_ms())
            self._snapshot = snapshot
            return snapshot

    def _advance(self, snapshot: Snapshot) -> Snapshot:
        while True:
            data = self.storage.get(commit_path(snapshot.version + 1))
            if data is None:
                snapshot.check_ours()
                return snapshot
            try:
                snapshot.apply(snapshot.version + 1, data)
            except BaseException:
                self._snapshot = None  # half applied: never to be used
                raise

    def _recover_from_gap(self, snapshot: Snapshot) -> Snapshot:
        """The log may have been cleaned up past a process that slept: then the next file never comes."""
        pointer = self._last_checkpoint()
        ahead = pointer is not None and pointer["version"] > snapshot.version
        if ahead and not self.storage.exists(commit_path(snapshot.version + 1)):
            return self._advance(self._load())
        return snapshot

    def versions_since_checkpoint(self) -> int:
        pointer = self._last_checkpoint()
        return self.refresh().version - (pointer["version"] if pointer else 0)

    def _last_checkpoint(self) -> dict[str, Any] | None:
        data = self.storage.get(f"{LOG}/_last_checkpoint")
        if data is None:
            return None
        try:
            pointer = json.loads(data)
            return pointer if isinstance(pointer["version"], int) else None
        except (ValueError, KeyError, TypeError) as error:
            raise UnreadableTableError(
                f"{self.storage.uri}: _delta_log/_last_checkpoint is damaged ({error!r})"
            ) from error

    def _load(self) -> Snapshot:
        snapshot = Snapshot(f"destination {self.name} at {self.storage.uri}")
        pointer = self._last_checkpoint()
        if pointer is not None:
            self._read_checkpoint(snapshot, pointer)
        elif not self.storage.exists(commit_path(0)):
            raise InvalidDestinationError(
                f"there is no destination {self.name!r} at {self.storage.uri}: create it with `jmsq apply --root ROOT MODULE.yaml`"
            )
        snapshot = self._advance(snapshot)
        if not snapshot.metadata:
            raise UnreadableTableError(f"{snapshot.where}: the log has no metadata: its first commit is missing")
        return snapshot

    def _read_checkpoint(self, snapshot: Snapshot, pointer: Mapping[str, Any]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        version = pointer["version"]
        parts = pointer.get("parts") or 1
        names = (
            [f"{LOG}/{version:020d}.checkpoint.parquet"]
            if parts == 1
            else [f"{LOG}/{version:020d}.checkpoint.{i:010d}.{parts:010d}.parquet" for i in range(1, parts + 1)]
        )
        wanted = {"add", "remove", "txn", "metaData", "protocol"}
        for name in names:
            try:
                with self.storage.open_input(name) as source:
                    file = pq.ParquetFile(source)
                    columns = [c for c in file.schema_arrow.names if c in wanted]
                    rows = file.read(columns=columns).to_pylist()
            except (OSError, pa.ArrowException) as error:
                raise UnreadableTableError(f"{snapshot.where}: checkpoint {name} cannot be read ({error})") from error
            for row in rows:
                if row.get("metaData"):
                    row["metaData"] = _metadata_from_parquet(row["metaData"])
            snapshot.apply_actions(rows, version)

    # -- writing --------------------------------------------------------------------------------------------------
    def append(
        self, snapshot: Snapshot, operation: str, actions: Iterable[Action], parameters: Mapping[str, str]
    ) -> bool:
        """Try to become version `snapshot.version + 1`. False: somebody else was first; nothing was written.

        The log may have been cleaned up past us while we slept, and the name be free for the wrong reason. A checkpoint
        is written before the log's files go, so one of this or a later version tells it; and should we fall asleep in
        between, the version before must still be there after writing, or the commit is taken back.
        """
        version = snapshot.version + 1
        pointer = self._last_checkpoint()
        if pointer is not None and pointer["version"] >= version:
            if not self.storage.exists(commit_path(version)):
                with self.lock:
                    self._snapshot = None
            return False
        info = {
            "commitInfo": {
                "timestamp": now_ms(),
                "operation": operation,
                "operationParameters": dict(parameters),
                "engineInfo": f"{ENGINE}/1",
                "readVersion": snapshot.version,
                "isBlindAppend": False,
                "commitId": uuid.uuid4().hex,
            }
        }
        actions = list(actions)
        lines = "\n".join(json.dumps(action, separators=(",", ":")) for action in (info, *actions))
        data = (lines + "\n").encode()
        durable = snapshot.destination.durability == "power"
        if durable:  # before the log names them; tasks, other processes, have written them
            self.storage.sync([str(action["add"]["path"]) for action in actions if "add" in action])
        if (
            not self.storage.create(commit_path(version), data, durable=durable)
            and self.storage.get(commit_path(version)) != data
        ):
            return False  # (an object store that retried by itself may find our own file there)
        if version and not self.storage.exists(commit_path(version - 1)):
            pointer = self._last_checkpoint()
            if pointer is None or pointer["version"] != version - 1:
                self.storage.delete(commit_path(version))
                with self.lock:
                    self._snapshot = None
                return False
        with self.lock:
            if self._snapshot is snapshot and snapshot.version == version - 1:
                snapshot.apply(version, data)
        return True
