"""The rules of transactions against a model: crashes anywhere, owners that sleep, several recoverers (T16)."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.claim import Claim
from spark_jms.core.pledge import Pledge
from spark_jms.core.ranges import Ranges
from spark_jms.core.record_set import RecordSet
from spark_jms.core.record_set_form import from_objects, to_objects
from spark_jms.core.staged_file import StagedFile
from spark_jms.core.transaction import (
    STEPS,
    CoordinatorState,
    PledgeOutcome,
    TransactionOrigin,
    TransactionState,
    TransactionStep,
    coordinator_from_bytes,
    coordinator_record,
    coordinator_to_bytes,
    outcome_of_pledge,
    target_step,
)
from spark_jms.core.transfer import TargetOutcome, Ticket, TransferTarget, outcome_of
from spark_jms.errors import ConsumerClosedException, FormatVersionError, IllegalStateException, RecordSetError

NONCE = "0123456789abcdef"
ORIGIN = TransactionOrigin("", "members/t/q/0", "orders", "q", 0)
FILE = StagedFile("m0-t0123456789abcdef-3-1-x.parquet", 0, 2, 100, 5, "{}", frozenset({"u"}))


def target(number: int, *files: StagedFile) -> TransferTarget:
    return TransferTarget(f"d{number}", f"table{number}", files)


def claimed() -> RecordSet:
    state = RecordSet().attach("c", "s")
    return state.claim(Claim("k", "c", "s", Ranges.of((1, 4)), 0, replayable=False))


@dataclass
class Log:
    """A target's log: one transaction, and how often its messages were appended. Each method is one commit."""

    version: int | None = None
    copies: int = 0

    def outcome(self, ticket: Ticket) -> TargetOutcome:
        return outcome_of(ticket, self.version)

    def append(self, ticket: Ticket) -> None:
        if self.outcome(ticket) is TargetOutcome.UNDECIDED:
            self.version, self.copies = ticket.appended, self.copies + 1

    def abort(self, ticket: Ticket) -> None:
        if self.outcome(ticket) is TargetOutcome.UNDECIDED:
            self.version = ticket.aborted


@dataclass
class World:
    """Two logs, one record set, and a coordinator's record whose epoch guards it."""

    coordinator: CoordinatorState = field(default_factory=lambda: CoordinatorState(3, NONCE))
    epoch: int = 1
    origin: RecordSet = field(default_factory=claimed)
    logs: list[Log] = field(default_factory=lambda: [Log(), Log()])
    rows: dict[int, str] = field(default_factory=dict)  # of the database, by number

    def decided(self, number: int, decision: str) -> str:
        """Insert a row unless there is one, in one transaction. Returns the one that is there."""
        return self.rows.setdefault(number, decision)

    def write(self, epoch: int, state: CoordinatorState) -> bool:
        """False: fenced."""
        if epoch != self.epoch:
            return False
        self.coordinator = state
        return True

    def end_pledges(self, ticket: Ticket) -> None:
        """A holder of the record set."""
        outcome = outcome_of_pledge(ticket, self.coordinator)
        if outcome is PledgeOutcome.ACKNOWLEDGE:
            self.origin = self.origin.fulfilled(ticket, 1, 0)
        elif outcome is PledgeOutcome.RETURN:
            self.origin = self.origin.withdrawn(ticket, 0)


@dataclass
class Owner:
    """Takes one step at a time; `ticket` and the picture of the record are its own, and may be old."""

    world: World
    epoch: int = 1
    step: int = 0
    state: CoordinatorState | None = None
    stopped: bool = False

    @property
    def ticket(self) -> Ticket:
        return Ticket(NONCE, 3, 1)

    def act(self) -> None:
        if self.stopped:
            return
        world, step = self.world, self.step
        self.step += 1
        if step == 0:
            self._write(world.coordinator.begun([target(0), target(1)], [ORIGIN], "me", 0))
        elif step == 1:
            if not world.origin.pledges and world.origin.claims:
                pledge = Pledge(self.ticket, coordinator_record(3), Ranges.of((1, 2)), "c", "k", 0)
                world.origin = world.origin.pledge("s", pledge)
        elif step == 2:
            self.decide()
        elif step in (3, 4):
            world.logs[step - 3].append(self.ticket)
        elif step == 5:
            world.origin = world.origin.fulfilled(self.ticket, 1, 0)
        elif step == 6:
            assert self.state is not None
            self._write(self.state.ended())

    def decide(self) -> None:
        assert self.state is not None
        self._write(self.state.committed([target(0, FILE), target(1, FILE)]))

    def _write(self, state: CoordinatorState) -> None:
        self.state, self.stopped = state, not self.world.write(self.epoch, state)


