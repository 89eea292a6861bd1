"""The ledger against a naive model, step by step (C9): both stay equal whatever happens."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from spark_jms.store.contract import Delete, Operation, Put
from spark_jms.store.errors import FencedError, SessionLostError, StaleEpochError
from spark_jms.store.ledger.backend import Tally, tally_of
from spark_jms.store.ledger.codec import DecodeError, decode, encode
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import (
    TRANSITIONS,
    Cancelled,
    Change,
    Closed,
    Connected,
    Ended,
    Entry,
    Event,
    LedgerError,
    NoTransitionError,
    Opened,
    Record,
    RecordState,
    Restored,
    Waited,
    Written,
)

NAMES = st.sampled_from(["a", "b", "ü/c"])
SESSIONS = st.integers(0, 5).map(lambda number: f"s{number}")
KEYS = st.sampled_from(["k1", "k2", "k3"])
OPERATIONS = st.lists(st.builds(Put, KEYS, st.binary(max_size=3)) | st.builds(Delete, KEYS), max_size=4)


def view(ledger: Ledger) -> dict[str, tuple[int, str | None, list[str], dict[str, bytes]]]:
    return {n: (r.epoch, r.holder, list(r.waiters), dict(r.objects)) for n, r in ledger.records.items()}


@dataclass
class Naive:
    """A line of sessions for each name: the first owns the record, the others wait."""

    line: list[str] = field(default_factory=list)
    owner_count: int = 0
    objects: dict[str, bytes] = field(default_factory=dict)

    def leave(self, gone: set[str]) -> None:
        first = self.line[0] if self.line else None
        self.line = [person for person in self.line if person not in gone]
        if self.line and self.line[0] != first:
            self.owner_count += 1


class LedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.naive: dict[str, Naive] = {}
        self.connected: set[str] = set()
        self.log: list[Entry] = []

    def do(self, entry: Entry | None) -> None:
        if entry is not None:
            self.ledger.apply(entry)
            self.log.append(entry)

    @rule(session=SESSIONS)
    def connect(self, session: str) -> None:
        if session in self.connected:
            with pytest.raises(LedgerError):
                self.do(Connected(session, ""))
        else:
            self.do(Connected(session, f"label {session}"))
            self.connected.add(session)

    @rule(session=SESSIONS, name=NAMES)
    def open(self, session: str, name: str) -> None:
        if session not in self.connected:
            with pytest.raises(SessionLostError):
                self.ledger.next_open(session, name)
            return
        self.do(self.ledger.next_open(session, name))
        naive = self.naive.setdefault(name, Naive())
        if session not in naive.line:
            naive.line.append(session)
            naive.owner_count += len(naive.line) == 1

    @rule(session=SESSIONS, name=NAMES)
    def close_or_cancel(self, session: str, name: str) -> None:
        naive = self.naive.get(name)
        if naive is None or session not in naive.line:
            with pytest.raises(LedgerError):
                self.do(Cancelled(name, session))
            return
        self.do(Closed(name, naive.owner_count) if naive.line[0] == session else Cancelled(name, session))
        naive.leave({session})

    @rule(sessions=st.sets(SESSIONS, min_size=1, max_size=3))
    def end(self, sessions: set[str]) -> None:
        if not sessions <= self.connected:
            with pytest.raises(LedgerError):
                self.do(Ended(tuple(sessions)))
            return
        self.do(Ended(tuple(sessions)))
        self.connected -= sessions
        for naive in self.naive.values():
            naive.leave(sessions)

    @rule(session=SESSIONS, name=NAMES, back=st.integers(0, 1), operations=OPERATIONS)
    def write(self, session: str, name: str, back: int, operations: list[Operation]) -> None:
        naive = self.naive.get(name) or Naive()
        changes = [Change(name, naive.owner_count - back, tuple(operations))]
        if back or naive.line[:1] != [session]:
            with pytest.raises(FencedError):
                self.ledger.next_write(session, changes)
            return
        tally = tally_of(changes, self.ledger)
        count_before = self.ledger.object_count
        self.do(self.ledger.next_write(session, changes))
        for operation in operations:
            if isinstance(operation, Put):
                naive.objects[operation.key] = operation.value
            else:
                naive.objects.pop(operation.key, None)
        assert self.ledger.object_count == count_before + tally.create_count - tally.delete_count
        assert tally.create_count + tally.update_count == sum(isinstance(operation, Put) for operation in operations)

    @invariant()
    def same_as_the_naive_one(self) -> None:
        expected = {
            name: (naive.owner_count, naive.line[0] if naive.line else None, naive.line[1:], naive.objects)
            for name, naive in self.naive.items()
        }
        assert view(self.ledger) == expected
        assert set(self.ledger.sessions) == self.connected
        assert self.ledger.object_count == sum(len(naive.objects) for naive in self.naive.values())

    @invariant()
    def snapshot_and_journal_make_the_same(self) -> None:
        for entries in (list(self.ledger.snapshot()), self.log):
            copy = Ledger()
            for entry in decode(encode(entries)):
                copy.apply(entry)
            assert view(copy) == view(self.ledger)
            assert copy.sessions == self.ledger.sessions
            assert (copy.object_count, copy.object_bytes) == (self.ledger.object_count, self.ledger.object_bytes)


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestLedger = LedgerMachine.TestCase


def test_every_event_has_a_row_and_absent_is_never_reached() -> None:
    """No transition leads back to ABSENT, so an epoch is never used again."""
    assert {event for _, event in TRANSITIONS} == set(Event)
    assert RecordState.ABSENT not in {transition.next for transition in TRANSITIONS.values()}


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", RecordState)
def test_the_table_decides_every_step(state: RecordState, event: Event) -> None:
    """C9: a step leads to the state in its row; without a row it is refused by name and changes nothing."""
    record = {
        RecordState.ABSENT: Record(),
        RecordState.FREE: Record(2),
        RecordState.HELD: Record(2, "a", ["b"]),
    }[state]
    before = record.copy()
    epoch = record.epoch + 1 if event is Event.OPENED else record.epoch
    session_id = "b" if event is Event.CANCELLED else "c"
    if (state, event) not in TRANSITIONS:
        with pytest.raises(NoTransitionError):
            record.step(event, epoch, session_id)
        assert record == before
    else:
        record.step(event, epoch, session_id)
        assert record.state is TRANSITIONS[state, event].next


def test_a_refused_entry_changes_nothing() -> None:
    ledger = Ledger()
    for entry in (Connected("s", ""), Opened("a", 1, "s"), Written((Change("a", 1, (Put("k", b"v"),)),))):
        ledger.apply(entry)
    before = view(ledger)
    bad: list[Entry] = [
        Opened("a", 2, "s"),
        Opened("b", 2, "s"),
        Opened("b", 1, "nobody"),
        Waited("a", "s"),
        Waited("a", "nobody"),
        Waited("b", "s"),
        Cancelled("a", "s"),
        Closed("a", 2),
        Written((Change("a", 1, (Put("k", b"x"),)), Change("b", 1, ()))),
        Written((Change("a", 2, (Put("k", b"x"),)),)),
        Ended(("s", "nobody")),
        Restored("a", 1, None, (), ()),
        Restored("c", 1, None, ("s",), ()),
        Restored("c", 1, "nobody", (), ()),
    ]
    for entry in bad:
        with pytest.raises(LedgerError):
            ledger.apply(entry)
        assert view(ledger) == before
        assert ledger.sessions == {"s": ""}


def test_sessions_that_end_together_get_no_record() -> None:
    ledger = Ledger()
    for person in ("a", "b", "c"):
        ledger.apply(Connected(person, ""))
    for entry in (Opened("r", 1, "a"), Waited("r", "b"), Waited("r", "c"), Ended(("a", "b"))):
        ledger.apply(entry)
    assert view(ledger)["r"] == (2, "c", [], {})


def test_stale_epochs_and_lost_sessions_have_different_errors() -> None:
    ledger = Ledger()
    ledger.apply(Connected("a", ""))
    ledger.apply(Opened("r", 1, "a"))
    with pytest.raises(StaleEpochError):
        ledger.owned("a", "r", 2)
    with pytest.raises(StaleEpochError):
        ledger.owned("a", "never", 1)
    ledger.apply(Connected("b", ""))
    with pytest.raises(StaleEpochError):
        ledger.owned("b", "r", 1)
    ledger.apply(Ended(("a",)))
    with pytest.raises(SessionLostError):
        ledger.owned("a", "r", 1)


def test_tally_follows_the_operations() -> None:
    changes = [Change("r", 1, (Put("k", b""), Put("k", b""), Delete("k"), Delete("k"), Put("k", b"")))]
    assert tally_of(changes, Ledger()) == Tally(create_count=2, update_count=1, delete_count=1)


@pytest.mark.parametrize(
    "data", [b"\x63", b"\x01\x05\x00ab", b"\x01\x01\x00\xff\x00\x00", encode([Connected("s", "x")])[:-1]]
)
def test_undecodable_bytes_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(data)
