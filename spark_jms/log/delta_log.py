"""Following and appending to a Delta log (C3, C5).

Reading: `refresh` applies the commit files that were added since the last call. Writing: `append` creates the next commit
file unless it exists. That put-if-absent is the compare-and-swap on which everything else stands. It costs the same at
version 10 and at version 5,000, unlike a commit of delta-rs (see docs/ARCHITECTURE.md). delta-rs creates the tables and
writes the Delta checkpoints.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from spark_jms.errors import InvalidDestinationError, UnreadableTableError
from spark_jms.log.replay import ENGINE, LogReplay
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import Storage, now_ms

LOG = "_delta_log"
Action = Mapping[str, Mapping[str, Any]]
_GAP_CHECK_INTERVAL_MS = 30_000


def commit_path(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def _metadata_from_parquet(metadata: dict[str, Any]) -> dict[str, Any]:
    """As in a commit file (maps as objects, no nulls), because the next metaData action is made from it."""
    out = {key: value for key, value in metadata.items() if value is not None}
    out["configuration"] = dict(metadata["configuration"] or {})
    out["format"] = {**metadata["format"], "options": dict(metadata["format"].get("options") or {})}
    return out


class DeltaLog:
    """The log of one table. Thread-safe. `snapshot` is the newest one that `refresh` has made."""

    def __init__(self, storage: Storage, name: str) -> None:
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
        """Looks up one file name: cheap enough for 100 calls a second."""
        snapshot = self._snapshot
        if snapshot is None or self.storage.exists(commit_path(snapshot.version + 1)):
            return True
        return now_ms() - self._gap_checked_ms > _GAP_CHECK_INTERVAL_MS

    def refresh(self) -> Snapshot:
        """The newest snapshot. Raises InvalidDestinationError when there is no table, ForeignWriteError while it holds
        messages of another program."""
        with self.lock:
            if self._snapshot is None:
                self._snapshot = self._load()
                self._gap_checked_ms = now_ms()
            snapshot = self._advance(self._snapshot)
            snapshot.check_ours()  # else keep the snapshot before the foreign commit: an administrator may undo it
            self._snapshot = snapshot
            if now_ms() - self._gap_checked_ms > _GAP_CHECK_INTERVAL_MS:
                self._gap_checked_ms = now_ms()
                snapshot = self._recover_from_gap(snapshot)
                self._snapshot = snapshot = snapshot.without_old_removed(now_ms())
            return snapshot

    def forget_removed(self, until_ms: int) -> None:
        """Clean-up is done with the files that were removed at or before `until_ms`."""
        with self.lock:
            self._snapshot = self.snapshot.without_removed(until_ms)

    def _advance(self, snapshot: Snapshot) -> Snapshot:
        """With all commits that have been added. Makes one snapshot, however many there are."""
        version = snapshot.version + 1
        data = self.storage.get(commit_path(version))
        if data is None:
            return snapshot
        replay = LogReplay(snapshot)
        while data is not None:
            replay.apply(version, data)
            version += 1
            data = self.storage.get(commit_path(version))
        return replay.snapshot()

    def _recover_from_gap(self, snapshot: Snapshot) -> Snapshot:
        """Clean-up may have deleted log files that this process, while it slept, had not read: then the next one never
        appears. A Delta checkpoint ahead of us tells."""
        pointer = self._last_checkpoint()
        ahead = pointer is not None and pointer["version"] > snapshot.version
        if ahead and not self.storage.exists(commit_path(snapshot.version + 1)):
            return self._load()
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
        start = Snapshot(f"destination {self.name} at {self.storage.uri}")
        pointer = self._last_checkpoint()
        if pointer is not None:
            start = self._read_checkpoint(start, pointer)
        elif not self.storage.exists(commit_path(0)):
            raise InvalidDestinationError(
                f"there is no destination {self.name!r} at {self.storage.uri}: create it with `jmsq apply --root ROOT MODULE.yaml`"
            )
        snapshot = self._advance(start)
        snapshot.check_ours()
        if not snapshot.metadata:
            raise UnreadableTableError(f"{snapshot.where}: the log has no metadata: its first commit is missing")
        return snapshot

    def _read_checkpoint(self, start: Snapshot, pointer: Mapping[str, Any]) -> Snapshot:
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
        replay = LogReplay(start)
        for name in names:
            try:
                with self.storage.open_input(name) as source:
                    file = pq.ParquetFile(source)
                    columns = [c for c in file.schema_arrow.names if c in wanted]
                    rows = file.read(columns=columns).to_pylist()
            except (OSError, pa.ArrowException) as error:
                raise UnreadableTableError(f"{start.where}: checkpoint {name} cannot be read ({error})") from error
            for row in rows:
                if row.get("metaData"):
                    row["metaData"] = _metadata_from_parquet(row["metaData"])
            replay.apply_actions(rows, version)
        return replay.snapshot()

    # -- writing --------------------------------------------------------------------------------------------------
    def append(
        self, snapshot: Snapshot, operation: str, actions: Iterable[Action], parameters: Mapping[str, str]
    ) -> bool:
        """Try to write version `snapshot.version + 1`. False: another writer was first, and nothing was written.

        Clean-up may have deleted log files past us while we slept, so that the name is free although the version was
        written. Clean-up writes a Delta checkpoint before it deletes log files, so a checkpoint of this or a later
        version tells. In case we sleep between that look and the write, the previous version must still exist after the
        write, or we take the commit back.
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
        if durable:  # before the log names them; fsync also covers what tasks in other processes wrote
            self.storage.sync([str(action["add"]["path"]) for action in actions if "add" in action])
        if (
            not self.storage.create(commit_path(version), data, durable=durable)
            and self.storage.get(commit_path(version)) != data
        ):
            return False  # (obstore may have retried and found our own file)
        if version and not self.storage.exists(commit_path(version - 1)):
            pointer = self._last_checkpoint()
            if pointer is None or pointer["version"] != version - 1:
                self.storage.delete(commit_path(version))
                with self.lock:
                    self._snapshot = None
                return False
        with self.lock:
            if self._snapshot is snapshot:
                replay = LogReplay(snapshot)
                replay.apply(version, data)
                self._snapshot = replay.snapshot()
        return True
