"""Making, finishing and recovering the transfers of record sets, and ending their pledges.

core/transactions/ has the rules: transfer.py of transfers, transaction.py of pledges.

    claimed          a session claims the messages and stages them at the target
    -> moving        it writes the intent, in one write of the store
    -> done          the target's log has them, and the origin acknowledges them
    -> available     no target has them and none will: flagged as redelivered

Any process finishes open transfers, and the pledges whose transactions are decided: a consumer before it plans, `jmsq move`, and
housekeeping where no consumer lives.

Features: C18, T16 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import pyarrow as pa

from spark_jms.claims.servers.stores import label_of, opened_state, operations, record_of
from spark_jms.core.destinations.destination import is_temporary
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.destinations.subscriptions import record_server
from spark_jms.core.messages.carried import NOTHING_CARRIED, CarriedCounts
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import delay_end_ms
from spark_jms.core.records.refusal import QUOTA, BrokenRule, Sieve
from spark_jms.core.transactions.transaction import (
    COORDINATOR_KEY,
    CoordinatorState,
    PledgeOutcome,
    TransactionState,
    coordinator_from_bytes,
    coordinator_to_bytes,
    open_of,
    outcome_of_pledge,
)
from spark_jms.core.transactions.transfer import (
    Intent,
    NextStep,
    TargetOutcome,
    Ticket,
    TransferStep,
    TransferTarget,
    next_step,
)
from spark_jms.errors import (
    InsertionPausedError,
    InvalidDestinationError,
    JmsqError,
    LargerThanQuotaError,
    QuotaExceededError,
    TransferError,
)
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.data_files import discard
from spark_jms.log.sending.transfer import (
    abort_transfer,
    append_transfer,
    has_overtaken,
    stage_transfer,
    target_outcome,
)
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms
from spark_jms.store import FencedError, Put, RecordHeldError, Session, Store, StoreError

log = logging.getLogger("spark_jms")
_FIRST_PAUSE_MS, _LONGEST_PAUSE_MS = 1_000, 60_000
_PAUSE_MS = 200  # between two looks at a coordinator that has not decided
_MOST_ATTEMPTS = 100  # to find messages that fit: the others are tried with the next transfer


@dataclass(frozen=True)
class TransferProblem:
    """Why an open transfer does not end: its target cannot be reached, or it is blocked."""

    ticket: Ticket
    text: str
    waits: bool = False  # nothing is wrong: insertion into the target is paused, or its quota has no room


@dataclass(frozen=True)
class TransfersEnded:
    """A record set after its transfers were finished as far as possible."""

    state: RecordSet
    problems: tuple[TransferProblem, ...] = ()


@dataclass(frozen=True)
class Movement:
    """What a new transfer moves: `picks` of a claim, as `rows` of ROW_COLUMNS (log/sending/transfer.py), to a destination or one of
    its members. `table_id`: of that destination, when the caller has looked at it. With a `sieve`, for which the rows have their
    `sequence` too, what the target refuses for good is left out. `carried`: the delivery counts that they keep there."""

    claim: str
    picks: Ranges
    rows: Iterable[pa.RecordBatch]
    destination: str
    member: int | None
    consumer: str
    reason: str
    table_id: str | None = None
    sieve: Sieve | None = None
    carried: CarriedCounts = NOTHING_CARRIED


class Fitting(Protocol):
    """Messages of which a target may refuse some for good."""

    @property
    def target(self) -> str:
        """The destination."""
        ...

    @property
    def whole_units(self) -> bool:
        """Units of work stay together."""
        ...

    def movement(self, picks: Ranges, sieve: Sieve) -> Movement:
        """Of these, through the sieve."""
        ...


class Begun(NamedTuple):
    """A record set, with the new intent unless the target refuses all messages; what it refuses stays claimed."""

    state: RecordSet
    refused: Mapping[BrokenRule, Ranges]


class Transfers:
    """Makes, finishes and recovers the transfers of record sets. Not thread-safe. It remembers only when to try a target
    again."""

    def __init__(self, domain: Domain, origin: DeltaLog, clock_ms: Callable[[], int] = now_ms) -> None:
        """`origin`: of the destination with the record sets."""
        self._domain, self._origin, self._clock_ms = domain, origin, clock_ms
        self._pauses: dict[Ticket, tuple[int, int]] = {}  # ticket -> not before, pause

    def carry_out(
        self, state: RecordSet, movement: Movement, epoch: int, write: Callable[[RecordSet], None]
    ) -> TransfersEnded:
        """Begin a transfer and finish it, with all others that are open. `write` commits a new state of the record set."""
        moving = self.begin(state, movement)
        write(moving)
        ended = self.finish(moving, epoch)
        write(ended.state)
        return ended

    def begin(self, state: RecordSet, movement: Movement) -> RecordSet:
        """Stage the messages, and enter the intent. Write the result to the store, then call `finish`. What the target refuses for
        good raises an error; with a sieve it stays claimed, and when that are all, no intent is made. Raises TransferError when too
        many transfers are open, DestinationReplacedError, and LargerThanQuotaError when the target can never take so much at once."""
        before, sieve, target_log = state, movement.sieve, self._domain.log(movement.destination)
        ticket = state.ticket(secrets.token_hex(8))
        if ticket is not None and has_overtaken(target_log, ticket):
            state = state.renewed(secrets.token_hex(8))
            ticket = state.ticket(state.nonce)
        if ticket is None:
            raise TransferError(
                f"{len(state.intents)} transfers are open here, and none of them ends: see `jmsq stat`, repair their "
                "targets, then try again"
            )
        target = stage_transfer(
            target_log, ticket, movement.rows, movement.member, movement.table_id, sieve, movement.carried
        )
        picks = movement.picks
        if sieve is not None and sieve.messages:
            picks = picks - sieve.messages
            if sieve.refuse_units() or not picks:
                discard(target_log.storage, target.files)
                return before
        self._check_possible(target_log, target)
        intent = Intent(
            ticket,
            picks,
            (target,),
            movement.consumer,
            movement.claim,
            movement.reason,
            self._clock_ms(),
        )
        return state.move(movement.claim, intent)

    def begin_fitting(self, state: RecordSet, picks: Ranges, fitting: Fitting) -> Begun:
        """The same for the messages that the target does not refuse for good. Of more than its quota has room for at once the first
        ones move. Raises TransferError, and JmsqError or OSError when the target cannot take any now; then nothing has changed."""
        refused: dict[BrokenRule, Ranges] = {}
        rest, wanted = picks, picks.count
        for _ in range(_MOST_ATTEMPTS):
            if not rest:
                break
            sieve, part = Sieve(fitting.whole_units), rest.take(wanted)
            try:
                moving = self.begin(state, fitting.movement(part, sieve))
            except LargerThanQuotaError:
                if part.count > 1:
                    wanted = part.count // 2
                    continue
                sieve, moving = Sieve(), state
                sieve.refuse(self._larger_than_quota(fitting.target), part)
            refused = {
                rule: refused.get(rule, EMPTY) | sieve.refused.get(rule, EMPTY) for rule in {**refused, **sieve.refused}
            }
            rest = rest - sieve.messages
            if moving is not state:
                return Begun(moving, refused)
        return Begun(state, refused)

    def _larger_than_quota(self, destination: str) -> BrokenRule:
        quotas = ", ".join(sorted(self._domain.log(destination).snapshot.destination.quotas))
        return BrokenRule(QUOTA, f"larger alone than the maximum of quota {quotas}")

    def declared(self, destination: str) -> str:
        """What decides which messages the destination refuses for good, to compare. Raises JmsqError or OSError."""
        snapshot = self._domain.log(destination).refresh()
        limits = {quota: self._domain.quotas.limit(quota) for quota in sorted(snapshot.destination.quotas)}
        maxima = [f"{quota} {limit.messages} {limit.bytes}" for quota, limit in limits.items()]
        return "/".join([snapshot.table_id, str(snapshot.destination.epoch), *maxima])

    def _check_possible(self, target_log: DeltaLog, target: TransferTarget) -> None:
        if target.table_id == self._origin.snapshot.table_id:
            return
        try:
            self._domain.quotas.check_possible(target.destination, target.files)
        except LargerThanQuotaError:
            discard(target_log.storage, target.files)
            raise

    def finish(self, state: RecordSet, epoch: int, *, patient: bool = False) -> TransfersEnded:
        """Take every open transfer as far as it gets. `patient`: a target that failed is left alone for a while, as suits a
        consumer that calls this before every plan. The caller writes the new state."""
        problems = []
        for _, intent in sorted(state.intents.items()):
            now = self._clock_ms()
            if patient and self._pauses.get(intent.ticket, (0, 0))[0] > now:
                continue
            try:
                step = self._run(intent)
            except (InsertionPausedError, QuotaExceededError) as error:
                self._pauses[intent.ticket] = (now + _FIRST_PAUSE_MS, 0)
                problems.append(TransferProblem(intent.ticket, f"waits: {error}", waits=True))
                continue
            except (JmsqError, OSError) as error:
                problems.append(self._failed(intent, f"{type(error).__name__}: {error}", now))
                continue
            if step.step is TransferStep.BLOCKED:
                target = intent.targets[step.target].destination
                text = f"blocked: {intent.targets[0].destination} has the messages, and {target} cannot take them"
                problems.append(self._failed(intent, text, now))
                continue
            self._pauses.pop(intent.ticket, None)
            if step.step is TransferStep.ACKNOWLEDGE:
                state = state.moved(intent.ticket, epoch, now)
            else:
                log.warning(
                    "transfer %s to %s was refused: its %d message(s) are available again, flagged",
                    intent.ticket,
                    intent.targets[0].destination,
                    intent.picks.count,
                )
                state = state.returned(intent.ticket)
        return TransfersEnded(state, tuple(problems))

    def look(self, intent: Intent) -> NextStep:
        """The next step of an open transfer; changes nothing."""
        return next_step([outcome_at(self._domain, target, intent.ticket) for target in intent.targets])

    def waits_for(self, intent: Intent, step: NextStep) -> str:
        """The destination whose insertion has to be resumed before the next step; "" when there is none."""
        target = intent.targets[step.target]
        target_log = log_of_target(self._domain, target) if step.step is TransferStep.APPEND else None
        try:
            if target_log is not None:
                target_log.snapshot.destination.check_insertion(file.member for file in target.files)
        except InsertionPausedError:
            return target.destination
        return ""

    def _run(self, intent: Intent) -> NextStep:
        """Append and abort until the next step is at the origin, or blocked."""
        while (step := self.look(intent)).step in (TransferStep.APPEND, TransferStep.ABORT):
            target = intent.targets[step.target]
            target_log = log_of_target(self._domain, target)
            if target_log is None:
                continue  # it was dropped since we looked
            if step.step is TransferStep.APPEND:
                append_transfer(target_log, target, intent.ticket, self._origin.snapshot.table_id)
            else:
                abort_transfer(target_log, target, intent.ticket)
        return step

    def _failed(self, intent: Intent, text: str, now: int) -> TransferProblem:
        _, pause = self._pauses.get(intent.ticket, (0, 0))
        pause = min(max(2 * pause, _FIRST_PAUSE_MS), _LONGEST_PAUSE_MS)
        self._pauses[intent.ticket] = (now + pause, pause)
        log.warning("transfer %s does not end yet and will be tried again: %s", intent.ticket, text)
        return TransferProblem(intent.ticket, text)


class Pledges:
    """The pledges of a record set, ended when their transactions are decided. Not thread-safe. It remembers only when to look
    again."""

    def __init__(self, domain: Domain, home: Store, origin: DeltaLog, clock_ms: Callable[[], int] = now_ms) -> None:
        """`home`: the domain's own store, with the coordinators. `origin`: of the destination with the record sets."""
        self._domain, self._home, self._origin, self._clock_ms = domain, home, origin, clock_ms
        self._looked_ms: dict[Ticket, int] = {}

    def ended(self, state: RecordSet, epoch: int) -> RecordSet:
        """With the pledges acknowledged whose transactions are complete, and those returned whose transactions are rolled back. A
        transaction whose owner died before its decision is rolled back. Raises nothing of the store: those pledges wait. The caller
        writes the new state."""
        for ticket, coordinator in {pledge.ticket: pledge.coordinator for pledge in state.pledges.values()}.items():
            now = self._clock_ms()
            if now - self._looked_ms.get(ticket, -_PAUSE_MS) < _PAUSE_MS:
                continue
            self._looked_ms[ticket] = now
            try:
                outcome = self._outcome(ticket, coordinator)
            except (StoreError, JmsqError, OSError) as error:
                log.warning("the coordinator of transaction %s cannot be asked, and will be again: %s", ticket, error)
                continue
            if outcome is PledgeOutcome.WAIT:
                continue
            del self._looked_ms[ticket]
            if outcome is PledgeOutcome.ACKNOWLEDGE:
                state = state.fulfilled(ticket, epoch, now)
            else:
                delay_ms = self._origin.snapshot.destination.redelivery_delay_ms
                state = state.withdrawn(ticket, now, delay_end_ms(now, delay_ms))
        return state

    def _outcome(self, ticket: Ticket, record: str) -> PledgeOutcome:
        outcome = self._by(ticket, coordinator_from_bytes(self._home.peek(record).get(COORDINATOR_KEY), record))
        info = self._home.info(record)
        if outcome is not PledgeOutcome.WAIT or (info is not None and info.holder is not None):
            return outcome
        with suppress(FencedError), self._home.connect("transactions") as session:
            try:
                handle = session.open(record)
            except RecordHeldError:
                session.cancel(record)
                return PledgeOutcome.WAIT
            with handle:
                state = coordinator_from_bytes(handle.read(COORDINATOR_KEY), record)
                if state is not None and state.open is not None and state.open.state is TransactionState.PREPARING:
                    state = state.rolling_back()
                    handle.commit([Put(COORDINATOR_KEY, coordinator_to_bytes(state))])
                return self._by(ticket, state)
        return PledgeOutcome.WAIT  # this process slept, and another one may have the coordinator

    def _by(self, ticket: Ticket, coordinator: CoordinatorState | None) -> PledgeOutcome:
        found = open_of(ticket, coordinator)
        targets = found.targets if found is not None else ()
        return outcome_of_pledge(found, (outcome_at(self._domain, target, ticket) for target in targets))


