"""Transactions: sends to several destinations and acknowledgements of several consumers, all or none, exactly once.

A commit has a *coordinator*: a record in the domain's home store, `transactions/<slot>`, which one process holds at a time and uses
for one commit after the other. Its state is a life (`nonce`), the newest number given in it, and the transaction that is open.
Life, slot and number are the transaction's ticket (`Ticket`), by which every target's log and every origin's record set knows it.

    step                                               written where                       a crash behind it
    ----                                               -------------                       -----------------
    1 PREPARING: the ticket, the targets, the origins  the coordinator                     rolled back
    2 the messages to send are staged                  files of the targets, by ticket     rolled back
    3 the messages to acknowledge become PLEDGED       each origin's record set            rolled back
    4 COMMITTED: with the staged files                 the coordinator: THE DECISION       completed
    with a database as last resource, step 4 is:
    4a PREPARED: with the staged files                 the coordinator                     the database decides
    4b a row, with the application's own changes       its database: THE DECISION          completed
    4c COMMITTED                                       the coordinator                     completed
    5 the files are appended                           each target's log, by ticket        completed
    6 the pledges become acknowledgements              each origin's record set            completed
    7 nothing is open                                  the coordinator                     over

The store gives a record a new epoch with each holder and refuses older ones. So whichever process opens the coordinator of a
dead owner decides for it: what it finds PREPARING it rolls back, and the owner, should it wake, cannot write step 4 any more.
What it finds COMMITTED it completes: an append is decided once by the target's log, an acknowledgement once by the record set,
so two processes may do the same steps. What it finds PREPARED the database decides, where a recoverer that finds no row inserts
one that forbids the owner's; while the database cannot be asked, the transaction is in doubt. The coordinator stays open until
all is done, so a pledge whose transaction is not open has been rolled back.

Step 6 follows step 5 in every process. Until then the pledged messages hold back their units of order: what a consumer makes of
the next message of a unit cannot overtake what the transaction made of the one before.

    the coordinator's record                          a pledge of number n becomes
    ------------------------                          ----------------------------
    n is open and COMMITTED, and a target may still   (it waits)
    get its messages: APPEND in the table below
    n is open and COMMITTED, and none may             an acknowledgement
    n is open and PREPARING, and the owner lives      (it waits)
    n is open and PREPARING, and the owner is dead    as below, once the record is opened and n is ROLLING_BACK
    n is open and PREPARED                            (it waits)
    n is open and ROLLING_BACK, or n is not open      available, flagged and counted

    open           a target is      next
    ----           -----------      ----
    COMMITTED      undecided        append to it
    COMMITTED      incomplete       blocked: a staged file was deleted by hand
    COMMITTED      aborted          blocked: the target's log was restored from a copy of another moment
    COMMITTED      appended         nothing, as when it is overtaken
    COMMITTED      replaced         nothing: the destination was dropped, with all its messages
    ROLLING_BACK   undecided,       abort it, so that clean-up may delete what was staged
                   incomplete
    ROLLING_BACK   any other        nothing

`STEPS` is the second table and `outcome_of_pledge` executes the first. A target that waits (a pause, a quota) or is blocked does
not keep the other targets from their messages.

Features: T16 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, TypeVar

from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.transactions.transfer import StagedFile, TargetOutcome, Ticket, TransferTarget
from spark_jms.errors import FormatVersionError, IllegalStateException, RecordSetError

FORMAT_VERSION = 1
MAX_COORDINATORS = 65_536  # as many as ever commit at once: a limit on loops, not on users
COORDINATOR_KEY = "coordinator"
COORDINATORS_PREFIX = "transactions/"
_State = TypeVar("_State", bound=Enum)
_Event = TypeVar("_Event", bound=Enum)
_T = TypeVar("_T")


class TransactionState(Enum):
    PREPARING = "preparing"
    PREPARED = "in doubt"  # its last resource decides
    COMMITTED = "committed"
    ROLLING_BACK = "rolling back"


class TransactionStep(Enum):
    APPEND = auto()
    ABORT = auto()
    BLOCKED = auto()


class PledgeOutcome(Enum):
    ACKNOWLEDGE = auto()
    RETURN = auto()
    WAIT = auto()


_C, _R, _O = TransactionState.COMMITTED, TransactionState.ROLLING_BACK, TargetOutcome
# None: nothing is left to do at this target
STEPS: Mapping[tuple[TransactionState, TargetOutcome], TransactionStep | None] = {
    (_C, _O.UNDECIDED): TransactionStep.APPEND,
    (_C, _O.INCOMPLETE): TransactionStep.BLOCKED,
    (_C, _O.APPENDED): None,
    (_C, _O.ABORTED): TransactionStep.BLOCKED,
    (_C, _O.OVERTAKEN): None,
    (_C, _O.REPLACED): None,
    (_R, _O.UNDECIDED): TransactionStep.ABORT,
    (_R, _O.INCOMPLETE): TransactionStep.ABORT,
    (_R, _O.APPENDED): None,
    (_R, _O.ABORTED): None,
    (_R, _O.OVERTAKEN): None,
    (_R, _O.REPLACED): None,
}


@dataclass(frozen=True)
class TransactionOrigin:
    """A record set with messages to acknowledge: `record` in the store of `server`."""

    server: str
    record: str
    destination: str
    subscription: str
    member: int


@dataclass(frozen=True)
class OpenTransaction:
    """`targets` have their files once it is PREPARED or COMMITTED. `owner` names the process for people. `resource`: the last
    resource that decides; "": none."""

    ticket: Ticket
    state: TransactionState
    targets: tuple[TransferTarget, ...]
    origins: tuple[TransactionOrigin, ...]
    owner: str
    made_ms: int
    resource: str = ""

    @property
    def is_decided(self) -> bool:
        return self.state in (TransactionState.COMMITTED, TransactionState.ROLLING_BACK)


@dataclass(frozen=True)
class Pledge:
    """Messages of a claim that a transaction acknowledges if its coordinator decides so. `coordinator` is the record in the domain's
    home store that has the decision on `ticket`. `consumer` and `claim` stand in the acknowledgement."""

    ticket: Ticket
    coordinator: str
    picks: Ranges
    consumer: str
    claim: str
    made_ms: int

    @property
    def key(self) -> str:
        """Unique in a record set."""
        return f"{self.ticket.nonce}-{self.ticket.slot}-{self.ticket.number}/{self.claim}"


@dataclass(frozen=True)
class CoordinatorState:
    """Of one slot. Every method returns a new state; the holder of the record writes it. A step that the state does not allow raises
    IllegalStateException."""

    slot: int
    nonce: str
    number: int = 0
    open: OpenTransaction | None = None

    @property
    def next_ticket(self) -> Ticket:
        return Ticket(self.nonce, self.slot, self.number + 1)

    def renewed(self, nonce: str) -> CoordinatorState:
        """A new life: a target knows a number that this record has not given, so it was lost or restored."""
        self._check_none_open()
        return CoordinatorState(self.slot, nonce)

    def begun(
        self, targets: Iterable[TransferTarget], origins: Iterable[TransactionOrigin], owner: str, now_ms: int
    ) -> CoordinatorState:
        self._check_none_open()
        ticket = self.next_ticket
        made = OpenTransaction(ticket, TransactionState.PREPARING, tuple(targets), tuple(origins), owner, now_ms)
        return replace(self, number=ticket.number, open=made)

    def prepared(self, targets: Iterable[TransferTarget], resource: str) -> CoordinatorState:
        """`resource` decides. `targets` as staged."""
        found = self._open_in(TransactionState.PREPARING)
        return replace(
            self, open=replace(found, state=TransactionState.PREPARED, targets=tuple(targets), resource=resource)
        )

    def committed(self, targets: Iterable[TransferTarget] | None = None) -> CoordinatorState:
        """The decision, or what the last resource has decided. `targets` as staged; None: as PREPARED."""
        found = self._open_in(TransactionState.PREPARED if targets is None else TransactionState.PREPARING)
        staged = found.targets if targets is None else tuple(targets)
        return replace(self, open=replace(found, state=TransactionState.COMMITTED, targets=staged))

    def rolling_back(self) -> CoordinatorState:
        """Of one that is PREPARED, only when its last resource has not committed it and never will."""
        found = self._open_in(*(set(TransactionState) - {TransactionState.COMMITTED}))
        return replace(self, open=replace(found, state=TransactionState.ROLLING_BACK))

    @property
    def transaction(self) -> OpenTransaction:
        """The one that is open."""
        return self._open_in(*TransactionState)

    def _open_in(self, *allowed: TransactionState) -> OpenTransaction:
        if self.open is None:
            raise IllegalStateException(f"{coordinator_record(self.slot)} has no open transaction")
        if self.open.state not in allowed:
            raise IllegalStateException(f"transaction {self.open.ticket} is {self.open.state.value}")
        return self.open

    def _check_none_open(self) -> None:
        if self.open is not None:
            raise IllegalStateException(
                f"{coordinator_record(self.slot)} has an open transaction, {self.open.ticket}, which ends before the next begins"
            )

    def ended(self) -> CoordinatorState:
        return replace(self, open=None)


def step_of(table: Mapping[tuple[_State, _Event], _T], state: _State, event: _Event, what: str) -> _T:
    """The entry of a state table for this step. `what` names the thing that has the state. Raises IllegalStateException for a step
    that the table does not have: nothing was changed."""
    try:
        return table[state, event]
    except KeyError:
        raise IllegalStateException(
            f"{what} is {state.name}, and {event.name} is no step of that state: nothing was changed"
        ) from None


def target_step(state: TransactionState, outcome: TargetOutcome) -> TransactionStep | None:
    """What a transaction that is decided does next at a target; None: nothing. Raises IllegalStateException for any other."""
    return step_of(STEPS, state, outcome, "the transaction")


def waits_for_targets(outcomes: Iterable[TargetOutcome]) -> bool:
    """A target of a committed transaction may still get its messages."""
    return any(target_step(TransactionState.COMMITTED, one) is TransactionStep.APPEND for one in outcomes)


def open_of(ticket: Ticket, coordinator: CoordinatorState | None) -> OpenTransaction | None:
    """None: it has ended, or `coordinator` was never written, or is lost."""
    found = coordinator.open if coordinator is not None else None
    return found if found is not None and found.ticket == ticket else None


def outcome_of_pledge(found: OpenTransaction | None, outcomes: Iterable[TargetOutcome]) -> PledgeOutcome:
    """Of a pledge to the transaction `found` (see `open_of`). `outcomes`: of its targets; consumed when it is committed."""
    if found is None or found.state is TransactionState.ROLLING_BACK:
        return PledgeOutcome.RETURN
    if found.state is not TransactionState.COMMITTED or waits_for_targets(outcomes):
        return PledgeOutcome.WAIT
    return PledgeOutcome.ACKNOWLEDGE


def coordinator_record(slot: int) -> str:
    return f"{COORDINATORS_PREFIX}{slot}"


def with_ticket(pledges: Mapping[str, Pledge], ticket: Ticket) -> list[Pledge]:
    """Those of one transaction."""
    return [pledge for pledge in pledges.values() if pledge.ticket == ticket]


# -- stored form -------------------------------------------------------------------------------------------------------
def coordinator_to_bytes(state: CoordinatorState) -> bytes:
    found = state.open
    value: dict[str, Any] = {"v": FORMAT_VERSION, "slot": state.slot, "nonce": state.nonce, "number": state.number}
    if found is not None:
        value["open"] = {
            "ticket": [found.ticket.nonce, found.ticket.slot, found.ticket.number],
            "state": found.state.value,
            "owner": found.owner,
            "madeMs": found.made_ms,
            "resource": found.resource,
            "origins": [[o.server, o.record, o.destination, o.subscription, o.member] for o in found.origins],
            "targets": [
                [
                    target.destination,
                    target.table_id,
                    [
                        [f.path, f.member, f.rows, f.bytes, f.modified_ms, f.stats, sorted(f.placed)]
                        for f in target.files
                    ],
                ]
                for target in found.targets
            ],
        }
    return json.dumps(value, separators=(",", ":")).encode()


def coordinator_from_bytes(value: bytes | None, name: str) -> CoordinatorState | None:
    """None: never written. Raises RecordSetError or FormatVersionError with `name`."""
    if value is None:
        return None
    try:
        stored = json.loads(value)
        if stored["v"] > FORMAT_VERSION:
            raise FormatVersionError(
                f"the coordinator {name} has format version {stored['v']}, this spark-jms reads up to {FORMAT_VERSION}: "
                "install a later spark-jms"
            )
        found = stored.get("open")
        return CoordinatorState(
            int(stored["slot"]), str(stored["nonce"]), int(stored["number"]), None if found is None else _open(found)
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise RecordSetError(
            f"the coordinator {name} in the store cannot be read ({error!r}): restore the store from a copy"
        ) from error


def _open(stored: Mapping[str, Any]) -> OpenTransaction:
    nonce, slot, number = stored["ticket"]
    return OpenTransaction(
        Ticket(str(nonce), int(slot), int(number)),
        TransactionState(stored["state"]),
        tuple(TransferTarget(name, table, tuple(map(_file, files))) for name, table, files in stored["targets"]),
        tuple(TransactionOrigin(*origin) for origin in stored["origins"]),
        str(stored["owner"]),
        int(stored["madeMs"]),
        str(stored["resource"]),
    )


def _file(stored: list[Any]) -> StagedFile:
    path, member, rows, size, modified_ms, stats, placed = stored
    return StagedFile(path, member, rows, size, modified_ms, stats, frozenset(placed))


def pledge_to_json(pledge: Pledge) -> list[Any]:
    ticket = pledge.ticket
    return [
        [ticket.nonce, ticket.slot, ticket.number],
        pledge.coordinator,
        pledge.picks.to_json(),
        pledge.consumer,
        pledge.claim,
        pledge.made_ms,
    ]


def pledge_from_json(value: list[Any]) -> Pledge:
    """Raises ValueError, IndexError or TypeError."""
    (nonce, slot, number), coordinator, picks, consumer, claim, made_ms = value
    return Pledge(
        Ticket(str(nonce), int(slot), int(number)),
        str(coordinator),
        Ranges.from_json(picks),
        str(consumer),
        str(claim),
        int(made_ms),
    )
