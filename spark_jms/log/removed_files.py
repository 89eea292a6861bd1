"""Data files that left the log: on disk until the grace is over, then deleted.

Which files left the log is in its commit files. Clean-up collects their names in lists, one for each of its rounds, and
deletes the files of a list, then the list, when the grace of its newest file is over. So a round costs what it collects and
deletes, whatever stays: a million files that wait are some lists.

    _removed/<version>-<time of the newest removal>.txt    one path in each line

A list has the removals up to its version that no earlier list has. Commit files are only deleted up to the newest list
(log_expiry.py), so a process that continues for another one begins behind it.

Features: C13 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from spark_jms.log.checkpoints import LogListing, commit_path
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.snapshot import Snapshot

_FOLDER = "_removed"
_LIST = re.compile(rf"{_FOLDER}/(\d{{20}})-(\d+)\.txt\Z")


@dataclass(frozen=True)
class RemovedList:
    version: int
    newest_ms: int

    @property
    def path(self) -> str:
        return f"{_FOLDER}/{self.version:020d}-{self.newest_ms}.txt"


class RemovedFiles:
    """The lists of one table. Used by one thread."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log
        self._lists: list[RemovedList] | None = None  # None: not looked yet
        self._table_id = ""
        self.collected = -1  # the version up to which removals are listed

    def collect(self, snapshot: Snapshot) -> None:
        """Write a list of the removals since the last one."""
        if self._lists is None or self._table_id != snapshot.table_id:
            self._begin(snapshot)
        assert self._lists is not None
        first_time = self.collected < 0
        removed = dict(snapshot.removed_ms) if first_time else {}  # an earlier version kept them in Delta checkpoints
        commits = LogListing.of(self._log.storage).commits if first_time else ()
        for version in range(max(self.collected + 1, *commits[:1], 0), snapshot.version + 1):
            removed.update(_removals(self._log.storage.get(commit_path(version))))
        if removed:
            made = RemovedList(snapshot.version, max(removed.values()))
            self._log.storage.put(made.path, "\n".join(removed).encode())
            self._lists.append(made)
        self.collected = snapshot.version

    def delete(self, snapshot: Snapshot, before_ms: int) -> int:
        """Delete the files that left the log at or before that time; returns how many."""
        deleted = 0
        due = [one for one in self._lists or () if one.newest_ms <= before_ms]
        if due:
            self._log.sync()  # the commits that removed them, before the files go
        for one in due:
            for path in self._paths(one):
                if path not in snapshot.files:  # Delta's RESTORE brings files back
                    self._log.storage.delete(path)
                    deleted += 1
            self._log.storage.delete(one.path)
            assert self._lists is not None
            self._lists.remove(one)
        return deleted

    def without_waiting(self, candidates: set[str]) -> set[str]:
        """Those that are in no list."""
        for one in self._lists or ():
            candidates = candidates.difference(self._paths(one))
        return candidates

    def _begin(self, snapshot: Snapshot) -> None:
        found = (_LIST.search(info.path) for info in self._log.storage.list(_FOLDER))
        self._lists = sorted(
            (RemovedList(int(name[1]), int(name[2])) for name in found if name), key=lambda one: one.version
        )
        self._table_id = snapshot.table_id
        newest = self._lists[-1].version if self._lists else -1
        self.collected = newest if newest <= snapshot.version else -1  # else the lists of a table that was here before

    def _paths(self, one: RemovedList) -> list[str]:
        return (self._log.storage.get(one.path) or b"").decode().splitlines()


def _removals(commit: bytes | None) -> Iterator[tuple[str, int]]:
    for line in (commit or b"").splitlines():
        if line.startswith(b'{"remove"'):
            remove = json.loads(line)["remove"]
            yield str(remove["path"]), int(remove.get("deletionTimestamp") or 0)
