"""The lock table of a store: who holds which record set, at which epoch, who waits, and what is in it. Pure.

Theory. A store is the fold of its entries, in order; every process that reads the same entries has the same ledger. An
entry never depends on a clock or on who is alive: whoever writes it has looked before and says so (`Ended`). So a
backend is only a way to agree on the order of entries.

    state    event        guard                               next    epoch   holder / waiters
    ABSENT   OPENED       the session is connected            HELD    1       the session
    FREE     OPENED       the session is connected            HELD    + 1     the session
    HELD     WAITED       not the holder, not waiting yet     HELD    =       the session joins at the end
    HELD     CANCELLED    is waiting                          HELD    =       the session leaves the line
    HELD     HANDED_OVER  closed or ended, somebody waits     HELD    + 1     the first of the line
    HELD     FREED        closed or ended, nobody waits       FREE    =       nobody
    HELD     WRITTEN      holder and epoch are the writer's   HELD    =       unchanged

A prepared transaction (S2) is two entries: `Prepared` promises changes that the session may make now, `Resolved` makes
them or forgets them, whoever owns the record set by then. In between, the keys it names are locked against other
writes; the record set itself goes on from hand to hand.

A damaged record set (S9) is out of the fold: `Damaged` takes it out, whatever the entries after that say of it is passed
over, and nobody may ask or change it. All others go on, also those that share an entry with it. A prepared transaction
that changes it cannot be resolved: what it promises to the others stays promised.

Invariants: a FREE record set has no waiters; every holder and waiter is connected; nobody waits twice or for what it
holds; epochs are dense, 1, 2, 3 ..., one for each owner. An id that ended never connects again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from spark_jms.store.contract import Delete, Operation, Put
from spark_jms.store.errors import (
    RecordCorruptError,
    SessionLostError,
    StaleEpochError,
    TransactionInDoubtError,
    TransactionUnknownError,
)


class RecordState(Enum):
    ABSENT = "absent"
    FREE = "free"
    HELD = "held"


class Event(Enum):
    OPENED = "opened"
    WAITED = "waited"
    CANCELLED = "cancelled"
    HANDED_OVER = "handed over"
    FREED = "freed"
    WRITTEN = "written"


TRANSITIONS: Mapping[tuple[RecordState, Event], RecordState] = {
    (RecordState.ABSENT, Event.OPENED): RecordState.HELD,
    (RecordState.FREE, Event.OPENED): RecordState.HELD,
    (RecordState.HELD, Event.WAITED): RecordState.HELD,
    (RecordState.HELD, Event.CANCELLED): RecordState.HELD,
    (RecordState.HELD, Event.HANDED_OVER): RecordState.HELD,
    (RecordState.HELD, Event.FREED): RecordState.FREE,
    (RecordState.HELD, Event.WRITTEN): RecordState.HELD,
}


@dataclass(frozen=True)
class Connected:
    session_id: str
    label: str


@dataclass(frozen=True)
class Ended:
    """Closed or found dead. Several at once, so that no record set is granted to one that ends in the same breath."""

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
    """A whole record set, as a snapshot carries it. Connected entries of its holder and waiters come before it."""

    name: str
    epoch: int
    holder: str | None
    waiters: tuple[str, ...]
    objects: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class Prepared:
    """Changes promised under a transaction id; they outlive session and process. `restored`: read from a snapshot, where
    the epochs may be of long ago."""

    xid: str
    changes: tuple[Change, ...]
    restored: bool = False


@dataclass(frozen=True)
class Resolved:
    xid: str
    commit: bool


@dataclass(frozen=True)
class Damaged:
    """What is kept of this record set cannot be read, or not all of it. Never written by a plan: whoever reads what was kept
    makes it."""

    name: str
    file: str
    offset: int
    reason: str

    def error(self) -> RecordCorruptError:
        return RecordCorruptError(self.file, self.offset, self.reason, self.name)


Entry = Connected | Ended | Opened | Closed | Waited | Cancelled | Written | Restored | Prepared | Resolved | Damaged


_OF_ONE = (Opened, Closed, Waited, Cancelled, Restored, Damaged)


class LedgerError(Exception):
    """An entry does not fit the ledger: whoever reads it from a file has a damaged file, whoever made it a fault."""


@dataclass(slots=True)
class Record:
    epoch: int = 0
    holder: str | None = None
    waiters: list[str] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)

    @property
    def state(self) -> RecordState:
        if self.epoch == 0:
            return RecordState.ABSENT
        return RecordState.FREE if self.holder is None else RecordState.HELD


@dataclass(frozen=True)
class Tally:
    create_count: int = 0
    update_count: int = 0
    delete_count: int = 0


def _require(condition: bool, entry: Entry, reason: str) -> None:
    if not condition:
        raise LedgerError(f"{type(entry).__name__}: {reason}")


class Ledger:
    """The fold. `apply` checks first and changes then, so a refused entry leaves the ledger as it was."""

    def __init__(self) -> None:
        self.sessions: dict[str, str] = {}
        self.records: dict[str, Record] = {}
        self.prepared: dict[str, tuple[Change, ...]] = {}
        self.damaged: dict[str, Damaged] = {}
        self.object_count = 0
        self.object_bytes = 0

    # ---- the fold

    def apply(self, entry: Entry) -> None:
        if self.damaged and isinstance(entry, _OF_ONE) and entry.name in self.damaged:
            return
        match entry:
            case Connected(session_id, label):
                _require(session_id not in self.sessions, entry, "the session is connected")
                self.sessions[session_id] = label
            case Ended(session_ids):
                self._apply_ended(entry, session_ids)
            case Opened(name, epoch, session_id):
                record = self.records.get(name) or Record()
                _require(session_id in self.sessions, entry, "unknown session")
                _require(epoch == record.epoch + 1, entry, f"epoch {epoch} after {record.epoch}")
                self._step(record, Event.OPENED, entry)
                record.epoch, record.holder = epoch, session_id
                self.records[name] = record
            case Closed(name, epoch):
                self._release(self._owned(name, epoch, entry), entry)
            case Waited(name, session_id):
                record = self._known(name, entry)
                _require(session_id in self.sessions, entry, "unknown session")
                _require(session_id != record.holder and session_id not in record.waiters, entry, "waits already")
                self._step(record, Event.WAITED, entry)
                record.waiters.append(session_id)
            case Cancelled(name, session_id):
                record = self._known(name, entry)
                _require(session_id in record.waiters, entry, "does not wait")
                self._step(record, Event.CANCELLED, entry)
                record.waiters.remove(session_id)
            case Written(changes):
                self._apply_written(entry, changes)
            case Restored():
                self._apply_restored(entry)
            case Prepared():
                self._apply_prepared(entry)
            case Resolved(xid, commit):
                _require(xid in self.prepared, entry, f"no transaction {xid!r} is prepared")
                changes = self.prepared.pop(xid)
                for change in self._good(changes) if commit else ():
                    self._operate(self._known(change.name, entry), change.operations)
            case Damaged(name):
                self._apply_damaged(name, entry)

    def _apply_damaged(self, name: str, entry: Damaged) -> None:
        record = self.records.pop(name, None)
        for key, value in record.objects.items() if record else ():
            self._count(-1, key, value)
        self.damaged.setdefault(name, entry)

    def _good(self, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        return tuple(change for change in changes if change.name not in self.damaged) if self.damaged else changes

    def _apply_ended(self, entry: Ended, session_ids: tuple[str, ...]) -> None:
        gone = set(session_ids)
        _require(gone <= self.sessions.keys(), entry, "unknown session")
        involved = self._involving(gone)
        for record in involved:
            record.waiters = [waiter for waiter in record.waiters if waiter not in gone]
        for record in involved:
            if record.holder in gone:
                self._release(record, entry)
        for session_id in session_ids:
            del self.sessions[session_id]

    def _involving(self, gone: set[str]) -> list[Record]:
        return [r for r in self.records.values() if r.holder in gone or not gone.isdisjoint(r.waiters)]

    def _apply_written(self, entry: Written, changes: tuple[Change, ...]) -> None:
        good = self._good(changes)
        owned = [self._owned(change.name, change.epoch, entry) for change in good]
        _require(self.locked_by(good) is None, entry, "a prepared transaction has locked a key")
        for change, record in zip(good, owned, strict=True):
            self._step(record, Event.WRITTEN, entry)
            self._operate(record, change.operations)

    def _operate(self, record: Record, operations: Iterable[Operation]) -> None:
        for operation in operations:
            before = record.objects.pop(operation.key, None)
            if before is not None:
                self._count(-1, operation.key, before)
            if isinstance(operation, Put):
                record.objects[operation.key] = operation.value
                self._count(1, operation.key, operation.value)

    def _apply_prepared(self, entry: Prepared) -> None:
        _require(entry.xid not in self.prepared, entry, f"transaction {entry.xid!r} is prepared already")
        good = self._good(entry.changes)
        _require(self.locked_by(good) is None, entry, "another prepared transaction has locked a key")
        for change in good:
            if entry.restored:
                self._known(change.name, entry)
            else:
                self._owned(change.name, change.epoch, entry)
        self.prepared[entry.xid] = entry.changes

    def locked_by(self, changes: Iterable[Change]) -> str | None:
        """The prepared transaction that has locked one of these keys, if there is one."""
        if not self.prepared:
            return None
        wanted = {(change.name, operation.key) for change in changes for operation in change.operations}
        for xid, promised in self.prepared.items():
            if any((change.name, operation.key) in wanted for change in promised for operation in change.operations):
                return xid
        return None

    def _apply_restored(self, entry: Restored) -> None:
        _require(entry.name not in self.records and entry.epoch > 0, entry, "the record set is there already")
        people = {*entry.waiters, *([entry.holder] if entry.holder else [])}
        _require(people <= self.sessions.keys(), entry, "unknown session")
        _require(entry.holder is not None or not entry.waiters, entry, "free, but waited for")
        self.records[entry.name] = Record(entry.epoch, entry.holder, list(entry.waiters), dict(entry.objects))
        for key, value in entry.objects:
            self._count(1, key, value)

    def _count(self, sign: int, key: str, value: bytes) -> None:
        self.object_count += sign
        self.object_bytes += sign * (len(key) + len(value))

    def _step(self, record: Record, event: Event, entry: Entry) -> RecordState:
        after = TRANSITIONS.get((record.state, event))
        if after is None:
            raise LedgerError(
                f"{type(entry).__name__}: a record set that is {record.state.value} cannot be {event.value}"
            )
        return after

    def _release(self, record: Record, entry: Entry) -> None:
        if record.waiters:
            self._step(record, Event.HANDED_OVER, entry)
            record.holder = record.waiters.pop(0)
            record.epoch += 1
        else:
            self._step(record, Event.FREED, entry)
            record.holder = None

    def _known(self, name: str, entry: Entry) -> Record:
        record = self.records.get(name)
        if record is None:
            raise LedgerError(f"{type(entry).__name__}: no record set {name!r}")
        return record

    def _owned(self, name: str, epoch: int, entry: Entry) -> Record:
        record = self._known(name, entry)
        _require(record.holder is not None and record.epoch == epoch, entry, f"epoch {epoch}, not {record.epoch}")
        return record

    # ---- what may be asked, and what may be done next

    def check_whole(self, name: str) -> None:
        """RecordCorruptError when the record set is damaged."""
        if name in self.damaged:
            raise self.damaged[name].error()

    def check_session(self, session_id: str) -> None:
        if session_id not in self.sessions:
            raise SessionLostError(f"session {session_id}")

    def owned(self, session_id: str, name: str, epoch: int) -> Record:
        """The record set, if this session owns it at this epoch; the fence of every read and commit."""
        self.check_whole(name)
        record = self.records.get(name)
        if record is None or record.epoch != epoch:
            raise StaleEpochError(name, epoch, record.epoch if record else 0)
        self.check_session(session_id)
        if record.holder != session_id:
            raise StaleEpochError(name, epoch, record.epoch)
        return record

    def next_open(self, session_id: str, name: str) -> Opened | Waited | None:
        """What to write so that the session opens or waits; None when it holds the record set or waits already."""
        self.check_session(session_id)
        self.check_whole(name)
        record = self.records.get(name) or Record()
        if record.holder is None:
            return Opened(name, record.epoch + 1, session_id)
        if session_id == record.holder or session_id in record.waiters:
            return None
        return Waited(name, session_id)

    def next_write(self, session_id: str, changes: Sequence[Change]) -> Written:
        self._check_writable(session_id, changes)
        return Written(tuple(changes))

    def next_prepare(self, session_id: str, xid: str, changes: Sequence[Change]) -> Prepared:
        if xid in self.prepared:
            raise TransactionInDoubtError(xid)
        self._check_writable(session_id, changes)
        return Prepared(xid, tuple(changes))

    def next_resolve(self, xid: str, commit: bool) -> Resolved:
        """Never of a transaction that changes a damaged record set: what it promises there could not be kept."""
        if xid not in self.prepared:
            raise TransactionUnknownError(xid)
        for change in self.prepared[xid]:
            self.check_whole(change.name)
        return Resolved(xid, commit)

    def _check_writable(self, session_id: str, changes: Sequence[Change]) -> None:
        for change in changes:
            self.owned(session_id, change.name, change.epoch)
        if (xid := self.locked_by(changes)) is not None:
            raise TransactionInDoubtError(xid)

    def involved(self, name: str) -> tuple[str, ...]:
        """Holder and waiters: those whose life matters to somebody who wants the record set."""
        record = self.records.get(name)
        if record is None or record.holder is None:
            return ()
        return (record.holder, *record.waiters)

    def tally(self, changes: Iterable[Change]) -> Tally:
        """How many objects these changes would create, update and delete (C16, for statistics)."""
        create = update = delete = 0
        for change in changes:
            record = self.records.get(change.name)
            there: dict[str, bool] = {}
            for operation in change.operations:
                known = there.get(operation.key, record is not None and operation.key in record.objects)
                if isinstance(operation, Delete):
                    delete += known
                elif known:
                    update += 1
                else:
                    create += 1
                there[operation.key] = isinstance(operation, Put)
        return Tally(create, update, delete)

    def snapshot(self) -> Iterator[Entry]:
        """Entries that make the same ledger from nothing."""
        for session_id, label in self.sessions.items():
            yield Connected(session_id, label)
        for name, record in self.records.items():
            yield Restored(name, record.epoch, record.holder, tuple(record.waiters), tuple(record.objects.items()))
        yield from self.damaged.values()
        for xid, changes in self.prepared.items():
            yield Prepared(xid, changes, restored=True)
