"""A destination's table at one version of its log: files by member, last sequences, transactions.

A snapshot is immutable. `DeltaLog` holds the newest one; `LogReplay` makes the next one from a commit file, or from the rows of a
checkpoint. Whatever decides on a snapshot therefore decides on one version, even if other threads follow the log meanwhile.

Features: C3, C5 (docs/FEATURES.md)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import attrs

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.messages.columns import ORDINAL
from spark_jms.core.messages.message_bytes import parts_in
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.ordering.units_of_order import PATH_PREFIX
from spark_jms.errors import ForeignWriteError, UnreadableTableError
from spark_jms.log.tables.files import (
    FILE_NAME,
    DataFile,
    LayeredMap,
    MapEdit,
    MemberEdit,
    MemberFiles,
    lacking_property,
)

DROPPED = "jmsq.dropped"  # key of the table's configuration
SEQUENCE_PREFIX = "seq/"  # txn app id of a member's last sequence number
LOST_PREFIX = (
    "lost/"  # `lost/<member>/<first>`: messages up to the version went with the power (log/upkeep/power_loss.py)
)
ENGINE = "spark-jms"
_REMOVED_KEPT, _REMOVED_KEPT_MS = 1_000, 60_000
_Actions = list[dict[str, dict[str, Any]]]


@dataclass(frozen=True)
class RouteId:
    """By which declaration of which table a file was routed to its member, and by which paths of units of order: those of the
    version that has changed them last."""

    table_id: str
    epoch: int
    paths_version: int = 0


@dataclass(frozen=True, eq=False)
class TableMetadata:
    """The table's newest metaData action, and the destination that it declares. Snapshots share it while it holds."""

    action: Mapping[str, Any]
    where: str

    @property
    def id(self) -> str:
        return str(self.action.get("id") or "")

    @cached_property
    def destination(self) -> Destination:
        return Destination.from_configuration(self.action.get("configuration") or {}, self.where)

    @cached_property
    def lacking_property(self) -> Mapping[str, str]:
        """What `DeltaLog.append` adds to the table's configuration; {} when it is there."""
        return lacking_property(self.action)


@dataclass(frozen=True)
class ForeignCommit:
    """A change of messages that another program committed, and the error it causes until the table is restored."""

    version: int
    refusal: str


_NO_FILES = MemberFiles()


@dataclass(frozen=True, eq=False)
class Snapshot:
    """`where` names the table in errors."""

    where: str
    version: int = -1
    table: TableMetadata = field(default_factory=lambda: TableMetadata({}, ""))
    transactions: LayeredMap[str, int] = field(default_factory=LayeredMap)
    files: LayeredMap[str, DataFile] = field(default_factory=LayeredMap)
    members: Mapping[int, MemberFiles] = field(default_factory=dict)
    removed_ms: LayeredMap[str, int] = field(default_factory=LayeredMap)  # path -> when: files removed lately
    foreign: ForeignCommit | None = None
    digest: str = ""  # of the commit file of `version`; "" when only a Delta checkpoint has that version
    protocol: Mapping[str, Any] = field(default_factory=dict)
    paths: LayeredMap[str, int] = field(
        default_factory=LayeredMap
    )  # unit of order -> member: core/ordering/units_of_order.py
    paths_version: int = 0  # of the last change of paths that this process knows of
    lost: Mapping[int, Ranges] = field(default_factory=dict)  # by member: messages that went with the power

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.table.action

    @property
    def table_id(self) -> str:
        """The Delta table's own id, drawn when it was created: a destination dropped and created again has another one.
        "" before the first commit."""
        return self.table.id

    @cached_property
    def destination(self) -> Destination:
        """The declaration, with the paths of units of order."""
        declared = self.table.destination
        return attrs.evolve(declared, paths=self.paths) if self.paths else declared

    @property
    def route_id(self) -> RouteId:
        return RouteId(self.table_id, self.table.destination.epoch, self.paths_version)

    @property
    def dropped(self) -> bool:
        """The newest commit of a table whose destination is dropped says so."""
        return DROPPED in (self.metadata.get("configuration") or {})

    def last_sequence(self, member: int) -> int:
        """The last number given in this member; it outlives the files."""
        return self.transactions.get(f"{SEQUENCE_PREFIX}{member}", 0)

    def numbered_members(self) -> set[int]:
        """The members that ever got a message, removed ones included."""
        ids = (
            app_id.removeprefix(SEQUENCE_PREFIX) for app_id in self.transactions if app_id.startswith(SEQUENCE_PREFIX)
        )
        return {int(member) for member in ids}

    def lasting_members(self) -> set[int]:
        """Those of them that the destination has, or may have again. The member of a server that was removed never returns: the server
        gets one with a new id (core/destinations/servers.py)."""
        declared = self.table.destination
        return self.numbered_members() & set(declared.member_ids) if declared.placement else self.numbered_members()

    def lost_of(self, member: int) -> Ranges:
        """The messages of a member that went with the power."""
        return self.lost.get(member, EMPTY)

    def member_files(self, member: int) -> MemberFiles:
        return self.members.get(member, _NO_FILES)

    def check_ours(self) -> None:
        """Raises ForeignWriteError while the table holds messages that another program wrote."""
        if self.foreign is not None:
            raise ForeignWriteError(self.foreign.refusal)

    def without_old_removed(self, now_ms: int) -> Snapshot:
        """Forget removals of more than a minute ago: kept for good, they would fill a long-lived process."""
        if len(self.removed_ms) <= _REMOVED_KEPT:
            return self
        kept = {path: when for path, when in self.removed_ms.items() if when > now_ms - _REMOVED_KEPT_MS}
        return replace(self, removed_ms=LayeredMap(kept))


