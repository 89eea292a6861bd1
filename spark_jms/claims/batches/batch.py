"""Making the next batch of a consumer.

Its two halves, `prepare` and `conclude`, do all of this in one physical write: they acknowledge the previous batch, drop claims
that Spark never logged, sweep the claims of dead sessions, and claim the next messages. Between them the subscriber decides how many
messages of each member the batch takes, on all servers together.

Features: C5, C6, C8, C9, T4, T16 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from spark_jms.claims.batches.acknowledgement import PreviousBatch
from spark_jms.claims.batches.planner import Planner
from spark_jms.claims.batches.subscription_limit import SubscriptionLimit
from spark_jms.claims.batches.units_of_order import BarrierWatch
from spark_jms.claims.batches.units_of_work import WorkPlanner
from spark_jms.claims.failures.error_destination import ErrorDestination, Reconsideration, RedeliveryLimit
from spark_jms.claims.failures.expiration import Expiration
from spark_jms.claims.failures.poison import TrialCopy, waiting_in
from spark_jms.claims.records.members import KnownRecord, Members
from spark_jms.claims.records.subscriptions import check_selector
from spark_jms.claims.servers.stores import started, without_lost
from spark_jms.claims.transactions.transfer import Pledges, Transfers
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.pause import CONSUMPTION
from spark_jms.core.destinations.subscriptions import LiveSubscription, missed, recorded_on
from spark_jms.core.messages.ranges import EMPTY
from spark_jms.core.records.batch import Batch, Limits, MemberPick, QueryProgress, claim_number
from spark_jms.core.records.endings import SERVER_WAS_DOWN, Stamp
from spark_jms.core.records.poison import Messages, Trial, claimed_again, common, count, joined
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import Claim
from spark_jms.core.records.take import Offer, take
from spark_jms.errors import (
    ConsumerClosedException,
    DestinationReplacedError,
    IllegalStateException,
    InvalidDestinationError,
    MemberLostException,
    OptionError,
    RecordSetError,
)
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.settings.destination import UNLIMITED
from spark_jms.store import Store

if TYPE_CHECKING:
    from spark_jms.core.selector import Selector

MAX_OPEN_CLAIMS = 10_000  # of one plain client in one member: each is stored until it is acknowledged
log = logging.getLogger("spark_jms")


@dataclass(frozen=True)
class ConsumerSettings:
    """How one consumer consumes. `members` pins it to some members; None = all, shared with the other consumers. `server`:
    only the members on it, whichever they are. `pinned`: the consumer ends when it loses the server."""

    selector: Selector | None = None
    replayable: bool = True
    fail_on_data_loss: bool = True
    in_doubt_timeout_ms: int | None = None  # None = the destination's
    members: frozenset[int] | None = None
    server: str | None = None  # of a destination that targets servers; None: all
    pinned: bool = False
    live: LiveSubscription | None = None  # None: the table has the subscription, or it is a queue
    isolates_poison: bool = False

    @property
    def floors(self) -> Mapping[int, int] | None:
        """See `Destination.start_floor`."""
        return self.live.subscription.floors if self.live else None


@dataclass(frozen=True)
class PreparedBatch:
    """The next batch before its claim: the record sets are up to date, and nothing of that is written. `missing` are the
    members where `start` stays unacknowledged, because another session has opened the record; then nothing is planned."""

    start: Batch
    snapshot: Snapshot
    progress: QueryProgress
    changed: dict[int, RecordSet]
    planned: Mapping[int, Offer]
    missing: frozenset[int]
    looked_at: frozenset[int]  # members whose messages may be planned
    draining: bool = False  # it is asked for what was there at some moment, and no more

    @property
    def trial(self) -> Trial | None:
        """The finished trial whose messages are to be claimed again."""
        return None if self.missing else self.progress.trial


class Continuation(NamedTuple):
    """What becomes of a finished trial: its messages are the next batch, under the claim of `trial`. None: it is over,
    because administrators have revoked them all. `members` are those of its messages."""

    trial: Trial | None
    members: frozenset[int]


def continuation(prepared: Mapping[str, PreparedBatch], claim: str) -> Continuation | None:
    """Of the oldest finished trial, of which `prepared` has the copies by server. None: it waits, because a server is away,
    another session has opened a record, or consumption is paused."""
    copies = [one.trial for one in prepared.values() if one.trial is not None]
    if not copies:
        return None
    trial = min(copies, key=lambda copy: claim_number(copy.claim))
    declared = next(iter(prepared.values())).snapshot.destination
    members = trial.messages.keys() & set(declared.member_ids)
    ready = {m for one in prepared.values() if not one.missing for m in one.changed}
    if members - ready or members & declared.pauses.members(CONSUMPTION, declared.member_ids):
        return None
    rest: Messages = {}
    for one in prepared.values():
        if one.trial is not None:
            rest = joined(rest, common(trial.messages, waiting_in(one.trial, one.changed)))
    return Continuation(claimed_again(trial.within(rest), claim) if count(rest) else None, frozenset(members))


class BatchMaker:
    """Makes the next batch of the members on one server. Not thread-safe: the subscriber's lock guards it."""

    def __init__(
        self,
        table: DeltaLog,
        store: Store,
        members: Members,
        planner: Planner,
        transfers: Transfers,
        pledges: Pledges,
        settings: ConsumerSettings,
        clock_ms: Callable[[], int],
        server: str,
        home: Store,
    ) -> None:
        """`store` is that of `server`, `home` the domain's own."""
        self._server, self._home = server, home
        self._table, self._store, self._members, self._planner = table, store, members, planner
        self._transfers, self._pledges, self._settings, self._clock_ms = transfers, pledges, settings, clock_ms
        errors = ErrorDestination(
            table, transfers, members.label, clock_ms, fail_on_data_loss=settings.fail_on_data_loss
        )
        self.trial_copy = TrialCopy(table, members, transfers, errors, clock_ms)
        self.previous = PreviousBatch(
            table,
            store,
            members,
            self.trial_copy,
            check_subscription=self._check_declared,
            replayable=settings.replayable,
            clock_ms=clock_ms,
        )
        self._expiration = Expiration(table, errors, members.session_id, members.label, clock_ms, beside=True)
        self._limit = RedeliveryLimit(errors, members.session_id, members.label, clock_ms)
        self._reconsidered = Reconsideration(transfers, errors, members.session_id, members.label, clock_ms)
        self._room = SubscriptionLimit(table, members.subscription, settings.selector, members.label, clock_ms)
        self._work_planner = WorkPlanner(planner, errors, members.session_id, members.label, clock_ms)
        self._barriers = BarrierWatch(table)
        self.passed_barrier = False  # by the last batch: what was behind it may be available now
        self.planned_version = -1
        self.paused: Set[int] = frozenset()  # members, at the last plan
        self._prepared: Mapping[int, Offer] = {}  # offers of a batch that is not concluded

    def prepare(self, start: Batch, limits: Limits, targets: Mapping[int, int] | None) -> PreparedBatch:
        """The first half of a batch, which writes nothing and may be dropped."""
        for member, offer in self._prepared.items():
            self._planner.not_claimed(member, offer.picks)
        self._prepared = {}
        self._expiration.forget()
        snapshot = self._table.refresh()
        self.planned_version = snapshot.version
        self._check_subscription(snapshot)
        self._check_pinned(snapshot.destination)
        progress = self.previous.checked_progress(start)
        needed = self.previous.members_left(start)
        own = set(recorded_on(snapshot.destination, self._server, self._members.subscription))
        self._members.follow(self._followed(snapshot, own | needed))  # a needed one may be removed by now
        self._check_new_records()
        live = set(self._store.sessions())
        changed = self._up_to_date(snapshot, start, needed, live)
        missing = frozenset(needed - set(changed))
        progress = self.previous.with_finished(progress, start, needed & changed.keys())
        if not missing:
            progress = self.trial_copy.acknowledged(progress, start, own)
        narrowed = progress.trial is not None
        looked_at = frozenset() if missing or narrowed else frozenset(changed)
        draining = targets is not None
        plan = partial(self._plan, snapshot, changed, limits, targets)
        planned = self._planned(plan, looked_at, live, draining=draining) if looked_at else {}
        self._prepared = planned
        return PreparedBatch(start, snapshot, progress, changed, planned, missing, looked_at, draining)

    def conclude(
        self,
        prepared: PreparedBatch,
        claim: str | None,
        shares: Mapping[int, int],
        continued: Continuation | None,
    ) -> Batch | None:
        """Claim the first so many of each member's offer, and write everything; None claims nothing. `shares` has the members of the
        batch, also those on other servers, in the order in which their messages are shown. `continued`: what
        becomes of the finished trial; None: it waits."""
        snapshot, changed, progress = prepared.snapshot, prepared.changed, prepared.progress
        claimed = claim if claim and self._claim_next(prepared, claim, shares) else None
        if continued is not None:
            claimed, progress = self.trial_copy.claim_again(
                progress, changed, continued.trial, self._settings.in_doubt_timeout_ms
            )
        if claimed is not None:
            progress = replace(progress, claimed=max(progress.claimed + 1, claim_number(claimed)))
        known = self._members.known
        begun = {m for m, state in changed.items() if state.intents.keys() - known[m].state.intents.keys()}
        self._members.commit(changed, progress)
        picks = self._picks(claimed, [*shares, *(changed.keys() - shares.keys())]) if claimed else {}
        for member, offer in prepared.planned.items():
            self._planner.not_claimed(member, offer.picks - picks[member].picks if member in picks else offer.picks)
        batch = Batch(self._members.consumer, claimed, picks, self._members.table_id) if claimed and picks else None
        self._expiration.log_written()
        self._prepared = {}
        self.previous.finish(prepared.start, prepared.missing)
        self._finish(begun)
        self.passed_barrier = snapshot.destination.slots is not None and self._barriers.look(
            snapshot,
            self._members.subscription,
            {m: partial(_state_of, one) for m, one in known.items()},
            self._settings.floors,
            at_once=prepared.draining,
        )
        if batch is not None:
            self.previous.claimed(prepared.start, batch)
        return batch

    def _check_subscription(self, snapshot: Snapshot) -> None:
        name, destination = self._members.subscription, self._members.destination
        if snapshot.table_id != self._members.table_id:
            raise DestinationReplacedError(
                f"{destination} was dropped and created again (its table is {snapshot.table_id}, this consumer read "
                f"{self._members.table_id}): create a new consumer, or start the query with a fresh checkpointLocation"
            )
        if self._settings.live is not None:
            return
        if name not in snapshot.destination.subscription_names():
            raise InvalidDestinationError(
                f"the subscription {name!r} of topic {destination} was dropped: make it again by starting with a fresh "
                "checkpoint, or consume with another one"
            )
        known = snapshot.destination.subscriptions.get(name)
        if known is not None:  # it may have been dropped, and made again with another selector
            selector = self._settings.selector
            check_selector(known, destination, selector.text.strip() if selector else None)

    def _check_pinned(self, declared: Destination) -> None:
        """A consumer that is pinned to a member of the domain's own store ends with it; it was empty, so nothing is lost."""
        only = self._settings.members
        if self._settings.pinned and only is not None and not only & set(declared.member_ids):
            raise MemberLostException(
                f"consumer {self._members.consumer} has lost member {min(only)} of {declared.name}: it was removed. Close this "
                "consumer and create a new one"
            )

    def _check_use(self) -> None:
        used = self._settings.live
        if used is not None and used.session_id not in self._home.sessions():
            raise ConsumerClosedException(
                f"the session of subscription {used.subscription.name} of {self._members.destination} ended while this "
                "process stood still: the subscription is not durable, so it ended too, and messages may have been removed. "
                "Close this consumer and create a new one."
            )

    def _check_new_records(self) -> None:
        """A record set that knows no message waits for its first claim; or a drop has emptied it, and has deleted the log
        before we read its last commit."""
        fresh = self._members.known.keys() - self._members.attached
        if any(not self._members.known[member].state.newest_known for member in fresh):
            self._check_declared()

    def _check_declared(self) -> None:
        self._check_subscription(self._table.verify())

    def _followed(self, snapshot: Snapshot, members: set[int]) -> list[int]:
        only = self._settings.members
        if only is not None:
            members = set(only) & members if snapshot.destination.placement else set(only)
        return sorted(members)

    def _up_to_date(self, snapshot: Snapshot, start: Batch, needed: set[int], live: Set[str]) -> dict[int, RecordSet]:
        """The states of the known members with `start` acknowledged, unlogged claims dropped and dead sessions swept."""
        self._check_use()
        now, destination = self._clock_ms(), snapshot.destination
        changed: dict[int, RecordSet] = {}
        for member, known in self._members.known.items():
            self._check_not_ahead(known.state, snapshot, member)
            state = self._members.attached_state(member)
            if member in needed:
                fresh = member not in self._members.attached
                state = self.previous.acknowledged_in(state, start, member, fresh=fresh)
            state = self.previous.without_unlogged(state, start, known.state, live)
            floor = destination.start_floor(self._members.subscription, member, self._settings.floors)
            before = state.delays
            due = destination.due_ms(member, now)
            state = state.sweep(live, now, destination.in_doubt_timeout_ms, destination.redelivery_delay_ms, due)
            if before and before.keys() - state.delays.keys():
                self._planner.restart(member)  # messages behind the pass are available again
            stamp = Stamp(known.epoch, now)
            state = without_lost(
                started(state, snapshot, member, floor), snapshot, member, self._members.label(member), stamp
            )
            if not destination.store_enabled:
                lost = missed(destination, self._members.subscription, member, snapshot.last_sequence(member))
                if state.unfinished_of(lost) - state.claimed - state.moving:
                    state = state.skip(lost, SERVER_WAS_DOWN, stamp)
            if state.intents:
                state = self._transfers.finish(state, known.epoch, patient=True).state
            if state.pledges:
                state = self._pledges.ended(state, known.epoch)
            refusals = state.refusals
            state = self._reconsidered.look(state, destination, member, known.epoch)
            if state.refusals is not refusals:
                self._planner.restart(member)  # messages behind the pass may be available again
            state = self._limit.enforce(state, destination, member, known.epoch)
            others = partial(self._other_state, snapshot)
            changed[member] = self._room.enforce(state, snapshot, member, known.epoch, others)
        return changed

    def _other_state(self, snapshot: Snapshot, member: int) -> RecordSet:
        """As the store has it."""
        floor = snapshot.destination.start_floor(self._members.subscription, member, self._settings.floors)
        return started(self._members.state(member), snapshot, member, floor)

    def end_pledges(self) -> None:
        """Of transactions that were decided, however long this consumer does not plan."""
        pledged = {m: one for m, one in self._members.known.items() if one.state.pledges}
        if pledged:
            self._members.commit({m: self._pledges.ended(one.state, one.epoch) for m, one in pledged.items()})

    def may_reconsider(self) -> bool:
        """Messages are refused for good, and it is time to look at their targets again."""
        return self._reconsidered.is_due({member: one.state for member, one in self._members.known.items()})

    def make_room(self) -> None:
        """Apply the subscription's limit, however long this consumer does not plan."""
        if self._table.snapshot.destination.messages_limit_override == UNLIMITED:
            return
        snapshot = self._table.refresh()
        if snapshot.table_id != self._members.table_id:
            return  # the next plan tells
        members, others = self._members, partial(self._other_state, snapshot)
        states = {m: members.attached_state(m) for m in members.known.keys() & members.attached}
        epochs = {m: members.known[m].epoch for m in states}
        members.commit({m: self._room.enforce(one, snapshot, m, epochs[m], others) for m, one in states.items()})

    def _finish(self, members: Set[int]) -> None:
        """Finish the transfers that this batch has begun; what does not end now is tried with the next batch."""
        for member in members & self._members.known.keys():
            known = self._members.known[member]
            ended = self._transfers.finish(known.state, known.epoch, patient=True)
            self._members.commit({member: ended.state})

    def _check_not_ahead(self, state: RecordSet, snapshot: Snapshot, member: int) -> None:
        """The store must not know messages that the table never had: new messages would get their numbers, and count as
        done."""
        known = state.newest_known
        if known > snapshot.last_sequence(member):
            last = self._table.refresh().last_sequence(member)
            if known > last:
                raise RecordSetError(
                    f"the store knows message {known} of {self._members.label(member)}, but the table ends at {last}: the "
                    "table lost commits (power loss, an older copy restored). Restore the tables and the store from copies "
                    "of one moment (docs/OPERATING.md, backup)."
                )

    # -- claiming -------------------------------------------------------------------------------------------------
    def _picks(self, claim: str, members: Iterable[int]) -> dict[int, MemberPick]:
        """What was claimed: less than was planned, where other consumers were first."""
        found: dict[int, MemberPick] = {}
        for member in members:
            known = self._members.known.get(member)
            made = known.state.claims.get(claim) if known else None
            if known and made:
                found[member] = MemberPick(known.epoch, made.picks, known.state.redelivered(made.picks))
        return found

    def _claim_next(self, prepared: PreparedBatch, claim: str, shares: Mapping[int, int]) -> bool:
        """Claims in `changed`; False when there is nothing to claim."""
        planned, changed = prepared.planned, prepared.changed
        consumer, session = self._members.consumer, self._members.session_id
        for member in planned:
            self._refuse_hoarding(changed[member], member)
        claims = False
        leading = next((member for member, share in shares.items() if share), None)
        made = Claim(
            claim,
            consumer,
            session,
            EMPTY,
            self._clock_ms(),
            self._settings.replayable,
            in_doubt_timeout_ms=self._settings.in_doubt_timeout_ms,
        )
        for member in [*shares, *(planned.keys() - shares.keys())]:
            if member not in planned:
                continue  # on another server
            state, picks = take(
                changed[member],
                planned[member],
                shares.get(member, 0),
                made,
                prepared.snapshot.destination.redelivery_limit,
                leads=member == leading,
                sole=len(shares) == 1,
            )
            if picks:
                changed[member], claims = state, True
        return claims

    def _refuse_hoarding(self, state: RecordSet, member: int) -> None:
        """A client that receives and never acknowledges would make the record set grow without bound."""
        if len(state.claims) < MAX_OPEN_CLAIMS:
            return
        own = sum(claim.consumer == self._members.consumer for claim in state.claims.values())
        if own >= MAX_OPEN_CLAIMS:
            raise IllegalStateException(
                f"this consumer has {own:,} claims with unacknowledged messages on {self._members.label(member)}: "
                "acknowledge messages, or recover() them, before you receive more"
            )

    def _offered(self, limits: Limits, states: Collection[RecordSet]) -> Limits:
        """Where others may take the same messages meanwhile, an offer has some for each of them."""
        others = max((len(state.consumers.keys() - {self._members.consumer}) for state in states), default=0)
        if limits.max_messages is None or not others:
            return limits
        return replace(limits, max_messages=limits.max_messages * (others + 2))

    def _planned(
        self,
        plan: Callable[[Set[int]], dict[int, Offer]],
        members: Set[int],
        live_sessions: Set[str],
        *,
        draining: bool,
    ) -> dict[int, Offer]:
        """What the consumer's first members could deliver now. Where that is nothing, its share of what waits on the others; with a
        selector, or when it drains, everything, because what it does not take may be left."""
        first: Set[int] = members
        if self._settings.selector is None and not draining:
            first = self._members.first_members(members, live_sessions)
        planned = plan(first)
        if planned or first == members:
            return planned
        of_others = plan(members - first)
        parts = max(len(members) // len(first), 2)
        shares = {member: offer.cut(max(offer.picks.count // parts, offer.one)) for member, offer in of_others.items()}
        for member, offer in of_others.items():
            self._planner.not_claimed(member, offer.picks - shares[member].picks)
        return shares

    def _plan(
        self,
        snapshot: Snapshot,
        changed: dict[int, RecordSet],
        limits: Limits,
        targets: Mapping[int, int] | None,
        members: Set[int],
    ) -> dict[int, Offer]:
        """What each of `members` could deliver now. Expires messages that are over, and skips refused and lost ones, in `changed`."""
        full = {member for member, state in changed.items() if state.outbox.is_full}
        if full:
            log.warning("%s: members %s wait for their acknowledgement table", self._members.destination, sorted(full))
        declared = snapshot.destination
        if declared.handles_units_of_work and self._settings.isolates_poison:
            raise unit_not_narrowed(declared.name)
        limits = self._offered(limits, changed.values())
        self.paused = paused = declared.pauses.members(CONSUMPTION, declared.member_ids)
        for member in paused:
            self._planner.restart(member)  # there is nothing more to plan until it is resumed
        planned: dict[int, Offer] = {}
        for member in sorted(members - full - paused):
            last = snapshot.last_sequence(member)
            if targets is not None:
                last = min(last, targets.get(member, 0))
            stored, epoch = self._members.known[member].state, self._members.known[member].epoch
            planner = self._work_planner if declared.handles_units_of_work else self._planner
            changed[member], offer = planner.picks(snapshot, member, changed[member], stored, last, limits, epoch)
            if offer.expired:
                changed[member] = self._expiration.expire(
                    changed[member], snapshot, member, offer.expired, epoch, delivers=bool(offer.picks)
                )
            if offer.picks:
                alone = changed[member].deliveries.alone
                one_by_one = alone and not self._settings.replayable
                planned[member] = replace(offer, alone=alone & offer.picks) if one_by_one else offer
        return planned


def unit_not_narrowed(destination: str) -> OptionError:
    return OptionError(
        f"option onPoison is 'isolate', and {destination} delivers units of work: a failing batch would be narrowed within a "
        "unit; use onPoison=fail"
    )


def _state_of(known: KnownRecord) -> RecordSet:
    return known.state
