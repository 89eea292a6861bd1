"""Acknowledging: the batch before the next one, and parts of open claims; and whether a Spark checkpoint belongs here.

Spark asks for the batch after `start` only when everything up to `start` is in its commit log, so asking acknowledges `start`:
PreviousBatch. A plain client passes a `start` without a claim; it acknowledges through an Acknowledger.

Spark may ask for a batch again that is acknowledged, because its commit log has lost the newest entry (a loss of power, a partial
copy). The sink has the batch, or replaces it by what it gets now. So it gets the same messages again:

    a message of the batch that ...                              is in the replay
    -------------------------------                              ----------------
    the claim holds                                              yes
    the batch's acknowledgement has finished                     yes; StaleCheckpointError when it was purged since
    was revoked, set aside or withheld before                    no: it came, or comes, with another batch, perhaps elsewhere

An offset names its consumer and its table. The consumer's progress is in the store, under the subscription that the query has
consumed; so a query that names another one is found out before it changes anything: `check_origin`.

Features: C5, C8, C9, C10, C11, C18 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from contextlib import suppress

from spark_jms.claims.batches.planner import Planner
from spark_jms.claims.failures.poison import ProtectedPart, TrialCopy
from spark_jms.claims.records.members import LINE_S, Members, RecordInUseError
from spark_jms.claims.records.shared import PlanOutdatedError
from spark_jms.claims.servers.stores import names_everywhere, read_state, timed_stores
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.records.batch import PROGRESS, Batch, QueryProgress
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import delay_end_ms
from spark_jms.core.records.stored_form import consumers_prefix
from spark_jms.core.transactions.transaction import Pledge
from spark_jms.core.transactions.transfer import Ticket
from spark_jms.errors import (
    ConsumerClosedException,
    DestinationReplacedError,
    ForeignCheckpointError,
    JmsqError,
    StaleCheckpointError,
    StaleDomainError,
)
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.store import Store, StoreError

Parts = dict[str, dict[int, Ranges]]  # claim -> member -> messages
log = logging.getLogger("spark_jms")


class Acknowledger:
    """Acknowledges and releases parts of open claims. Not thread-safe: the subscriber's lock guards it."""

    def __init__(self, members: Members, planner: Planner, clock_ms: Callable[[], int]) -> None:
        self._members, self._planner, self._clock_ms = members, planner, clock_ms

    def acknowledge(self, parts: Mapping[str, Mapping[int, Ranges]], *, whole: bool = False) -> Parts:
        """See `Subscriber.acknowledge`."""
        if whole and not all(self._members.open(member) for members in parts.values() for member in members):
            return _all_of(parts)
        session = self._members.session_id

        def finished(state: RecordSet, epoch: int, now: int, claim: str, part: Ranges) -> RecordSet:
            return state.acknowledge(self._members.consumer, session, claim, epoch, now, part)

        return self._change(parts, finished)

    def pledge(self, parts: Mapping[str, Mapping[int, Ranges]], ticket: Ticket, coordinator: str) -> Parts:
        """See `Subscriber.pledge`."""
        session = self._members.session_id

        def pledged(state: RecordSet, _: int, now: int, claim: str, part: Ranges) -> RecordSet:
            return state.pledge(session, Pledge(ticket, coordinator, part, self._members.consumer, claim, now))

        return self._change(parts, pledged)

    def end_pledges(self, members: Iterable[int], ticket: Ticket, *, committed: bool, delay_ms: int) -> None:
        """See `Subscriber.end_pledges`."""
        now, changed = self._clock_ms(), dict[int, RecordSet]()
        for member in members:
            if not self._members.open(member):
                continue
            state, epoch = self._members.attached_state(member), self._members.known[member].epoch
            if committed:
                changed[member] = state.fulfilled(ticket, epoch, now)
            else:
                self._planner.restart(member)  # returned messages lie before what the pass has looked at
                changed[member] = state.withdrawn(ticket, now, delay_end_ms(now, delay_ms))
        self._members.commit(changed)

    def _change(
        self,
        parts: Mapping[str, Mapping[int, Ranges]],
        change: Callable[[RecordSet, int, int, str, Ranges], RecordSet],
    ) -> Parts:
        """In one write. Returns the parts on members whose record another session has opened."""
        changed: dict[int, RecordSet] = {}
        left: Parts = {}
        for claim, members in parts.items():
            for member, part in members.items():
                if not self._members.open(member):
                    left.setdefault(claim, {})[member] = part
                    continue
                state = changed.get(member) or self._members.attached_state(member)
                epoch = self._members.known[member].epoch
                changed[member] = change(state, epoch, self._clock_ms(), claim, part)
        try:
            self._members.commit(changed, wait_s=LINE_S)
        except (RecordInUseError, PlanOutdatedError):
            return _all_of(parts)
        return left

    def release(self, claim: str, parts: Mapping[int, Ranges], *, delivered: bool, delay_ms: int) -> bool:
        """See `Subscriber.release`."""
        if not all(self._members.open(member) for member in parts):
            return False
        for member in parts:
            self._planner.restart(member)  # released messages lie before what the pass has looked at
        until = delay_end_ms(self._clock_ms(), delay_ms)
        states = {m: self._members.attached_state(m) for m in parts}
        released = {m: s.release(claim, parts[m], delivered=delivered, until_ms=until) for m, s in states.items()}
        try:
            self._members.commit(released, wait_s=LINE_S)
        except (RecordInUseError, PlanOutdatedError):
            return False
        return True