# -- the next snapshot -------------------------------------------------------------------------------------------------


class OtherTableError(Exception):
    """The commit names another table (commitInfo.tableId): nothing of it was applied."""


def digest_of(data: bytes) -> str:
    """What tells one commit file from another one of the same version."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def names_table(data: bytes) -> str:
    """The id of the table for which a commit file was written; "" when it does not tell."""
    try:
        return str(_commit_info([json.loads(line) for line in data.splitlines() if line.strip()]).get("tableId") or "")
    except ValueError:
        return ""


class LogReplay:
    """Makes the next snapshot. Starts from one, which it leaves unchanged, and ends in `snapshot()`. Use one for any number of
    commits, then drop it. After an error the state of a half-applied commit is unknown: drop it as well."""

    def __init__(self, start: Snapshot) -> None:
        self._where, self._members = start.where, start.members
        self.version, self._table, self._foreign = start.version, start.table, start.foreign
        self._protocol = start.protocol
        self._transactions, self._files = MapEdit(start.transactions), MapEdit(start.files)
        self._removed_ms, self._digest = MapEdit(start.removed_ms), start.digest
        self._paths, self._paths_version = MapEdit(start.paths), start.paths_version
        self._lost = dict(start.lost)
        self._changed: dict[int, MemberEdit] = {}

    def snapshot(self) -> Snapshot:
        changed = {member: edit.done() for member, edit in self._changed.items()}
        return Snapshot(
            self._where,
            self.version,
            self._table,
            self._transactions.done(),
            self._files.done(),
            {**self._members, **changed},
            self._removed_ms.done(),
            self._foreign,
            self._digest,
            self._protocol,
            self._paths.done(),
            self._paths_version,
            self._lost,
        )

    def apply(self, version: int, data: bytes) -> None:
        """One commit file. Raises UnreadableTableError, or OtherTableError. A data commit by another program is not
        applied: the snapshot remembers it in `foreign` until a RESTORE to the version before it undoes it."""
        actions = self._parse(version, data)
        table_id = _commit_info(actions).get("tableId")
        if table_id and self._table.id and table_id != self._table.id:
            raise OtherTableError(f"{self._where}: version {version} of the log was written for the table {table_id}")
        if self._is_ours(version, actions):
            self.apply_actions(actions, version)
        self.version, self._digest = version, digest_of(data)

    def apply_own(self, version: int, actions: Iterable[Mapping[str, Any]], data: bytes) -> None:
        """The actions of a commit file that this process has just written."""
        self.apply_actions(actions, version)
        self._digest = digest_of(data)

    def judge(self, version: int, data: bytes) -> None:
        """A commit file whose actions were applied with a checkpoint: only look whether another program wrote it."""
        self._is_ours(version, self._parse(version, data))

    def transaction(self, app_id: str) -> int | None:
        return self._transactions.get_new(app_id)

    def _parse(self, version: int, data: bytes) -> _Actions:
        try:
            actions: _Actions = [json.loads(line) for line in data.splitlines() if line.strip()]
        except ValueError as error:
            raise UnreadableTableError(f"{self._where}: version {version} of the log is not JSON ({error})") from error
        if not actions:  # a power cut can leave a commit file without its content
            raise UnreadableTableError(f"{self._where}: version {version} of the log is empty: restore it from a copy")
        return actions

    def _is_ours(self, version: int, actions: _Actions) -> bool:
        """False for a commit that we refuse, and for those behind it up to the RESTORE that undoes it."""
        if self._foreign is not None:
            if _restored_version(actions) == self._foreign.version - 1:
                self._foreign = None
            return False
        refusal = self._refusal(version, actions)
        if refusal is not None:
            self._foreign = ForeignCommit(version, refusal)
        return refusal is None

    def apply_actions(self, actions: Iterable[Mapping[str, Any]], version: int) -> None:
        try:
            for action in actions:
                for kind, value in action.items():
                    if value is not None:
                        self._apply_one(kind, value, version)
        except (KeyError, TypeError, ValueError) as error:
            raise UnreadableTableError(f"{self._where}: version {version} of the log is damaged ({error!r})") from error
        self.version = version

    def _apply_one(self, kind: str, value: dict[str, Any], version: int) -> None:
        if kind == "add":
            self._add(self._data_file(value))
        elif kind == "remove":
            self._remove(str(value["path"]), int(value.get("deletionTimestamp") or 0))
        elif kind == "txn":
            self._set_transaction(str(value["appId"]), int(value["version"]), version)
        elif kind == "metaData":
            self._table = TableMetadata(value, self._where)
        elif kind == "protocol":
            self._set_protocol(value)

    def _set_transaction(self, app_id: str, number: int, version: int) -> None:
        if not app_id.startswith(PATH_PREFIX):
            self._transactions[app_id] = number
            if app_id.startswith(LOST_PREFIX):
                member, first = map(int, app_id.removeprefix(LOST_PREFIX).split("/"))
                self._lost[member] = self._lost.get(member, EMPTY) | Ranges.of((first, number))
            return
        self._paths[app_id.removeprefix(PATH_PREFIX)] = number - 1 if number else None
        self._paths_version = version

    def _set_protocol(self, value: Mapping[str, Any]) -> None:
        self._protocol = {key: given for key, given in value.items() if given is not None}
        if int(value.get("minReaderVersion") or 1) > 1:
            raise UnreadableTableError(
                f"{self._where} uses Delta reader version {value.get('minReaderVersion')} "
                f"({value.get('readerFeatures')}): destinations use reader version 1; undo the change of table features"
            )

    # -- files ----------------------------------------------------------------------------------------------------
    def _member(self, member: int) -> MemberEdit:
        if member not in self._changed:
            self._changed[member] = MemberEdit(self._members.get(member, MemberFiles()))
        return self._changed[member]

    def _add(self, file: DataFile) -> None:
        known = self._files.get_new(file.path)
        if known is not None:
            self._member(known.member).remove(known)
        self._files[file.path] = file
        self._member(file.member).add(file)

    def _remove(self, path: str, when_ms: int) -> None:
        file = self._files.get_new(path)
        if file is not None:
            self._files[path] = None
            self._member(file.member).remove(file)
        self._removed_ms[path] = when_ms

    def _data_file(self, add: Mapping[str, Any]) -> DataFile:
        path = str(add["path"])
        name = FILE_NAME.search(path)
        values: Mapping[str, str] = dict(add["partitionValues"])
        stats = add.get("stats")
        if not name or not values.get("member") or not values.get("first_sequence") or not stats:
            raise ForeignWriteError(
                f"{self._where}: file {path!r} was not written by spark-jms: messages must be sent through "
                'format("jmsq"), the client or the command line. Restore the table to the version before that commit.'
            )
        numbers = json.loads(str(stats))
        rows, low, high = (
            int(numbers["numRecords"]),
            int(numbers["minValues"][ORDINAL]),
            int(numbers["maxValues"][ORDINAL]),
        )
        if high - low + 1 != rows:
            raise UnreadableTableError(f"{self._where}: file {path!r} has {rows} rows but ordinals {low} to {high}")
        return DataFile(
            path,
            int(values["member"]),
            int(values["first_sequence"]) + low,
            rows,
            int(add["size"]),
            low,
            int(add.get("modificationTime") or 0),
            str(stats),
            sum(parts_in(numbers, int(add["size"]))),
        )

    # -- commits of other programs --------------------------------------------------------------------------------
    def _refusal(self, version: int, actions: _Actions) -> str | None:
        """The error for a commit of another program that changes messages; None for any other commit."""
        info = _commit_info(actions)
        if str(info.get("engineInfo", "")).startswith(ENGINE) or version == 0:
            return None
        touched = any(action.get(kind) for action in actions for kind in ("add", "remove"))
        schema = next((a["metaData"] for a in actions if a.get("metaData")), None)
        known = self._table.action
        if touched or (schema and known and _columns(schema) != _columns(known)):
            return (
                f"{self._where}: version {version} ({info.get('operation', 'unknown operation')} by "
                f"{info.get('engineInfo', 'an unknown engine')}) was not written by spark-jms: messages must be sent "
                f'through format("jmsq"), the client or the command line. Restore the table to version {version - 1} '
                "(Delta's RESTORE), then continue."
            )
        return None


def _columns(metadata: Mapping[str, Any]) -> object:
    """The schema by its meaning: programs write its JSON in different spellings."""
    return json.loads(str(metadata.get("schemaString") or "null"))


def _commit_info(actions: _Actions) -> Mapping[str, Any]:
    return next((a["commitInfo"] for a in actions if a.get("commitInfo")), {})


def _restored_version(actions: _Actions) -> int | None:
    """The version to which this commit restores the table; None when it is not a RESTORE."""
    info = _commit_info(actions)
    version = (info.get("operationParameters") or {}).get("version")
    if info.get("operation") != "RESTORE" or not str(version).isdigit():
        return None
    return int(str(version))
