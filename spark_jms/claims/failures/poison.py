"""Narrowing a query's failing batch to its poison message. core/records/poison.py has the rule.

The trial is stored with the query's progress before a replay delivers anything, so every later replay delivers the same part until
that part has failed as well. Isolation begins and ends the attempts; each server that has messages of the batch keeps a copy of its
trial, and a destination without servers keeps one:

    partitions, a replay   `Isolation.attempt`: one more attempt, of the newest copy; narrows the batch, or sets the poison message
                           aside. Every copy is written before a part is delivered
    stop                   `Isolation.fail`: Spark gave the batch up, which is noted in the copies that can be reached
    latestOffset           `TrialCopy.part`: what the acknowledgement of the batch finishes; the claim keeps the rest. Each server
                           acknowledges by its own copy, so also one that was away and answers later.
                           `acknowledged`, `claim_again`: the rest is the next batch, once all its servers answer

    a write reaches some copies only   then
    --------------------------------   ----
    of an attempt                      nothing was delivered; the query fails, and the next replay reads all copies: the newest
                                       one has an attempt without an outcome, like one whose driver died. It narrows nothing
    of a failure                       the newest copy has it
    of the claim of the rest           nothing was delivered; the claim is like one that Spark has not logged, and the rest is
                                       claimed once more on all its servers

The convicted message is set aside first, together with its own server's copy, and the others are written then.

Features: M4 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from typing import NamedTuple

from spark_jms.claims.failures.error_destination import ErrorDestination, FailedMessages
from spark_jms.claims.records.members import Members
from spark_jms.claims.transactions.transfer import Transfers
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.records.batch import Batch, QueryProgress, claim_number
from spark_jms.core.records.endings import ISOLATION
from spark_jms.core.records.poison import (
    Messages,
    Trial,
    TrialPhase,
    common,
    count,
    failed,
    joined,
    newest,
    replayed,
    succeeded,
    unlogged,
)
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import Claim
from spark_jms.errors import JmsqError, PoisonMessageError
from spark_jms.log.tables.delta_log import DeltaLog

log = logging.getLogger("spark_jms")
_REASON = "poison: a batch of {} failed {} times with this message alone"


class ProtectedPart(NamedTuple):
    """Of a batch that is to be delivered: what its claim holds on this server, and what it has lost. `own`: this instance
    made the batch, or has delivered it before. `trial` is the stored one. `acknowledged`: this server has acknowledged the
    batch, and `present` has what it delivered then."""

    present: dict[int, Ranges]
    lost: dict[int, Ranges]
    own: bool
    trial: Trial | None
    acknowledged: bool

    @property
    def taken(self) -> Messages:
        """What the sink has of the batch, when some server has acknowledged it."""
        if self.acknowledged or self.trial is None:
            return self.present
        return common(self.present, self.trial.tried)


# -- on each server ----------------------------------------------------------------------------------------------------


class TrialCopy:
    """A server's copy of the trial: what it acknowledges, claims again and sets aside. Of one query. Not thread-safe: the
    subscriber's lock guards it."""

    def __init__(
        self,
        table: DeltaLog,
        members: Members,
        transfers: Transfers,
        error_destination: ErrorDestination,
        clock_ms: Callable[[], int],
    ) -> None:
        self._table, self._members, self._transfers = table, members, transfers
        self._error_destination, self._clock_ms = error_destination, clock_ms

    def known(self, claim: str) -> Trial | None:
        """The trial of this claim, as stored."""
        return _of(self._members.open_progress(), claim)

    def keep(self, trial: Trial) -> None:
        """Store the trial."""
        self._members.commit({}, replace(self._members.open_progress(), trial=trial))

    # -- acknowledging --------------------------------------------------------------------------------------------
    @staticmethod
    def part(progress: QueryProgress, claim: str, member: int) -> Ranges | None:
        """What an acknowledgement of the claim finishes in this member; None: all of it."""
        trial = _of(progress, claim)
        if trial is None or not (trial.withheld or trial.finished):
            return None
        return EMPTY if trial.finished else trial.tried.get(member, EMPTY)

    def acknowledged(self, progress: QueryProgress, start: Batch, members: Set[int]) -> QueryProgress:
        """`start` is acknowledged on all its members. A finished trial stays until its messages are claimed again; a copy
        without messages of these members, which are on this server, is over."""
        trial = progress.trial
        if trial is not None and not trial.finished:
            if trial.claim == start.claim:
                trial = succeeded(trial)
            elif _is_unlogged(trial, start):
                trial = unlogged(trial)
            else:
                trial = None
        if trial is not None and not trial.messages.keys() & members:
            trial = None
        return progress if trial is progress.trial else replace(progress, trial=trial)

    def lost(self, start: Batch) -> str:
        """The claim of a trial that is over, because the checkpoint, which ends with `start`, has lost its batch; "" if there is none.
        The sink may have had its messages."""
        trial = self._members.open_progress().trial
        is_lost = trial and not trial.finished and _is_unlogged(trial, start) and unlogged(trial) is None
        return trial.claim if trial and is_lost else ""

    def claim_again(
        self,
        progress: QueryProgress,
        changed: dict[int, RecordSet],
        after: Trial | None,
        in_doubt_timeout_ms: int | None,
    ) -> tuple[str | None, QueryProgress]:
        """The messages that wait get the claim of `after`, in `changed`: its id. None when there are none; then the trial is
        over on this server."""
        trial = progress.trial
        rest = common(after.messages, waiting_in(trial, changed)) if after and trial else {}
        if after is None or trial is None or not rest:
            return None, replace(progress, trial=None)
        for member, ranges in rest.items():
            state = changed[member].release(trial.claim, delivered=not trial.flagged)
            consumer, session = self._members.consumer, self._members.session_id
            now = self._clock_ms()
            made = Claim(after.claim, consumer, session, ranges, now, True, in_doubt_timeout_ms=in_doubt_timeout_ms)
            changed[member] = state.claim(made)
        return after.claim, replace(progress, trial=after)

    # -- the poison message ---------------------------------------------------------------------------------------
    def set_aside(self, trial: Trial, convicted: Messages, failures: int) -> None:
        """Move the message, or discard it, and write the trial without it in the same commit. One that the error destination refuses
        for good stays where it is, and no batch delivers it again. Raises PoisonMessageError, and MemberUnavailableError while another
        session has opened the record."""
        ((member, picks),) = convicted.items()
        claim, reason = trial.claim, _REASON.format(self._members.consumer, failures)
        self._members.must_open(member)
        state, epoch = self._members.attached_state(member), self._members.known[member].epoch
        destination = self._table.refresh().destination
        found = FailedMessages(member, claim, picks, state.redelivered(picks), ISOLATION, reason, delivered=True)
        try:
            after = self._error_destination.take(state, found, destination, epoch)
        except (JmsqError, OSError) as error:
            raise PoisonMessageError(
                f"{self._members.label(member)}#{picks.first} is a poison message, and it cannot be set aside in "
                f"{destination.error_destination}: {error}. Nothing was lost. Repair that destination and start the query again."
            ) from error
        self._members.commit({member: after}, replace(self._members.open_progress(), trial=trial))
        ended = self._transfers.finish(after, epoch, patient=True)
        self._members.commit({member: ended.state})