def _all_of(parts: Mapping[str, Mapping[int, Ranges]]) -> Parts:
    return {claim: dict(members) for claim, members in parts.items()}


# -- the batch before the next one -------------------------------------------------------------------------------------


class PreviousBatch:
    """The batch before the next one: acknowledged when Spark asks for more, resumed after a restart. Not thread-safe: the
    subscriber's lock guards it."""

    def __init__(
        self,
        table: DeltaLog,
        store: Store,
        members: Members,
        trial_copy: TrialCopy,
        *,
        check_subscription: Callable[[], None],
        replayable: bool,
        clock_ms: Callable[[], int],
    ) -> None:
        self._table, self._store, self._members, self._trial_copy = table, store, members, trial_copy
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
            epoch, picks = self._members.known[member].epoch, self._finishes(state, start.claim, member)
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
        part = self._trial_copy.part(self._members.open_progress(), claim, member)
        return held if part is None else held & part

    def with_finished(self, progress: QueryProgress, start: Batch, members: Collection[int]) -> QueryProgress:
        """The query's progress once `start` is acknowledged on these held members."""
        finished = {m: self._finishes(self._members.known[m].state, start.claim, m) for m in members}
        return progress.with_finished(start.claim, finished)

    def without_unlogged(self, state: RecordSet, start: Batch, held: RecordSet, live_sessions: Set[str]) -> RecordSet:
        """Drops the consumer's claims behind `start`, which Spark never logged. `held` is the state before this consumer attached.
        An older instance that is alive, or was when we started, may still run such a batch: its messages come back
        flagged. So do those of a batch that was repeated and lost, or delivered without them, and those of a plain client's older
        session on this server: it continues in a new one only when it had nothing to acknowledge, so it never got their claim's
        answer."""
        if not self._replayable:
            for claim in held.claims.values():
                if claim.consumer == self._members.consumer and claim.session != self._members.session_id:
                    state = state.revoke(claim.id)
            return state
        trial, lost = self._members.open_progress().trial, self._trial_copy.lost(start)
        kept = trial.claim if trial and not lost else None  # its messages come back as a batch of their own
        for claim in held.claims.values():
            ours = claim.consumer == self._members.consumer and claim.session != self._members.session_id
            seen = ours and claim.id != kept and claim.session in self._met | live_sessions
            if seen or claim.id == lost or claim.id in self.flagged:
                state = state.release(claim.id, delivered=True)
        return state.drop(self._members.consumer, keep=kept)

    def finish(self, start: Batch, missing: Set[int]) -> None:
        """Once it is written: note where `start` could not be acknowledged."""
        if missing:
            self._left[start.claim] = set(missing)  # acknowledged when its record is open to all again
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
    def protect(self, batch: Batch) -> ProtectedPart:
        """Protect the claim of a logged batch after a restart. For a batch that this instance made, this only reads the store.
        Raises MemberUnavailableError while another session has opened a record, StaleCheckpointError, and StaleDomainError."""
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
                self._members.must_open(member)
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
        for member, left_out in lost.items():
            log.warning(
                "%s: %d message(s) of the replayed batch are left out, because they do not belong to it any more: they were "
                "revoked, set aside, or withheld, or the subscription was dropped since",
                self._members.label(member),
                left_out.count,
            )
        self._own.add(batch.claim)
        if lost:
            self._revoked.add(batch.claim)
        return ProtectedPart(present, lost, own, self._trial_copy.known(batch.claim), acknowledged)

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


