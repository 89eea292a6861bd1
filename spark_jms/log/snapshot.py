"""What a destination's Delta log says at one version: files by member, last sequence numbers, transactions (C3, C5).

A snapshot is advanced commit by commit and never lists the log: whether there is news is one look at one file name. Only
at the start, or when the log was cleaned up under a sleeper, it is built from the last checkpoint.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from spark_jms.core.destination import Destination
from spark_jms.core.message import ORDINAL
from spark_jms.errors import ForeignWriteError, UnreadableTableError

ENGINE = "spark-jms"
SEQUENCE_PREFIX = "seq/"  # txn app id of a member's last sequence number
_REMOVED_KEPT, _REMOVED_KEPT_MS = 1_000, 600_000
FILE_NAME = re.compile(r"m(\d+)-[A-Za-z0-9_-]{8,64}\.parquet\Z")


@dataclass(frozen=True)
class DataFile:
    """One active file: rows `first..last` of one member, in order, without gaps."""

    path: str
    member: int
    first: int  # sequence of its first row
    rows: int
    bytes: int
    first_ordinal: int
    modified_ms: int
    stats: str  # JSON as in the log

    @property
    def last(self) -> int:
        return self.first + self.rows - 1

    @cached_property
    def statistics(self) -> Mapping[str, Mapping[str, Any]]:
        """{"minValues": {...}, "maxValues": {...}, "nullCount": {...}} of the columns that have them."""
        statistics: Mapping[str, Mapping[str, Any]] = json.loads(self.stats)
        return statistics

    @property
    def has_groups(self) -> bool:
        nulls = self.statistics.get("nullCount", {}).get("JMSXGroupID")
        return nulls != self.rows


@dataclass
class MemberFiles:
    """A member's files ordered by sequence; appends go to the end, so finding a sequence is a bisection."""

    firsts: list[int] = field(default_factory=list)
    files: list[DataFile] = field(default_factory=list)

    def add(self, file: DataFile) -> None:
        if self.files and file.first < self.firsts[-1]:
            at = bisect.bisect_left(self.firsts, file.first)
            self.firsts.insert(at, file.first)
            self.files.insert(at, file)
        else:
            self.firsts.append(file.first)
            self.files.append(file)

    def remove(self, file: DataFile) -> None:
        at = bisect.bisect_left(self.firsts, file.first)
        while at < len(self.files) and self.files[at].path != file.path:
            at += 1
        if at < len(self.files):
            del self.firsts[at], self.files[at]

    def overlapping(self, first: int, last: int) -> list[DataFile]:
        """The files that hold any of first..last, in order."""
        at = max(bisect.bisect_right(self.firsts, first) - 1, 0)
        out = []
        while at < len(self.files) and self.firsts[at] <= last:
            if self.files[at].last >= first:
                out.append(self.files[at])
            at += 1
        return out


