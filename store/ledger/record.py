"""The entries of a store's ledger, and one record with the table that decides what may happen to it. Pure.

An entry is a value: what happened to a session, a record or a prepared transaction. It never depends on a clock or on who is
alive: its writer has looked before and puts the result into it (`Ended`).

Theory of a record. At any time one session at most holds it, and the others wait in line. Every holder has an epoch of its
own: 1, 2, 3 ... without gaps, never used twice, so an older holder can be told from the current one and fenced.

    state    event        guard                               next    effect
    ABSENT   OPENED       the epoch is 1                      HELD    the session holds it
    FREE     OPENED       the epoch is the next               HELD    the session holds it
    HELD     WAITED       not the holder, not waiting yet     HELD    the session joins the line at its end
    HELD     CANCELLED    is waiting                          HELD    the session leaves the line
    HELD     HANDED_OVER  the epoch is current                HELD    the first of the line holds it, at the next epoch
    HELD     FREED        the epoch is current                FREE    no session holds it
    HELD     WRITTEN      the epoch is current                HELD    the objects change

`TRANSITIONS` is this table, and `Record.step` executes it: an event without a row, or whose guard does not hold, is
refused by a named error and changes nothing. A FREE record has no waiters; no session waits twice, or for what it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from spark_jms.store.contract import Operation
from spark_jms.store.errors import RecordCorruptError

CHUNK_BYTES = 8 * 1024 * 1024
CHUNK_ENTRIES = 500


# -- the entries -------------------------------------------------------------------------------------------------------


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


def chunks(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Copying a whole ledger in chunks never builds one write of everything. Each chunk ends with the entry that reaches
    CHUNK_BYTES of keys and values, or CHUNK_ENTRIES."""
    chunk: list[Entry] = []
    size_bytes = 0
    for entry in entries:
        chunk.append(entry)
        if isinstance(entry, Restored):
            size_bytes += sum(len(key) + len(value) for key, value in entry.objects)
        if size_bytes >= CHUNK_BYTES or len(chunk) >= CHUNK_ENTRIES:
            yield chunk
            chunk, size_bytes = [], 0
    if chunk:
        yield chunk


# -- one record --------------------------------------------------------------------------------------------------------


class LedgerError(Exception):
    """An entry does not fit the ledger. In a file it means damage; from a plan, a fault of this program."""


class NoTransitionError(LedgerError):
    """The table has no row for this event in this state."""


class EpochMismatchError(LedgerError):
    """The entry belongs to another epoch of the record than the current, or the next, one."""


class WaitersMismatchError(LedgerError):
    """The session waits already, does not wait, or holds what it would wait for."""


class RecordState(Enum):
    __hash__ = object.__hash__  # Enum's own runs in Python; every write looks a row up

    ABSENT = "absent"
    FREE = "free"
    HELD = "held"


_ABSENT, _FREE, _HELD = RecordState  # as globals: reading a member from its class runs in Python, too


class Event(Enum):
    __hash__ = object.__hash__

    OPENED = "opened"
    WAITED = "waited"
    CANCELLED = "cancelled"
    HANDED_OVER = "handed over"
    FREED = "freed"
    WRITTEN = "written"


@dataclass(slots=True)
class Record:
    epoch: int = 0
    holder: str | None = None
    waiters: list[str] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)

    @property
    def state(self) -> RecordState:
        if self.epoch == 0:
            return _ABSENT
        return _FREE if self.holder is None else _HELD

    def check(self, event: Event, epoch: int, session_id: str = "") -> Transition:
        """The row of the table. LedgerError when there is none or its guard refuses the event."""
        state = self.state
        transition = TRANSITIONS.get((state, event))
        if transition is None:
            raise NoTransitionError(f"a record that is {state.value} cannot be {event.value}")
        transition.guard(self, epoch, session_id)
        return transition

    def step(self, event: Event, epoch: int, session_id: str = "") -> None:
        self.follow(self.check(event, epoch, session_id), session_id)

    def follow(self, transition: Transition, session_id: str = "") -> None:
        """Run the effect of a row that `check` has returned."""
        if transition.effect is None:
            return
        transition.effect(self, session_id)
        if self.state is not transition.next:
            raise LedgerError(f"a transition led to {self.state.value}, not to {transition.next.value}")

    def release(self, epoch: int) -> None:
        """The holder gives the record up: to the first of the line, if there is one."""
        self.step(Event.HANDED_OVER if self.waiters else Event.FREED, epoch)

    def copy(self) -> Record:
        return Record(self.epoch, self.holder, list(self.waiters), dict(self.objects))


def _is_next_epoch(record: Record, epoch: int, session_id: str) -> None:
    if epoch != record.epoch + 1:
        raise EpochMismatchError(f"opened at epoch {epoch} after {record.epoch}")


def _is_current_epoch(record: Record, epoch: int, session_id: str) -> None:
    if epoch != record.epoch:
        raise EpochMismatchError(f"at epoch {epoch}, not {record.epoch}")


def _is_outside(record: Record, epoch: int, session_id: str) -> None:
    if session_id == record.holder or session_id in record.waiters:
        raise WaitersMismatchError(f"session {session_id} holds the record or waits for it already")


def _is_waiting(record: Record, epoch: int, session_id: str) -> None:
    if session_id not in record.waiters:
        raise WaitersMismatchError(f"session {session_id} does not wait for the record")


def _hold(record: Record, session_id: str) -> None:
    record.epoch += 1
    record.holder = session_id


def _join_line(record: Record, session_id: str) -> None:
    record.waiters.append(session_id)


def _leave_line(record: Record, session_id: str) -> None:
    record.waiters.remove(session_id)


def _hand_over(record: Record, session_id: str) -> None:
    _hold(record, record.waiters.pop(0))


def _free(record: Record, session_id: str) -> None:
    record.holder = None


class Transition(NamedTuple):
    """Without an effect the state is `next` already. The objects are changed by the ledger, which counts them."""

    next: RecordState
    guard: Callable[[Record, int, str], None]
    effect: Callable[[Record, str], None] | None


TRANSITIONS: Mapping[tuple[RecordState, Event], Transition] = {
    (RecordState.ABSENT, Event.OPENED): Transition(RecordState.HELD, _is_next_epoch, _hold),
    (RecordState.FREE, Event.OPENED): Transition(RecordState.HELD, _is_next_epoch, _hold),
    (RecordState.HELD, Event.WAITED): Transition(RecordState.HELD, _is_outside, _join_line),
    (RecordState.HELD, Event.CANCELLED): Transition(RecordState.HELD, _is_waiting, _leave_line),
    (RecordState.HELD, Event.HANDED_OVER): Transition(RecordState.HELD, _is_current_epoch, _hand_over),
    (RecordState.HELD, Event.FREED): Transition(RecordState.FREE, _is_current_epoch, _free),
    (RecordState.HELD, Event.WRITTEN): Transition(RecordState.HELD, _is_current_epoch, None),
}