# -- the origin of a checkpoint ----------------------------------------------------------------------------------------


def check_origin(domain: Domain, store: Store, snapshot: Snapshot, subscription: str | None, batch: Batch) -> None:
    """`batch` is the checkpoint's last offset. `subscription` None: the query of a topic names none, which is refused later. A server
    that is away, or hangs, is left out, so that the query continues with the others. Raises ForeignCheckpointError and
    DestinationReplacedError."""
    name = snapshot.destination.name
    if batch.table not in ("", snapshot.table_id):
        raise other_table(domain, name, snapshot.table_id, batch)
    if subscription is None:
        return
    known = _subscriptions_of(timed_stores(store), snapshot.table_id, batch.consumer)
    if known and subscription not in known:
        raise ForeignCheckpointError(
            f"the checkpoint of consumer {batch.consumer} belongs to the subscription {min(known)!r} of {name}, and the query names "
            f"{subscription!r}: nothing was changed. Name {min(known)!r} again, or start with a fresh checkpointLocation."
        )


def other_table(domain: Domain, destination: str, table_id: str, batch: Batch) -> JmsqError:
    """Why an offset of another table than `table_id`, which is the destination's, cannot be continued."""
    checkpoint = f"the checkpoint of consumer {batch.consumer}"
    if not batch.table:
        return DestinationReplacedError(
            f"{checkpoint} has an offset of version 1, which names no table, and the store does not know the query: {destination} "
            "was dropped and created again, or the root is another one. Start with a fresh checkpointLocation."
        )
    for other in domain.destinations():
        if other != destination and _table_of(domain, other) == batch.table:
            return ForeignCheckpointError(
                f"{checkpoint} belongs to {other}, and the query names {destination} in its place: nothing was changed. Name {other} "
                "again (the sources of a query keep their order), or start with a fresh checkpointLocation."
            )
    return DestinationReplacedError(
        f"{checkpoint} belongs to the table {batch.table}. The one of {destination} is {table_id}, and no other destination of "
        f"{domain.root} has it: {destination} was dropped and created again, or the root is another one. Name the root of the "
        "checkpoint, or start with a fresh checkpointLocation."
    )


def _table_of(domain: Domain, destination: str) -> str | None:
    """None: it cannot be read now, so it is not known to be the one."""
    try:
        return domain.log(destination).refresh().table_id
    except (JmsqError, OSError):
        return None


def _subscriptions_of(store: Store, table_id: str, consumer: str) -> set[str]:
    """Those with progress of this query, on the servers that answer."""
    found = set()
    for record in names_everywhere(store, consumers_prefix(table_id)):
        _, subscription, name = record.rsplit("/", 2)
        with suppress(StoreError):
            if name == consumer and PROGRESS in store.peek(record):
                found.add(subscription)
    return found
