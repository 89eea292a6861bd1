"""The rules of transactions against a model: crashes anywhere, owners that sleep, several recoverers (T16)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import Claim
from spark_jms.core.records.stored_form import from_objects, to_objects
from spark_jms.core.transactions.transaction import (
    STEPS,
    CoordinatorState,
    Pledge,
    PledgeOutcome,
    TransactionOrigin,
    TransactionState,
    TransactionStep,
    coordinator_from_bytes,
    coordinator_record,
    coordinator_to_bytes,
    open_of,
    outcome_of_pledge,
    target_step,
)
from spark_jms.core.transactions.transfer import StagedFile, TargetOutcome, Ticket, TransferTarget, outcome_of
from spark_jms.errors import ConsumerClosedException, FormatVersionError, IllegalStateException, RecordSetError

NONCE = "0123456789abcdef"
ORIGIN = TransactionOrigin("", "members/t/q/0", "orders", "q", 0)
FILE = StagedFile("m0-t0123456789abcdef-3-1-x.parquet", 0, 2, 100, 5, "{}", frozenset({"u"}))


def target(number: int, *files: StagedFile) -> TransferTarget:
    return TransferTarget(f"d{number}", f"table{number}", files)


def claimed(*claims: tuple[str, Ranges]) -> RecordSet:
    state = RecordSet().attach("c", "s")
    for name, picks in claims or (("k", Ranges.of((1, 4))),):
        state = state.claim(Claim(name, "c", "s", picks, 0, replayable=False))
    return state


@dataclass
class Log:
    """A target's log: its newest transaction, and how often the messages of each were appended. Each method is one commit."""

    version: int | None = None
    copies: Counter[int] = field(default_factory=Counter)

    def outcome(self, ticket: Ticket) -> TargetOutcome:
        return outcome_of(ticket, self.version)

    def append(self, ticket: Ticket) -> None:
        if self.outcome(ticket) is TargetOutcome.UNDECIDED:
            self.version = ticket.appended
            self.copies[ticket.number] += 1

    def abort(self, ticket: Ticket) -> None:
        if self.outcome(ticket) is TargetOutcome.UNDECIDED:
            self.version = ticket.aborted


@dataclass
class Database:
    """Its one row of the coordinator, as claims/last_resource.py writes it; `decided`: what each number became."""

    number: int = 0
    decided: dict[int, str] = field(default_factory=dict)

    def enter(self, number: int) -> bool:
        """The owner's commit. False: this transaction or a later one is decided."""
        return self._write(number, "C")

    def is_committed(self, number: int) -> bool:
        """A recoverer asks, and forbids the owner's row where there is none."""
        assert self.number <= number, "a later transaction began although this one is open"
        return not self._write(number, "R") and self.decided[number] == "C"

    def _write(self, number: int, decision: str) -> bool:
        if self.number >= number:
            return False
        self.number, self.decided[number] = number, decision
        return True


OWNERS = 3
PICKS = [Ranges.of((2 * n + 1, 2 * n + 2)) for n in range(OWNERS)]


@dataclass
class World:
    """Two logs, one record set, a database, and a coordinator's record whose epoch guards it."""

    coordinator: CoordinatorState = field(default_factory=lambda: CoordinatorState(3, NONCE))
    epoch: int = 0
    origin: RecordSet = field(default_factory=lambda: claimed(*((f"k{n}", picks) for n, picks in enumerate(PICKS))))
    logs: list[Log] = field(default_factory=lambda: [Log(), Log()])
    database: Database = field(default_factory=Database)

    def write(self, epoch: int, state: CoordinatorState) -> bool:
        """False: fenced."""
        if epoch != self.epoch:
            return False
        self.coordinator = state
        return True

    def end_pledges(self) -> None:
        """A holder of the record set."""
        for ticket in {pledge.ticket for pledge in self.origin.pledges.values()}:
            outcome = outcome_of_pledge(open_of(ticket, self.coordinator), (log.outcome(ticket) for log in self.logs))
            if outcome is PledgeOutcome.ACKNOWLEDGE:
                self.origin = self.origin.fulfilled(ticket, 1, 0)
            elif outcome is PledgeOutcome.RETURN:
                self.origin = self.origin.withdrawn(ticket, 0)


@dataclass
class Recoverer:
    """Opens the coordinator, which fences the others, and takes one step at a time."""

    world: World
    epoch: int = 0

    def open(self) -> None:
        self.world.epoch += 1
        self.epoch = self.world.epoch

    def act(self) -> None:
        world, found = self.world, self.world.coordinator.open
        if self.epoch != world.epoch or found is None:
            return
        if found.state is TransactionState.PREPARING:
            world.write(self.epoch, world.coordinator.rolling_back())
            return
        if found.state is TransactionState.PREPARED:
            committed, coordinator = world.database.is_committed(found.ticket.number), world.coordinator
            world.write(self.epoch, coordinator.committed() if committed else coordinator.rolling_back())
            return
        for log in world.logs:
            step = target_step(found.state, log.outcome(found.ticket))
            if step is not None:
                (log.append if step is TransactionStep.APPEND else log.abort)(found.ticket)
                return
        if any(pledge.ticket == found.ticket for pledge in world.origin.pledges.values()):
            world.end_pledges()
            return
        world.write(self.epoch, world.coordinator.ended())