@dataclass
class OwnerWithDatabase(Owner):
    """Steps 4a to 4c in place of step 4."""

    entered: bool = False

    def decide(self) -> None:
        assert self.state is not None
        assert self.state.open is not None
        if self.state.open.state is TransactionState.PREPARING:
            self._write(self.state.prepared([target(0, FILE), target(1, FILE)], "shop"))
            self.step -= 1
        elif not self.entered:
            self.entered, self.stopped = True, self.world.decided(1, "C") != "C"
            self.step -= 1
        else:
            self._write(self.state.committed())


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
        if not self.epoch or found is None:
            return
        if found.state is TransactionState.PREPARING:
            world.write(self.epoch, world.coordinator.rolling_back())
            return
        if found.state is TransactionState.PREPARED:
            committed = world.decided(found.ticket.number, "R") == "C"
            coordinator = world.coordinator
            world.write(self.epoch, coordinator.committed() if committed else coordinator.rolling_back())
            return
        for log in world.logs:
            step = target_step(found.state, log.outcome(found.ticket))
            if step is not None:
                (log.append if step is TransactionStep.APPEND else log.abort)(found.ticket)
                return
        if world.origin.pledges:
            world.end_pledges(found.ticket)
            return
        world.write(self.epoch, world.coordinator.ended())


@pytest.mark.parametrize("kind", [Owner, OwnerWithDatabase])
@given(turns=st.lists(st.sampled_from(["owner", "open", "first", "second", "holder"]), max_size=40))
def test_every_interleaving_is_all_or_nothing(kind: type[Owner], turns: list[str]) -> None:
    """T16: whatever is interrupted, sleeps or is done twice, both logs have the messages once and the origin has acknowledged them,
    or no log has them and they are available, flagged. A database has decided the same."""
    world = World()
    owner, recoverers = kind(world), [Recoverer(world), Recoverer(world)]
    opener = 0
    for turn in turns:
        if turn == "owner":
            owner.act()
        elif turn == "open":
            recoverers[opener % 2].open()
            opener += 1
        elif turn == "holder":
            world.end_pledges(owner.ticket)
        else:
            recoverers[turn == "second"].act()
    last = Recoverer(world)  # everything else is dead
    last.open()
    for _ in range(10):
        last.act()
    world.end_pledges(owner.ticket)
    for _ in range(10):  # the owner wakes
        owner.act()
    world.end_pledges(owner.ticket)
    picks, copies = Ranges.of((1, 2)), {log.copies for log in world.logs}
    assert not world.origin.pledges
    if kind is OwnerWithDatabase and world.rows:
        assert (world.rows[1] == "C") == (copies == {1})
    if copies == {1}:
        assert world.origin.is_done(picks)
    else:
        assert copies == {0}
        assert world.origin.unfinished_of(picks) == picks


def test_the_table_covers_every_decided_outcome() -> None:
    """T16: the table executes; PREPARING has no row, because nothing is done before the decision."""
    decided = {TransactionState.COMMITTED, TransactionState.ROLLING_BACK}
    assert STEPS.keys() == {(state, outcome) for state in decided for outcome in TargetOutcome}
    assert {s for (state, _), s in STEPS.items() if state is TransactionState.ROLLING_BACK} == {
        TransactionStep.ABORT,
        None,
    }
    for state in set(TransactionState) - decided:
        with pytest.raises(KeyError):
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
