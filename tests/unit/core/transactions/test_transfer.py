"""The rules of transfers against a model: several recoverers, crashes anywhere, targets that abort or vanish (C18)."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.transactions.transfer import (
    MAX_SLOTS,
    STEPS,
    Intent,
    NextStep,
    StagedFile,
    TargetOutcome,
    Ticket,
    TransferStep,
    TransferTarget,
    free_ticket,
    intent_from_json,
    intent_to_json,
    is_undecided,
    next_step,
    outcome_of,
    ticket_of_file,
)

TICKET = Ticket("0123456789abcdef", 3, 7)


@dataclass
class ModelTarget:
    """A target's log: one transaction, one set of messages. Each method is one atomic commit."""

    version: int | None = None
    copies: int = 0
    present: bool = True
    replaced: bool = False

    def outcome(self) -> TargetOutcome:
        outcome = TargetOutcome.REPLACED if self.replaced else outcome_of(TICKET, self.version)
        return TargetOutcome.INCOMPLETE if outcome is TargetOutcome.UNDECIDED and not self.present else outcome

    def append(self) -> None:
        if self.outcome() is TargetOutcome.UNDECIDED:
            self.version, self.copies = TICKET.appended, self.copies + 1

    def abort(self) -> None:
        if self.outcome() in (TargetOutcome.UNDECIDED, TargetOutcome.INCOMPLETE):
            self.version = TICKET.aborted


@dataclass
class Recoverer:
    """A process that looks, sleeps, and acts on what it saw."""

    planned: NextStep | None = None


@dataclass
class TransferWorld:
    targets: list[ModelTarget]
    origin: str = "moving"
    recoverers: list[Recoverer] = field(default_factory=lambda: [Recoverer(), Recoverer()])

    def look(self, who: int) -> None:
        self.recoverers[who].planned = next_step([t.outcome() for t in self.targets])

    def act(self, who: int) -> None:
        """The step that was planned some time ago. The origin's record has one holder, so its end happens once."""
        step, self.recoverers[who].planned = self.recoverers[who].planned, None
        if step is None:
            return
        if step.step is TransferStep.APPEND:
            self.targets[step.target].append()
        elif step.step is TransferStep.ABORT:
            self.targets[step.target].abort()
        elif self.origin == "moving" and step.step is not TransferStep.BLOCKED:
            self.origin = {TransferStep.ACKNOWLEDGE: "done", TransferStep.RETURN: "available"}[step.step]


moves = st.lists(
    st.tuples(st.sampled_from(["look", "act", "crash", "lose files", "replace"]), st.integers(0, 1), st.integers(0, 2)),
    max_size=30,
)


@pytest.mark.timeout(300)  # 2,000 examples: 10 s, but a busy machine has taken 60
@settings(max_examples=2000, deadline=None)
@given(st.integers(1, 3), moves)
def test_transfer_is_all_or_nothing(count: int, events: list[tuple[str, int, int]]) -> None:
    """C18: at every moment no target has two copies, an origin that is done has all targets' copies, an origin that is
    available has none; in the end the transfer has ended, or it is blocked with the first target's copy in place."""
    world = TransferWorld([ModelTarget() for _ in range(count)])
    for what, who, which in events:
        target = world.targets[which % count]
        if what == "look":
            world.look(who)
        elif what == "act":
            world.act(who)
        elif what == "crash":
            world.recoverers[who].planned = None
        elif what == "lose files" and target.outcome() is TargetOutcome.UNDECIDED:
            target.present = False
        elif what == "replace" and not target.copies:
            target.replaced = True
        check(world)
    for _ in range(2 * count + 2):
        for who in (0, 1):
            world.look(who)
            check(world)
            world.act(who)
            check(world)
    blocked = next_step([t.outcome() for t in world.targets]).step is TransferStep.BLOCKED
    assert world.origin != "moving" or blocked
    if blocked:
        assert world.origin == "moving"
        assert world.targets[0].copies == 1


def check(world: TransferWorld) -> None:
    assert all(target.copies <= 1 for target in world.targets)
    if world.origin == "done":
        assert all(target.copies == 1 for target in world.targets)
    if world.origin == "available":
        assert not any(target.copies for target in world.targets)


def test_steps_cover_every_case() -> None:
    """C18: the table has a row for each outcome, of the first and of another target."""
    assert STEPS.keys() == set(itertools.product((True, False), TargetOutcome))
    assert next_step([TargetOutcome.APPENDED] * 3) == NextStep(TransferStep.ACKNOWLEDGE)
    assert next_step([TargetOutcome.APPENDED, TargetOutcome.UNDECIDED]) == NextStep(TransferStep.APPEND, 1)


def test_absent_transaction_decides_nothing() -> None:
    """C18: neither no transaction nor an older one is an answer."""
    assert [outcome_of(TICKET, v) for v in (None, 0, 12, 13)] == [TargetOutcome.UNDECIDED] * 4
    assert [outcome_of(TICKET, v) for v in (14, 15)] == [TargetOutcome.APPENDED, TargetOutcome.ABORTED]
    assert [outcome_of(TICKET, v) for v in (16, 17, 99)] == [TargetOutcome.OVERTAKEN] * 3


def test_staged_files_are_spared_until_the_transfer_is_decided() -> None:
    """C18: they may be the only copy. Their names tell, so clean-up needs no store."""
    path = f"m12-{TICKET.file_prefix}AbC-_defGHIJKLMn.parquet"
    assert ticket_of_file(path) == TICKET
    assert is_undecided(path, {})
    assert is_undecided(path, {TICKET.app_id: TICKET.appended - 1})
    assert not is_undecided(path, {TICKET.app_id: TICKET.appended})
    assert not is_undecided(path, {TICKET.app_id: TICKET.aborted})
    assert not is_undecided("m0-AbC-_defGHIJKLMn.parquet", {})


def test_tickets_use_free_slots() -> None:
    """C18: a slot has one open intent; its next number follows the newest one given."""
    assert free_ticket("n", {0: 4}, []) == Ticket("n", 0, 5)
    assert free_ticket("n", {0: 4}, [0]) == Ticket("n", 1, 1)
    assert free_ticket("n", {}, range(MAX_SLOTS)) is None


def test_intent_round_trips() -> None:
    """C18: an intent is stored whole; one without targets is refused."""
    target = TransferTarget("errors", "id", (StagedFile("m0-x.parquet", 0, 5, 100, 17, '{"numRecords":5}'),))
    directed = replace(target, member=3)
    intent = Intent(TICKET, Ranges.of((1, 5), (9, 9)), (target, directed), "jmsq move", "move-1", "why", 99)
    assert intent_from_json(intent_to_json(intent)) == intent
    with pytest.raises(ValueError, match="at least one target"):
        Intent(TICKET, Ranges.of((1, 5)), (), "c", "k", "", 0)