@dataclass
class Owner(Recoverer):
    """Takes the coordinator, ends what is open there, and makes one transaction, a step at a time; `ticket` and the picture of the
    record are its own, and may be old."""

    number: int = 0
    steps: Iterator[None] | None = None
    ticket: Ticket | None = None
    state: CoordinatorState | None = None
    decides_in_database = False

    def act(self) -> None:
        self.steps = self.steps or self._steps()
        next(self.steps, None)

    def _steps(self) -> Iterator[None]:
        world = self.world
        self.open()
        yield
        while world.coordinator.open is not None:
            if self.epoch != world.epoch:
                return
            super().act()
            yield
        if not self._wrote(world.coordinator.begun([target(0), target(1)], [ORIGIN], "me", 0)):
            return
        self.ticket = ticket = self._state.transaction.ticket
        yield
        pledge = Pledge(ticket, coordinator_record(3), PICKS[self.number], "c", f"k{self.number}", 0)
        world.origin = world.origin.pledge("s", pledge)
        yield
        for decided in self._decided():
            if not decided:
                return
            yield
        for log in world.logs:
            log.append(ticket)
            yield
        world.origin = world.origin.fulfilled(ticket, 1, 0)
        yield
        self._wrote(self._state.ended())

    def _decided(self) -> Iterator[bool]:
        """False: it was rolled back."""
        yield self._wrote(self._state.committed(STAGED))

    @property
    def _state(self) -> CoordinatorState:
        assert self.state is not None
        return self.state

    def _wrote(self, state: CoordinatorState) -> bool:
        self.state = state
        return self.world.write(self.epoch, state)


class OwnerWithDatabase(Owner):
    """Steps 4a to 4c in place of step 4."""

    decides_in_database = True

    def _decided(self) -> Iterator[bool]:
        yield self._wrote(self._state.prepared(STAGED, "shop"))
        yield self.world.database.enter(self._state.transaction.ticket.number)
        self._wrote(self._state.committed())  # fenced, another process does the same
        yield True


STAGED = [target(0, FILE), target(1, FILE)]
TURNS = [*range(OWNERS), "open", "first", "second", "holder"]


def played(kind: type[Owner], turns: Sequence[object]) -> World:
    """Ends with a last recoverer, when all others are dead, and then every owner wakes."""
    world = World()
    owners, recoverers = [kind(world, number=n) for n in range(OWNERS)], [Recoverer(world), Recoverer(world)]
    opener = 0
    for turn in turns:
        if isinstance(turn, int):
            owners[turn].act()
        elif turn == "open":
            recoverers[opener % 2].open()
            opener += 1
        elif turn == "holder":
            world.end_pledges()
        else:
            recoverers[turn == "second"].act()
        for owner in owners:
            check_order(world, owner)
    begun = [owner for owner in owners if owner.steps is not None]
    last = Recoverer(world)
    last.open()
    for _ in range(10):
        last.act()
    world.end_pledges()
    for owner in begun:
        for _ in range(20):
            owner.act()
    last.open()
    for _ in range(10):
        last.act()
    world.end_pledges()
    for owner in owners:
        check(world, owner)
    return world


def check_order(world: World, owner: Owner) -> None:
    """What is acknowledged is in all targets already: until then it holds back its unit of order."""
    if owner.ticket is not None and world.origin.is_done(PICKS[owner.number]):
        assert {log.copies[owner.ticket.number] for log in world.logs} == {1}


def check(world: World, owner: Owner) -> None:
    picks = PICKS[owner.number]
    number = owner.ticket.number if owner.ticket else 0
    copies = {log.copies[number] for log in world.logs}
    if owner.decides_in_database:
        assert (world.database.decided.get(number) == "C") == (copies == {1})
    if copies == {1}:
        assert world.origin.is_done(picks)
    else:
        assert copies == {0}
        assert world.origin.unfinished_of(picks) == picks
    assert not world.origin.pledges


@pytest.mark.parametrize("kind", [Owner, OwnerWithDatabase])
@given(turns=st.lists(st.sampled_from(TURNS), max_size=80))
def test_every_interleaving_is_all_or_nothing(kind: type[Owner], turns: list[object]) -> None:
    """T16: three transactions of one coordinator, of owners that are interrupted, sleep, or recover each other's: both logs have the
    messages of each once and the origin has acknowledged them, or no log has them and they are available. A database with one row
    for all of them has decided the same."""
    played(kind, turns)


@pytest.mark.parametrize("kind", [Owner, OwnerWithDatabase])
def test_owner_that_slept_through_later_transactions_changes_nothing(kind: type[Owner]) -> None:
    """T16: it wakes before each of its steps, when two other owners have finished theirs."""
    for slept in range(1, 12):
        world = played(kind, [*[0] * slept, *[1] * 30, *[2] * 30, *[0] * 20])
        assert len(world.logs[0].copies) >= 2


