"""What every store promises: record sets, opened by one live session at a time, changed atomically, fenced by epochs.

The contract is tested by `tests/contract/test_store_contract.py`, which runs on every backend. A store knows nothing of
messages: a record set is a named set of (key, bytes), its epoch, its holder and those who wait for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

from spark_jms.store.errors import NameInvalidError, ValueInvalidError

NAME_LIMIT_CHARS = 512
VALUE_LIMIT_BYTES = 16 * 1024 * 1024
COMMIT_LIMIT_BYTES = 256 * 1024 * 1024


def check_name(name: object, what: str = "name") -> str:
    """The name itself when it is one; the edge check for record sets and keys."""
    if not isinstance(name, str):
        raise NameInvalidError(f"a {what} is a str, not {type(name).__name__}")
    if not 1 <= len(name) <= NAME_LIMIT_CHARS or not name.isprintable():
        raise NameInvalidError(f"not a {what}: {name[:80]!r} ({len(name)} characters)")
    return name


def check_label(label: object) -> str:
    return "" if label == "" else check_name(label, "label")


@dataclass(frozen=True)
class Put:
    key: str
    value: bytes

    def __post_init__(self) -> None:
        check_name(self.key, "key")
        if not isinstance(self.value, bytes):
            raise ValueInvalidError(f"the value of {self.key!r} is {type(self.value).__name__}, not bytes")
        if len(self.value) > VALUE_LIMIT_BYTES:
            raise ValueInvalidError(f"the value of {self.key!r} has {len(self.value)} bytes")


@dataclass(frozen=True)
class Delete:
    """Deleting a key that is not there is no error: a replayed commit has the same result."""

    key: str

    def __post_init__(self) -> None:
        check_name(self.key, "key")


Operation = Put | Delete


@dataclass(frozen=True)
class SessionInfo:
    session_id: str
    label: str


@dataclass(frozen=True)
class RecordInfo:
    """`holder` and `waiters` name live sessions only; `waiters` in the order in which they will be served."""

    name: str
    epoch: int
    holder: str | None
    waiters: tuple[str, ...]


@dataclass(frozen=True)
class StoreStatistics:
    """Counts of this process since it opened the store; `object_*`, `record_count` and `damaged_count` are those of the
    whole store now. A damaged record set is counted there alone."""

    create_count: int = 0
    read_count: int = 0
    update_count: int = 0
    delete_count: int = 0
    commit_count: int = 0
    object_count: int = 0
    object_bytes: int = 0
    record_count: int = 0
    damaged_count: int = 0
    connection_count: int = 0
    physical_write_count: int = 0
    physical_write_bytes: int = 0
    compaction_count: int = 0
    failed_compaction_count: int = 0
    torn_tail_count: int = 0
    lock_break_count: int = 0


@dataclass(frozen=True)
class SessionStatistics:
    create_count: int = 0
    read_count: int = 0
    update_count: int = 0
    delete_count: int = 0
    commit_count: int = 0
    open_handle_count: int = 0


_Own = TypeVar("_Own", bound="_Closing")


class _Closing(ABC):
    """`with` closes; closing twice is no error."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Store(_Closing):
    """Record sets in one place. Thread-safe. After a fork the child must open its own: the old one refuses."""

    @abstractmethod
    def connect(self, label: str = "") -> Session:
        """A new session with an id that was never used before. Closing the store closes its sessions."""

    @abstractmethod
    def sessions(self) -> dict[str, SessionInfo]:
        """The live ones, of all processes."""

    @abstractmethod
    def names(self, prefix: str = "") -> list[str]:
        """Existing record sets, damaged ones too, sorted."""

    @abstractmethod
    def info(self, name: str) -> RecordInfo | None:
        """None when there is none of that name; RecordCorruptError of a damaged one."""

    @abstractmethod
    def infos(self, prefix: str = "") -> dict[str, RecordInfo]:
        """The same for many, by one look at the store; without those that are damaged."""

    @abstractmethod
    def peek(self, name: str) -> dict[str, bytes]:
        """The committed objects of a record set, without opening it; {} when there is none of that name.
        RecordCorruptError of a damaged one."""

    @abstractmethod
    def damaged(self) -> dict[str, str]:
        """Record sets that are refused since what is kept of them is damaged: name -> what, and where (S9)."""

    @abstractmethod
    def in_doubt(self) -> dict[str, tuple[str, ...]]:
        """Transactions that are prepared and not resolved: id -> names of the record sets they change (S2)."""

    @abstractmethod
    def resolve(self, xid: str, commit: bool) -> None:
        """Make the changes of a prepared transaction, or forget them; anybody may. TransactionUnknownError when it is
        not in doubt (any more), RecordCorruptError when it changes a damaged record set."""

    @abstractmethod
    def statistics(self) -> StoreStatistics: ...

    @abstractmethod
    def close(self) -> None: ...


class Session(_Closing):
    """One connection, alive until closed, killed, or silent for session_timeout_ms. Thread-safe."""

    session_id: str

    @abstractmethod
    def open(self, name: str, timeout_ms: int = 0) -> Handle:
        """Exclusive. A new name makes a new record set. When another live session has it: register as a waiter, wait
        up to timeout_ms, then RecordHeldError; the place among the waiters stays until the record set is got,
        cancel() or death. RecordOpenError when this session has it open already; RecordCorruptError when it is damaged,
        as everything that is done on a handle of it."""

    @abstractmethod
    def cancel(self, name: str) -> None:
        """Withdraw as a waiter, also from a grant that was not yet collected. No error when not waiting."""

    @abstractmethod
    def commit(self, changes: Mapping[Handle, Sequence[Operation]]) -> None:
        """All or nothing over all named handles, in one physical write; durable when it returns."""

    @abstractmethod
    def prepare(self, xid: str, changes: Mapping[Handle, Sequence[Operation]]) -> None:
        """First phase of a commit that somebody else decides about: durable when it returns, seen by nobody. It can be
        committed from then on whatever dies, so the keys it names are locked (TransactionInDoubtError) until
        `Store.resolve`; the record sets may change hands meanwhile."""

    @abstractmethod
    def statistics(self) -> SessionStatistics: ...

    @abstractmethod
    def close(self) -> None:
        """Hands over all it has open and withdraws all it waits for."""


class Handle(_Closing):
    """An open record set. Every read and commit is refused by FencedError once the epoch is no longer current."""

    name: str
    epoch: int

    @abstractmethod
    def read(self, key: str) -> bytes | None: ...

    @abstractmethod
    def objects(self) -> dict[str, bytes]: ...

    @abstractmethod
    def commit(self, operations: Sequence[Operation]) -> None: ...

    @abstractmethod
    def waiters(self) -> tuple[str, ...]:
        """The live sessions that want it, in order: the owner looks here at its boundaries. Cheap enough for 100 a
        second."""

    @abstractmethod
    def close(self) -> None:
        """Hands the record set to the first live waiter, which owns it from then on; frees it when there is none."""
