"""What the administration of a store reports: values that `jmsq store` prints, the same for every kind of store.

Features: R14, S9 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_jms.store.contract import SessionInfo
from spark_jms.store.ledger.entries import Entry


@dataclass(frozen=True)
class LockStatus:
    """Which process owns the store.

    `held`: a process holds the store's lock or uses it. `owner`, `hostname`, `pid`, `since_ms`, `incarnation`: what the
    owner published about itself. `answers`: a client could connect to it now.
    """

    store: str
    held: bool
    owner: str = ""
    hostname: str = ""
    pid: int = 0
    since_ms: int = 0
    engine: str = ""
    incarnation: str = ""
    version: int = 0
    answers: bool = False
    sessions: tuple[SessionInfo, ...] = ()


@dataclass(frozen=True)
class Checked:
    """`problems` names each damaged place; it is empty when all checksums match."""

    store: str
    record_count: int
    object_count: int
    object_bytes: int
    in_doubt: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class DumpedRecord:
    """`damage` says what is damaged and where; then the other fields but the name are empty."""

    name: str
    epoch: int
    holder: str | None
    objects: tuple[tuple[str, bytes], ...]
    damage: str = ""


@dataclass(frozen=True)
class Salvaged:
    """What is readable of a damaged store.

    `entries` make a ledger in which every record set is free. `left_out` names each damaged place, `uncertain` the record
    sets that may have lost changes, `sessions` the sessions that were connected; a session that is still alive uses the
    store.
    """

    entries: tuple[Entry, ...]
    left_out: tuple[str, ...]
    uncertain: tuple[str, ...]
    sessions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Migrated:
    """What a migration copied. `left_out` and `uncertain` are empty unless it salvaged a damaged store; see Salvaged."""

    record_count: int
    object_count: int
    object_bytes: int
    prepared_count: int
    there_already: int
    left_out: tuple[str, ...] = ()
    uncertain: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConnectionInfo:
    """One connection of an open store: its requests since the store was opened, and its objects."""

    name: str
    create_count: int
    read_count: int
    update_count: int
    delete_count: int
    object_count: int


@dataclass(frozen=True)
class StoreInfo:
    """An open store, as it reported last, at most a second ago. Its counts are the sums of its connections'."""

    name: str
    physical_write_count: int
    connections: tuple[ConnectionInfo, ...]

    @property
    def create_count(self) -> int:
        return sum(connection.create_count for connection in self.connections)

    @property
    def read_count(self) -> int:
        return sum(connection.read_count for connection in self.connections)

    @property
    def update_count(self) -> int:
        return sum(connection.update_count for connection in self.connections)

    @property
    def delete_count(self) -> int:
        return sum(connection.delete_count for connection in self.connections)

    @property
    def object_count(self) -> int:
        return sum(connection.object_count for connection in self.connections)