def test_the_table_covers_every_decided_outcome() -> None:
    """T16: the table executes; PREPARING has no row, because nothing is done before the decision."""
    decided = {TransactionState.COMMITTED, TransactionState.ROLLING_BACK}
    assert STEPS.keys() == {(state, outcome) for state in decided for outcome in TargetOutcome}
    assert {s for (state, _), s in STEPS.items() if state is TransactionState.ROLLING_BACK} == {
        TransactionStep.ABORT,
        None,
    }
    for state in set(TransactionState) - decided:
        with pytest.raises(IllegalStateException):
            target_step(state, TargetOutcome.UNDECIDED)


def test_coordinator_states_follow_one_way() -> None:
    """T16: numbers rise, a commit cannot be taken back, and a new life has another nonce."""
    fresh = CoordinatorState(3, NONCE)
    begun = fresh.begun([target(0)], [ORIGIN], "me", 7)
    assert (begun.number, begun.next_ticket.number) == (1, 2)
    with pytest.raises(IllegalStateException):
        begun.begun([], [], "me", 8)
    committed = begun.committed([target(0, FILE)])
    with pytest.raises(IllegalStateException):
        committed.rolling_back()
    with pytest.raises(IllegalStateException):
        begun.rolling_back().committed([])
    with pytest.raises(IllegalStateException):
        committed.renewed("b" * 16)
    prepared = begun.prepared([target(0, FILE)], "shop")
    assert prepared.committed() != committed  # it names its database
    assert prepared.rolling_back().open is not None
    for wrong in (lambda: prepared.committed([]), lambda: begun.committed(None), lambda: prepared.prepared([], "shop")):
        with pytest.raises(IllegalStateException):
            wrong()
    for step in (fresh.rolling_back, fresh.committed, lambda: fresh.transaction):
        with pytest.raises(IllegalStateException, match="no open transaction"):
            step()
    assert committed.ended().begun([], [], "me", 9).number == 2
    assert fresh.renewed("b" * 16).next_ticket == Ticket("b" * 16, 3, 1)


def test_coordinators_survive_their_stored_form() -> None:
    """T16: with the units of order that were placed; a newer version and damage are named."""
    begun = CoordinatorState(3, NONCE).begun([target(0)], [ORIGIN], "me", 7)
    for state in (
        CoordinatorState(3, NONCE, 9),
        begun,
        begun.committed([target(0, FILE)]),
        begun.rolling_back(),
        begun.prepared([], "shop"),
    ):
        assert coordinator_from_bytes(coordinator_to_bytes(state), "r") == state
    assert coordinator_from_bytes(None, "r") is None
    with pytest.raises(FormatVersionError, match="r has format version 9"):
        coordinator_from_bytes(coordinator_to_bytes(begun).replace(b'"v":1', b'"v":9'), "r")
    with pytest.raises(RecordSetError, match="coordinator r"):
        coordinator_from_bytes(b"{}", "r")


def test_a_pledge_takes_only_what_its_consumer_holds() -> None:
    """T16, C9: and nothing but the transaction's end changes it."""
    ticket = Ticket(NONCE, 3, 1)
    pledge = Pledge(ticket, "transactions/3", Ranges.of((2, 3)), "c", "k", 0)
    state = claimed().pledge("s", pledge)
    assert (state.claims["k"].picks, state.moving) == (Ranges.of((1, 1), (4, 4)), Ranges.of((2, 3)))
    swept = state.sweep(set(), 10, 0).sweep(set(), 20, 0)
    assert swept.available(1, 4) == Ranges.of((1, 1), (4, 4))
    assert state.release("k", Ranges.of((2, 3)), delivered=True) is state
    for session, other in (
        ("old", pledge),
        ("s", Pledge(ticket, "transactions/3", Ranges.of((4, 5)), "c", "k", 0)),
        ("s", Pledge(ticket, "transactions/3", Ranges.of((1, 1)), "c", "gone", 0)),
        ("s", pledge),
    ):
        with pytest.raises(ConsumerClosedException):
            state.pledge(session, other)
    done = state.fulfilled(ticket, 4, 9)
    assert (done.is_done(Ranges.of((2, 3))), done.position, done.outbox[0].picks) == (True, 1, Ranges.of((2, 3)))
    assert done.fulfilled(ticket, 4, 9) is done
    back = state.withdrawn(ticket, 9, until_ms=50)
    assert (back.redelivered(Ranges.of((2, 3))), back.waiting) == ({2: Ranges.of((2, 3))}, Ranges.of((2, 3)))
    assert back.cleared().pledges == {}
    assert state.cleared().pledges == state.pledges


def test_a_record_set_with_pledges_has_a_newer_version() -> None:
    """T16: an earlier release would deliver pledged messages; without pledges the form is as before."""
    ticket = Ticket(NONCE, 3, 1)
    before = claimed()
    state = before.pledge("s", Pledge(ticket, "transactions/3", Ranges.of((2, 3)), "c", "k", 0))
    assert from_objects(to_objects(state), "r") == state
    versions = [to_objects(each)["head"][:7] for each in (before, state, state.withdrawn(ticket, 0))]
    assert versions == [b'{"v":2,', b'{"v":3,', b'{"v":2,']
