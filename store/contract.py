"""What every store promises: record sets, opened by one live session at a time, changed atomically, fenced by epochs.

The contract is tested by `tests/contract/store/kinds/test_contract.py`, which runs on every backend. A store knows nothing of
messages: a record set is a named set of (key, bytes) with an epoch, a holder and waiters. Beside the ports Store, Session and
Handle are the values that they take and report, and StoreOpening, which bounds the opening of a store.

A record set can be changed in two ways. A session that has it open changes it alone, until it closes its handle. Any session may
change one that is not open: `Session.change` runs a rule on the newest state inside the store's write, so no state that another
session has changed meanwhile is ever written over. Each such change is an opening and a closing too: the epoch is the version.

Features: C9, S2, S5, S9 (docs/FEATURES.md)
"""

from __future__ import annotations

import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, TypeVar

from spark_jms.store.errors import NameInvalidError, StoreBusyError, ValueInvalidError

NAME_LIMIT_CHARS = 512
VALUE_LIMIT_BYTES = 16 * 1024 * 1024
COMMIT_LIMIT_BYTES = 256 * 1024 * 1024
ANSWER_LIMIT_BYTES = 4096
COMMAND_LIMIT_S = 10.0  # of an opening for which a person waits: long enough for a restart of the database
_LOOK_S = 0.25


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
    """Deleting a missing key is no error, so that a replayed commit has the same result."""

    key: str

    def __post_init__(self) -> None:
        check_name(self.key, "key")


Operation = Put | Delete


class RecordView(NamedTuple):
    """A record set at one moment. Version 0: there is none of this name yet. While a session has it open (`holder`), its objects
    change without a new version."""

    version: int
    objects: Mapping[str, bytes]
    holder: str | None = None


class RuleCall(NamedTuple):
    """A rule by the name under which it is registered (ledger/rules.py), and its argument."""

    name: str
    argument: bytes


@dataclass(frozen=True)
class RuleResult:
    """What a rule decides: the operations of each record set that changes, the sessions that end because their processes are dead,
    and the answer to its caller, of at most ANSWER_LIMIT_BYTES."""

    operations: Mapping[str, Sequence[Operation]]
    ended: Collection[str] = ()
    answer: bytes = b""


Rule = Callable[[bytes, Mapping[str, RecordView], frozenset[str]], RuleResult]
"""Takes the argument, the record sets by name, and the ids of the connected sessions. Pure: it asks no store, clock or file, since it
runs inside the store's write, and runs again on a newer state when that write is not the one that counts."""


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
    """Counts of this process since it opened the store. `object_*`, `record_count` and `damaged_count` describe the whole
    store now; `damaged_count` alone includes damaged record sets."""

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


_Own = TypeVar("_Own", bound="_Closing")