class Snapshot:
    """Mutable: `apply` moves it one version on. `where` names the table in errors."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.foreign: tuple[int, str] | None = None  # (version, what to say): see `apply`
        self.version = -1
        self.metadata: dict[str, Any] = {}
        self.protocol: dict[str, Any] = {}
        self.transactions: dict[str, int] = {}
        self.files: dict[str, DataFile] = {}
        self.members: dict[int, MemberFiles] = {}
        self.removed_ms: dict[str, int] = {}  # path -> when: tombstones seen since this snapshot was built
        self._destination: tuple[object, Destination] | None = None  # the metadata it was read from, and it

    # -- asking ---------------------------------------------------------------------------------------------------
    @property
    def destination(self) -> Destination:
        known, metadata = self._destination, self.metadata
        if known is None or known[0] is not metadata:  # another thread may apply a declaration at any moment
            known = (metadata, Destination.from_configuration(metadata.get("configuration") or {}, self.where))
            self._destination = known
        return known[1]

    def last_sequence(self, member: int) -> int:
        """The last number given in this member; it outlives the files (C5)."""
        return self.transactions.get(f"{SEQUENCE_PREFIX}{member}", 0)

    def member_files(self, member: int) -> MemberFiles:
        return self.members.setdefault(member, MemberFiles())

    # -- advancing ------------------------------------------------------------------------------------------------
    def apply(self, version: int, data: bytes) -> None:
        """One commit file. Raises UnreadableTableError. A data commit that is not ours is not applied but remembered in
        `foreign`, until a RESTORE to the version before it makes the table what this snapshot says again."""
        try:
            actions = [json.loads(line) for line in data.splitlines() if line.strip()]
        except ValueError as error:
            raise UnreadableTableError(f"{self.where}: version {version} of the log is not JSON ({error})") from error
        if not actions:  # a power cut can leave a commit file without its content
            raise UnreadableTableError(f"{self.where}: version {version} of the log is empty: restore it from a copy")
        if self.foreign is not None:
            if _restored_version(actions) == self.foreign[0] - 1:
                self.foreign = None
            self.version = version
            return
        refusal = self._refusal(version, actions)
        if refusal is None:
            self.apply_actions(actions, version)
        else:
            self.foreign, self.version = (version, refusal), version

    def apply_actions(self, actions: Iterable[Mapping[str, Any]], version: int) -> None:
        try:
            for action in actions:
                for kind, value in action.items():
                    if value is not None:
                        self._apply_one(kind, value)
        except (KeyError, TypeError, ValueError) as error:
            raise UnreadableTableError(f"{self.where}: version {version} of the log is damaged ({error!r})") from error
        self.version = version

    def _apply_one(self, kind: str, value: dict[str, Any]) -> None:
        if kind == "add":
            self._add(self._data_file(value))
        elif kind == "remove":
            self._remove(str(value["path"]), int(value.get("deletionTimestamp") or 0))
        elif kind == "txn":
            self.transactions[str(value["appId"])] = int(value["version"])
        elif kind == "metaData":
            self.metadata = value
        elif kind == "protocol":
            self.protocol = value
            if int(value.get("minReaderVersion") or 1) > 1:
                raise UnreadableTableError(
                    f"{self.where} uses Delta reader version {value.get('minReaderVersion')} "
                    f"({value.get('readerFeatures')}): destinations use reader version 1; undo the change of table features"
                )

    def _add(self, file: DataFile) -> None:
        known = self.files.get(file.path)
        if known is not None:
            self.member_files(known.member).remove(known)
        self.files[file.path] = file
        self.member_files(file.member).add(file)

    def _remove(self, path: str, when_ms: int) -> None:
        file = self.files.pop(path, None)
        if file is not None:
            self.member_files(file.member).remove(file)
        self.removed_ms[path] = when_ms

    def forget_removed(self, now_ms: int) -> None:
        """Tombstones matter to clean-up until the grace is over; kept for good, they would fill a long-lived process."""
        oldest = now_ms - 2 * self.destination.file_grace_ms - _REMOVED_KEPT_MS
        if len(self.removed_ms) > _REMOVED_KEPT:
            self.removed_ms = {path: when for path, when in self.removed_ms.items() if when > oldest}

    def _data_file(self, add: Mapping[str, Any]) -> DataFile:
        path = str(add["path"])
        name = FILE_NAME.search(path)
        values: Mapping[str, str] = dict(add["partitionValues"])
        stats = add.get("stats")
        if not name or not values.get("member") or not values.get("first_sequence") or not stats:
            raise ForeignWriteError(
                f'{self.where}: file {path!r} was not written by spark-jms: messages must be sent through format("jmsq"), '
                "the client or the command line. Restore the table to the version before that commit."
            )
        numbers = json.loads(str(stats))
        rows, low, high = (
            int(numbers["numRecords"]),
            int(numbers["minValues"][ORDINAL]),
            int(numbers["maxValues"][ORDINAL]),
        )
        if high - low + 1 != rows:
            raise UnreadableTableError(f"{self.where}: file {path!r} has {rows} rows but ordinals {low} to {high}")
        return DataFile(
            path,
            int(values["member"]),
            int(values["first_sequence"]) + low,
            rows,
            int(add["size"]),
            low,
            int(add.get("modificationTime") or 0),
            str(stats),
        )

    def check_ours(self) -> None:
        """Raises ForeignWriteError while the table holds what somebody else wrote."""
        if self.foreign is not None:
            raise ForeignWriteError(self.foreign[1])

    def _refusal(self, version: int, actions: list[dict[str, dict[str, Any]]]) -> str | None:
        """What to say to a commit that changes messages and is not ours; None to any other."""
        info = _commit_info(actions)
        ours = str(info.get("engineInfo", "")).startswith(ENGINE) or version == 0
        if ours:
            return None
        touched = [kind for a in actions for kind in ("add", "remove") if a.get(kind)]
        schema = next((a["metaData"] for a in actions if a.get("metaData")), None)
        if touched or (schema and self.metadata and schema.get("schemaString") != self.metadata.get("schemaString")):
            return (
                f"{self.where}: version {version} ({info.get('operation', 'unknown operation')} by "
                f"{info.get('engineInfo', 'an unknown engine')}) was not written by spark-jms: messages must be sent through "
                f'format("jmsq"), the client or the command line. Restore the table to version {version - 1} '
                "(Delta's RESTORE), then go on."
            )
        return None


def _commit_info(actions: list[dict[str, dict[str, Any]]]) -> Mapping[str, Any]:
    return next((a["commitInfo"] for a in actions if a.get("commitInfo")), {})


def _restored_version(actions: list[dict[str, dict[str, Any]]]) -> int | None:
    """The version to which this commit restores the table, when it does."""
    info = _commit_info(actions)
    version = (info.get("operationParameters") or {}).get("version")
    if info.get("operation") != "RESTORE" or not str(version).isdigit():
        return None
    return int(str(version))
