"""A destination's table at one version of its log: files by member, last sequences, transactions.

A snapshot is immutable. `DeltaLog` holds the newest one; `Replay` makes the next one from a commit file. Whatever
decides on a snapshot therefore decides on one version, even if other threads follow the log meanwhile.

Features: C3, C5 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import attrs

from spark_jms.core.destination import Destination
from spark_jms.core.ranges import EMPTY, Ranges
from spark_jms.errors import ForeignWriteError
from spark_jms.log.data_file import DataFile
from spark_jms.log.layered_map import LayeredMap
from spark_jms.log.member_files import MemberFiles
from spark_jms.log.shown_statistics import lacking_property

DROPPED = "jmsq.dropped"  # key of the table's configuration
SEQUENCE_PREFIX = "seq/"  # txn app id of a member's last sequence number
LOST_PREFIX = "lost/"  # `lost/<member>/<first>`: messages up to the version went with the power (power_loss.py)
_REMOVED_KEPT, _REMOVED_KEPT_MS = 1_000, 60_000


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
    paths: LayeredMap[str, int] = field(default_factory=LayeredMap)  # unit of order -> member: core/unit_paths.py
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
        gets one with a new id (placement.py)."""
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
