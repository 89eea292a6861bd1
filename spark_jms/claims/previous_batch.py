"""The batch before the next one: acknowledged when Spark asks for more, resumed after a restart.

Spark asks for the batch after `start` only when everything up to `start` is in its commit log, so asking acknowledges
`start`. A plain client passes a `start` without a claim; it acknowledges through `Acknowledger`.

Spark may ask for a batch again that is acknowledged, because its commit log has lost the newest entry (a loss of power, a
partial copy). The sink has the batch, or replaces it by what it gets now. So it gets the same messages again:

    a message of the batch that ...                              is in the replay
    -------------------------------                              ----------------
    the claim holds                                              yes
    the batch's acknowledgement has finished                     yes; StaleCheckpointError when it was purged since
    was revoked, set aside or withheld before                    no: it came, or comes, with another batch, perhaps elsewhere

Features: C5, C8, C9 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Set
from typing import NamedTuple

from spark_jms.claims.isolation import Isolation
from spark_jms.claims.members import Members
from spark_jms.claims.record_sets import read_state
from spark_jms.core.batch import Batch
from spark_jms.core.poison import Messages, Trial, common, joined
from spark_jms.core.query_progress import QueryProgress
from spark_jms.core.ranges import EMPTY, Ranges
from spark_jms.core.record_set import RecordSet
from spark_jms.errors import ConsumerClosedException, StaleCheckpointError, StaleDomainError
from spark_jms.log.delta_log import DeltaLog
from spark_jms.store import Store

log = logging.getLogger("spark_jms")
RESUME_TIMEOUT_S = 15.0  # how long a restarted consumer waits for the record of a claim it has to protect


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


def check_not_stale(known: QueryProgress, start: Batch, destination: str) -> None:
    """Raises StaleCheckpointError when the checkpoint, which ends with `start`, is older than what the query has acknowledged."""
    if known.is_behind(start.claim):
        raise StaleCheckpointError(
            f"the checkpoint of consumer {start.consumer} of {destination} ends with claim {start.claim or '(none)'}, but this "
            f"consumer has acknowledged claim {known.acknowledged}: the checkpoint is an older copy, or its progress is written "
            "asynchronously. Its next batches would get numbers that its sink has seen, and be lost there. Start with a fresh "
            "checkpointLocation: it gets all unfinished messages."
        )


def check_not_ahead(
    known: QueryProgress, start: Batch, destination: str, check_subscription: Callable[[], None]
) -> None:
    """Raises StaleDomainError when the checkpoint, which ends with `start`, has a claim of this store that the store does not
    know; or what `check_subscription` raises, since a drop deletes the progress too."""
    if start.members and not known.knows(start.claim):
        check_subscription()
        raise StaleDomainError(
            f"the checkpoint of consumer {start.consumer} of {destination} ends with claim {start.claim}, but the store knows only "
            f"its claims up to number {known.claimed}: an older copy of the domain, or of the store, was restored, in which "
            "messages are unfinished that the query has finished since. Start with a fresh checkpointLocation: it gets all "
            "unfinished messages."
        )


class PreviousBatch:
    """Not thread-safe: the subscriber's lock guards it."""

    def __init__(
        self,
        table: DeltaLog,
        store: Store,
        members: Members,
        isolation: Isolation,
        *,
        check_subscription: Callable[[], None],
        replayable: bool,
        clock_ms: Callable[[], int],
    ) -> None:
        self._table, self._store, self._members, self._isolation = table, store, members, isolation
        self._check_subscription, self._replayable, self._clock_ms = check_subscription, replayable, clock_ms
        self._met = set(store.sessions())  # sessions alive when we started: one of them may be our older self
        self._acknowledged = ""  # the newest claim that is acknowledged on all its members
        self._left: dict[str, set[int]] = {}  # claim -> members where it still has to be acknowledged
        self._revoked: set[str] = set()  # claims revoked before we came back: there is nothing to acknowledge
        self._own: set[str] = set()  # claims that this instance made or has resumed
        self.flagged: Collection[str] = ()  # logged claims whose batch was delivered without their messages

    # -- acknowledging --------------------------------------------------------------------------------------------
    def members_left(self, start: Batch) -> set[int]:
        """The members where `start` still has to be acknowledged."""
        if not start.claim or start.claim == self._acknowledged:
            return set()
        return self._left.setdefault(start.claim, set(start.members))

    def acknowledged_in(self, state: RecordSet, start: Batch, member: int, *, fresh: bool) -> RecordSet:
        """The state of a held member with `start` acknowledged. `fresh`: this session has not changed the member yet."""
        if start.claim in state.claims:
            epoch, picks = self._members.held[member].handle.epoch, self._finishes(state, start.claim, member)
            session = self._members.session_id
            return state.acknowledge(self._members.consumer, session, start.claim, epoch, self._clock_ms(), picks)
        revoked = start.claim in self._revoked or (fresh and start.claim not in self._own)
        if revoked or state.is_done(start.members[member].picks):
            return state  # revoked while we were away: other consumers get the messages; or acknowledged before
        raise ConsumerClosedException(
            f"claim {start.claim} of consumer {self._members.consumer} on {self._members.label(member)} was revoked: "
            "nothing was acknowledged and its messages go to others, flagged as redelivered. Start the query again."
        )

    def _finishes(self, state: RecordSet, claim: str, member: int) -> Ranges:
        """What the acknowledgement of the claim finishes in this member."""
        held = state.claims[claim].picks if claim in state.claims else EMPTY
        part = self._isolation.part(self._members.open_progress(), claim, member)
        return held if part is None else held & part

    def with_finished(self, progress: QueryProgress, start: Batch, members: Collection[int]) -> QueryProgress:
        """The query's progress once `start` is acknowledged on these held members."""
        finished = {m: self._finishes(self._members.held[m].state, start.claim, m) for m in members}
        return progress.with_finished(start.claim, finished)

    def without_unlogged(self, state: RecordSet, held: RecordSet, live_sessions: Set[str]) -> RecordSet:
        """Drops the consumer's other claims, which Spark never logged. `held` is the state before this consumer attached.
        An older instance that is alive, or was when we started, may still run such a batch: its messages come back
        flagged. So do those of a batch that was delivered without them, and those of a plain client's older session on this server:
        it continues in a new one only when it had nothing to acknowledge, so it never got their claim's answer."""
        if not self._replayable:
            for claim in held.claims.values():
                if claim.consumer == self._members.consumer and claim.session != self._members.session_id:
                    state = state.revoke(claim.id)
            return state
        trial = self._members.open_progress().trial
        kept = trial.claim if trial else None  # its messages come back as a batch of their own
        for claim in held.claims.values():
            ours = claim.consumer == self._members.consumer and claim.session != self._members.session_id
            seen = ours and claim.id != kept and claim.session in self._met | live_sessions
            if seen or claim.id in self.flagged:
                state = state.release(claim.id, delivered=True)
        return state.drop(self._members.consumer, keep=kept)

    def finish(self, start: Batch, missing: Set[int]) -> None:
        """Once it is written: note where `start` could not be acknowledged."""
        if missing:
            self._left[start.claim] = set(missing)  # acknowledged when its holder hands the record over
            return
        self._left.pop(start.claim, None)
        self._revoked.discard(start.claim)
        self._acknowledged = start.claim

    def claimed(self, start: Batch, batch: Batch) -> None:
        self._own = {start.claim, batch.claim}

    def checked_progress(self, start: Batch) -> QueryProgress:
        """The query's progress with `start` acknowledged: Spark asks for more only when `start` is in its commit log.

        A checkpoint must not end before what its query has acknowledged. Its sink has the batches in between, under the
        numbers that the next batches would get: an idempotent sink would drop those, and they would count as
        acknowledged. Raises StaleCheckpointError."""
        known = self._members.open_progress()
        if not self._replayable:
            return known
        self._check_place(known, start)
        return known.with_acknowledged(start.claim, {m: pick.picks for m, pick in start.members.items()})

    def _check_place(self, known: QueryProgress, batch: Batch) -> None:
        check_not_stale(known, batch, self._members.destination)
        check_not_ahead(known, batch, self._members.destination, self._check_subscription)

    # -- resuming -------------------------------------------------------------------------------------------------
    def resume(self, batch: Batch) -> dict[int, Ranges]:
        """Protect the claim of a logged batch after a restart. Returns the messages of each member that the batch does not
        deliver: they do not belong to this consumer any more, or its isolation withholds them. For a batch that this
        instance made, this only reads the store. Waits for records that other consumers hold, then raises
        MemberUnavailableError."""
        deadline_s = time.monotonic() + RESUME_TIMEOUT_S
        found = self.protect(batch, deadline_s)
        if found.acknowledged:
            return found.lost
        narrowed = self._isolation.begin(batch.claim, found.present, deadline_s, again=not found.own)
        return dict(joined(found.lost, narrowed))

    def protect(self, batch: Batch, deadline_s: float) -> ProtectedPart:
        """The same for the part on one of several servers, whose attempt begins elsewhere. Raises StaleCheckpointError, and
        StaleDomainError."""
        known, own = self._members.open_progress(), batch.claim in self._own
        self._check_place(known, batch)
        acknowledged = known.acknowledged == batch.claim
        lost: dict[int, Ranges] = {}
        present: dict[int, Ranges] = {}
        for member, pick in batch.members.items():
            if own:
                state = read_state(self._store, self._members.record(member), self._members.label(member))
                self._check_speaks(state, member)
            else:
                self._members.open_within(member, deadline_s)
                state = self._members.attached_state(member)
                self._members.commit({member: state})
            claim = state.claims.get(batch.claim)
            here = pick.picks & claim.picks if claim else EMPTY
            if acknowledged:
                finished = pick.picks - known.left.get(member, EMPTY)
                finished = finished - state.unfinished_of(finished)
                self._check_readable(batch, member, finished)
                here = self._finishes(state, batch.claim, member) | finished
            if here:
                present[member] = here
            if left_out := pick.picks - here:
                lost[member] = left_out
                log.warning(
                    "%s: %d message(s) of the replayed batch are left out, because they do not belong to it any more: they were "
                    "revoked, set aside, or withheld, or the subscription was dropped since",
                    self._members.label(member),
                    left_out.count,
                )
        self._own.add(batch.claim)
        if lost:
            self._revoked.add(batch.claim)
        return ProtectedPart(present, lost, own, self._isolation.known(batch.claim), acknowledged)

    def _check_readable(self, batch: Batch, member: int, finished: Ranges) -> None:
        """Of an acknowledged batch: other messages are unfinished, and cannot be purged."""
        if purged := self._table.refresh().member_files(member).missing(finished):
            raise StaleCheckpointError(
                f"the checkpoint of consumer {batch.consumer} of {self._members.destination} asks for the batch with claim "
                f"{batch.claim} again, which is acknowledged: the newest file in its folder `commits` was lost. "
                f"{purged.count:,} of its messages were purged since ({self._members.label(member)}, sequence {purged}), so the "
                "batch cannot be delivered again. Put the file back from a copy, or start with a fresh checkpointLocation: it gets "
                "all unfinished messages."
            )

    def _check_speaks(self, state: RecordSet, member: int) -> None:
        """While we slept another instance may have started, which does not know a batch that we have not logged."""
        if not state.speaks_for(self._members.consumer, self._members.session_id):
            raise ConsumerClosedException(
                f"another instance of consumer {self._members.consumer} has taken over {self._members.label(member)}: this "
                "one is stale and gets no messages. Stop it."
            )