class _Closing(ABC):
    """Leaving a `with` block closes the object; closing twice is no error."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Store(_Closing):
    """The record sets of one root. Thread-safe. A forked child must open its own store: the inherited one refuses.

    Every answer, of a store, session or handle, was right at a moment between call and return, also in a process that was
    stopped and woke while others continued."""

    @abstractmethod
    def connect(self, label: str = "") -> Session:
        """A new session; its id was never used before. Closing the store closes its sessions."""

    @abstractmethod
    def sessions(self) -> dict[str, SessionInfo]:
        """The live sessions of all processes."""

    @abstractmethod
    def names(self, prefix: str = "") -> list[str]:
        """The names of all record sets, including damaged ones, sorted."""

    @abstractmethod
    def info(self, name: str) -> RecordInfo | None:
        """None when the name is unknown; RecordCorruptError when the record set is damaged."""

    @abstractmethod
    def infos(self, prefix: str = "") -> dict[str, RecordInfo]:
        """The same for many, read from the store at once; damaged record sets are left out."""

    @abstractmethod
    def peek(self, name: str) -> dict[str, bytes]:
        """The committed objects of a record set, without opening it; {} when the name is unknown. RecordCorruptError when
        it is damaged. They are no older than the call, but not fenced: their holder may have changed them since."""

    @abstractmethod
    def damaged(self) -> dict[str, str]:
        """The record sets that the store refuses because their stored bytes are damaged: name -> what and where."""

    @abstractmethod
    def in_doubt(self) -> dict[str, tuple[str, ...]]:
        """The prepared transactions that are not resolved yet: id -> names of the record sets they change."""

    @abstractmethod
    def resolve(self, xid: str, commit: bool) -> None:
        """Commit or forget the changes of a prepared transaction, from any process. TransactionUnknownError when it is
        not, or no longer, in doubt; RecordCorruptError when it changes a damaged record set."""

    @abstractmethod
    def statistics(self) -> StoreStatistics: ...

    @abstractmethod
    def close(self) -> None: ...


class Session(_Closing):
    """One connection, alive until closed, killed, or silent for session_timeout_ms. Thread-safe."""

    session_id: str

    @abstractmethod
    def open(self, name: str, timeout_ms: int = 0) -> Handle:
        """Open exclusively. A new name makes a new record set. When another live session holds it, this session becomes a
        waiter and waits up to timeout_ms, then RecordHeldError; it stays a waiter until it gets the record set, cancels
        or dies. RecordOpenError when this session has it open already. RecordCorruptError when it is damaged, here and
        from every method of its handle."""

    @abstractmethod
    def cancel(self, name: str) -> None:
        """Stop waiting; also give back a record set that was handed over but not opened yet. No error when not waiting."""

    @abstractmethod
    def commit(self, changes: Mapping[Handle, Sequence[Operation]]) -> None:
        """Change all handles or none, in one physical write; durable on return."""

    @abstractmethod
    def look(self, names: Sequence[str]) -> dict[str, RecordView]:
        """The record sets as they are at one moment, not older than the call. RecordCorruptError when one is damaged,
        SessionLostError when this session has ended."""

    @abstractmethod
    def change(
        self, names: Sequence[str], call: RuleCall, held: Mapping[Handle, Sequence[Operation]] | None = None
    ) -> bytes:
        """Run a rule on the newest state of these record sets, inside the store's write, and make what it decides: its
        operations, those of the handles in `held` and the end of sessions, all or nothing; durable on return. A new name
        makes a new record set. Returns the rule's answer.

        RecordHeldError while another live session has one of them open, RecordOpenError when this one has, FencedError
        when a handle is no longer current or this session has ended, RecordCorruptError when one is damaged,
        TransactionInDoubtError when a key is locked, RuleError when the rule is unknown or fails: nothing was changed.
        OutcomeUnknownError: it may have been; after an empty change that succeeds, `look` shows what became of it."""

    @abstractmethod
    def prepare(self, xid: str, changes: Mapping[Handle, Sequence[Operation]]) -> None:
        """First phase of a commit that a coordinator decides: durable on return, but visible to no reader. It can be
        committed from then on, whichever process dies, so its keys are locked (TransactionInDoubtError) until
        `Store.resolve`; the record sets may change hands meanwhile."""

    @abstractmethod
    def statistics(self) -> SessionStatistics: ...

    @abstractmethod
    def close(self) -> None:
        """Hands over every open record set and stops waiting for others."""


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
        """The live sessions that wait for it, in order; the owner asks at its boundaries. Cheap enough for 100 calls a
        second."""

    @abstractmethod
    def close(self) -> None:
        """Hands the record set over to the first live waiter, or frees it when there is none."""


def check_changes(changes: object) -> None:
    """The edge check for commits: a dict of handles to operations, which are checked one by one."""
    if not isinstance(changes, Mapping):
        raise ValueInvalidError(f"changes are a dict of handles to operations, not {type(changes).__name__}")
    for handle, operations in changes.items():
        if not isinstance(handle, Handle) or not isinstance(operations, Iterable):
            raise ValueInvalidError(
                "changes are a dict of handles to operations, "
                f"not {{{type(handle).__name__}: {type(operations).__name__}}}"
            )


class StoreOpening:
    """How long the opening of a store may wait, and whether the caller still waits for it. Thread-safe.

    `limit_s` bounds the waits for what is away or held, None: each wait has its own limit; work that proceeds is not
    interrupted. A cancelled opening ends before its next attempt. Each opening has an object of its own.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        self.limit_s = limit_s
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """From any thread: the caller does not wait for it any more."""
        self._cancelled.set()

    def within(self, limit_s: float) -> float:
        return limit_s if self.limit_s is None else min(limit_s, self.limit_s)

    def check(self) -> None:
        """Raises StoreBusyError when it was cancelled."""
        if self._cancelled.is_set():
            raise StoreBusyError("the opening of the store was given up")

    @contextmanager
    def alone(self, lock: threading.Lock) -> Iterator[None]:
        """Holds `lock`, which another opening of the same store may hold. Raises StoreBusyError at the limit."""
        begun_s = time.monotonic()
        while not lock.acquire(timeout=self.within(_LOOK_S)):
            self.check()
            if self.limit_s is not None and time.monotonic() - begun_s >= self.limit_s:
                raise StoreBusyError(
                    f"another opening of the store by this process has been under way for {self.limit_s:g} s"
                )
        try:
            yield
        finally:
            lock.release()


def check_name(name: object, what: str = "name") -> str:
    """Returns a valid name unchanged: the edge check for record sets and keys."""
    if not isinstance(name, str):
        raise NameInvalidError(f"a {what} is a str, not {type(name).__name__}")
    if not 1 <= len(name) <= NAME_LIMIT_CHARS or not name.isprintable():
        raise NameInvalidError(f"not a {what}: {name[:80]!r} ({len(name)} characters)")
    return name


def check_duration(duration_ms: object, what: str) -> None:
    if isinstance(duration_ms, bool) or not isinstance(duration_ms, (int, float)) or math.isnan(duration_ms):
        raise ValueInvalidError(f"{what} is a number of milliseconds, not {duration_ms!r}")


def check_prefix(prefix: object) -> str:
    """Of names; an empty one is the prefix of all."""
    if not isinstance(prefix, str):
        raise NameInvalidError(f"a prefix is a str, not {type(prefix).__name__}")
    return prefix


def check_label(label: object) -> str:
    return "" if label == "" else check_name(label, "label")