def recover_transfers(
    transfers: Transfers,
    session: Session,
    snapshot: Snapshot,
    state_of: Callable[[str, int], RecordSet | None],
    subscriptions: Iterable[str] | None = None,
    *,
    pledges: Pledges,
) -> None:
    """Finish the open transfers of record sets without a live consumer, and end the pledges of decided transactions there. `state_of`
    reads the record set of a subscription and member, and returns None where a consumer lives; an old state will do. `subscriptions`
    None: those of the table. Raises TransferError when a transfer does not end, unless it waits for its target."""
    problems: list[str] = []
    away: set[str] = set()
    for subscription in snapshot.destination.subscription_names() if subscriptions is None else subscriptions:
        for member in sorted(snapshot.lasting_members()):
            server = record_server(snapshot.destination, subscription, member)
            if server in snapshot.destination.stopped:
                continue  # nothing asks its store
            record = record_of(snapshot, subscription, member)
            try:
                known = state_of(subscription, member)
                if known is None or not (known.intents or known.pledges):
                    continue
                handle = session.open(record)
            except RecordHeldError:
                session.cancel(record)
                continue
            except StoreError as error:
                if server == HOME:
                    raise
                away.add(f"server {server}: {error}")
                continue
            with handle:
                label = label_of(snapshot.destination.name, subscription, member)
                is_on = snapshot.destination.message_logging_enabled
                before = opened_state(handle, label).logging(is_on=is_on, now_ms=now_ms())
                ended = transfers.finish(before, handle.epoch, patient=True)
                after = pledges.ended(ended.state, handle.epoch)
                if after is not before:
                    handle.commit(operations(before, after))
                problems += [f"{label}: {problem.text}" for problem in ended.problems if not problem.waits]
    if problems:
        raise TransferError(f"{len(problems)} transfer(s) do not end: {problems[0]}")
    if away:
        raise TransferError(f"the transfers of {len(away)} server(s) cannot be looked at: {min(away)}")


# -- targets -----------------------------------------------------------------------------------------------------------


def log_of_target(domain: Domain, target: TransferTarget) -> DeltaLog | None:
    """The target's log, also after a rename; None when no destination has its table any more. An absent root proves nothing:
    DomainError. Nor does a table that this process has read last: the target may have been made in its place since."""
    if is_temporary(target.destination):
        logs: Iterable[Callable[[], DeltaLog]] = [partial(domain.temporary.log, target.destination)]
    else:
        names = [target.destination, *(n for n in domain.destinations() if n != target.destination)]
        logs = [partial(domain.log, name) for name in names]
    for log_of in logs:
        try:
            found = log_of()
            if found.refresh().table_id == target.table_id or found.verify().table_id == target.table_id:
                return found
        except InvalidDestinationError:
            continue
    domain.check_present()
    return None


def outcome_at(domain: Domain, target: TransferTarget, ticket: Ticket) -> TargetOutcome:
    """As `target_outcome`, of a target that may have another name now, or none."""
    log = log_of_target(domain, target)
    return TargetOutcome.REPLACED if log is None else target_outcome(log, target, ticket)