def tell(name: str, trial: Trial) -> None:
    """A batch of `name`, a subscription, is narrowed."""
    if trial.phase is TrialPhase.NONE:
        log.warning("%s: the batch with claim %s ends without messages; the others come next", name, trial.claim)
        return
    log.warning(
        "%s: the batch with claim %s failed and is narrowed: it delivers %d message(s), and the next one the other %d",
        name,
        trial.claim,
        count(trial.tried),
        count(trial.withheld),
    )


def tell_failure(name: str, trial: Trial) -> None:
    """A batch of `name`, a subscription, has failed."""
    log.warning(
        "%s: the batch with claim %s failed (attempt %d) with %d message(s)",
        name,
        trial.claim,
        trial.attempts,
        count(trial.tried),
    )


def waiting_in(trial: Trial, states: Mapping[int, RecordSet]) -> Messages:
    """The trial's messages that these records still hold for it; an administrator may have revoked some."""
    claims = {m: state.claims.get(trial.claim) for m, state in states.items()}
    return common(trial.messages, {m: known.picks for m, known in claims.items() if known})


def _of(progress: QueryProgress, claim: str) -> Trial | None:
    return progress.trial if progress.trial and progress.trial.claim == claim else None


def _is_unlogged(trial: Trial, start: Batch) -> bool:
    """Its claim was made for a batch after `start`, and Spark never logged that batch."""
    return claim_number(trial.claim) > claim_number(start.claim)


# -- of the batch ------------------------------------------------------------------------------------------------------


class Attempt(NamedTuple):
    """One more attempt of a batch. `stored`: the trial has to be written before anything is delivered. `convicted` is set
    aside; it had failed so often."""

    trial: Trial
    present: Messages
    stored: bool
    convicted: Messages
    failures: int


class Isolation:
    """Begins and ends the attempts of a batch. Of one query, whose subscriber writes the copies and guards this with its lock.
    `narrows`: the query's option onPoison is isolate; without it a trial that another run of the query began is kept, and goes no
    further."""

    def __init__(self, name: str, *, narrows: bool) -> None:
        self._name, self._narrows = name, narrows
        self._begun: Trial | None = None  # the attempt that runs in this process
        self._claimed: Trial | None = None  # the newest one whose messages this process has claimed again
        self._own: set[str] = set()  # claims that this process has made, or has delivered

    @property
    def runs(self) -> bool:
        """An attempt has begun, and Spark has not asked for the next batch."""
        return self._begun is not None

    def claimed(self, start: str, claim: str, trial: Trial | None) -> None:
        """A batch was made. `trial`: its messages are the rest of an earlier one."""
        self._own, self._claimed = {start, claim}, trial

    def ends(self, claim: str) -> None:
        """Spark asks for the batch after `claim`: the attempt has succeeded."""
        if self._begun is not None and self._begun.claim == claim:
            self._begun = None

    def attempt(self, claim: str, parts: Mapping[str, ProtectedPart], unseen: Messages) -> Attempt:
        """The attempt of a batch that is to be delivered. `unseen`: its messages on servers that are away, which it was seen to
        claim a moment ago."""
        present = unseen
        for part in parts.values():
            present = joined(present, part.present)
        copies = [copy for copy in (self._claimed, *(part.trial for part in parts.values())) if copy]
        trial = newest(copy for copy in copies if copy.claim == claim) or Trial(claim, present)
        if claim in self._own:
            return Attempt(trial, present, False, {}, 0)
        before = trial.within(present)
        after, convicted = replayed(before, narrows=self._narrows)
        if after.tried != before.tried:
            tell(self._name, after)
        return Attempt(after, present, True, convicted, before.failures)

    def begin(self, attempt: Attempt) -> None:
        """Its copies are written."""
        self._begun = attempt.trial
        self._own.add(attempt.trial.claim)

    def fail(self) -> Trial | None:
        """Spark has given up the batch whose attempt runs: the trial to write, if any."""
        if self._begun is None or not self._narrows:
            return None
        trial, self._begun = failed(self._begun), None
        tell_failure(self._name, trial)
        return trial
