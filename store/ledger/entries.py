"""The entries of a store's ledger: what happened to its sessions, records and prepared transactions, as values.

An entry never depends on a clock or on who is alive: its writer has looked before and puts the result into it (`Ended`).
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_jms.store.contract import Operation
from spark_jms.store.errors import RecordCorruptError


@dataclass(frozen=True)
class Connected:
    session_id: str
    label: str


@dataclass(frozen=True)
class Ended:
    """Sessions that closed or were found dead. Several at once, so that no record is handed over to one that ends too."""

    session_ids: tuple[str, ...]


@dataclass(frozen=True)
class Opened:
    name: str
    epoch: int
    session_id: str


@dataclass(frozen=True)
class Closed:
    name: str
    epoch: int


@dataclass(frozen=True)
class Waited:
    name: str
    session_id: str


@dataclass(frozen=True)
class Cancelled:
    name: str
    session_id: str


@dataclass(frozen=True)
class Change:
    name: str
    epoch: int
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Written:
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Restored:
    """A whole record, as a snapshot carries it. The Connected entries of its holder and waiters come before it."""

    name: str
    epoch: int
    holder: str | None
    waiters: tuple[str, ...]
    objects: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class Prepared:
    """Changes promised under a transaction id; they outlive the session and the process. `restored` marks one from a
    snapshot, whose epochs may be old."""

    xid: str
    changes: tuple[Change, ...]
    restored: bool = False


@dataclass(frozen=True)
class Resolved:
    xid: str
    commit: bool


@dataclass(frozen=True)
class Damaged:
    """The stored bytes of this record cannot be read, or not all of them. The reader of a store makes this entry; a plan
    never does."""

    name: str
    file: str
    offset: int
    reason: str

    def error(self) -> RecordCorruptError:
        return RecordCorruptError(self.file, self.offset, self.reason, self.name)


Entry = Connected | Ended | Opened | Closed | Waited | Cancelled | Written | Restored | Prepared | Resolved | Damaged
