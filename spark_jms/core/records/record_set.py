"""The record set: the finished state of one (destination, subscription, member), and all its changes.

Sets represent the states of messages; redelivery.py has the table of their transitions:

    AVAILABLE   in none of the sets below; a redelivery that waits is in `delays` too, and a message that is refused for
                good in `refusals` (refusal.py): an administrator may take both, a consumer neither
    CLAIMED     in `claims[id].picks`, with `in_doubt_since_ms` 0
    IN_DOUBT    in `claims[id].picks`, with `in_doubt_since_ms` set
    MOVING      in `intents[slot].picks`: a transfer to another destination is open (transactions/transfer.py)
    PLEDGED     in `pledges[key].picks`: a transaction will acknowledge it, or return it (transactions/transaction.py)
    DONE        at or below `floor`, or in `done`

A message is in exactly one of them. Every method returns a new record set and reads neither clock nor disk. A record set that others
may change meanwhile notes its methods, to be called on its newest state inside the store's write (journal.py, stored_form.py).

Features: C5, C8, C9, T4 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec

from spark_jms.core.destinations.subscriptions import LIMIT, NOTHING_DROPPED, LimitAccount
from spark_jms.core.messages.carried import CarriedCounts
from spark_jms.core.messages.chunked_ranges import NONE, ChunkedRanges
from spark_jms.core.messages.ranges import Ranges, union
from spark_jms.core.records.endings import (
    ENDER,
    EXPIRER,
    SKIPPER,
    HullClaim,
    SkipReason,
    Stamp,
    claim_in,
    claim_to,
    hull,
)
from spark_jms.core.records.life_cycle import (
    LOGGED,
    NOTHING_WAITS,
    OFF,
    Acknowledgement,
    LifeCycle,
    LoggedEvent,
    Outbox,
)
from spark_jms.core.records.redelivery import (
    NOT_DELIVERED,
    TRANSITIONS,
    Claim,
    Delays,
    DeliveryCounts,
    MessageEvent,
    MessageState,
    delay_end_ms,
    delayed,
    event_of_session,
    forgotten,
)
from spark_jms.core.records.refusal import MessageRefusal, Refusals, added, left, messages_of
from spark_jms.core.transactions.transaction import Pledge, step_of, with_ticket
from spark_jms.core.transactions.transfer import Intent, Ticket, free_ticket
from spark_jms.errors import ConsumerClosedException
from spark_jms.settings.fields import LifeEvent

P = ParamSpec("P")
Changing = Callable[Concatenate["RecordSet", P], "RecordSet"]


class Noted(NamedTuple):
    """A change that was made of a record set: the name of its method, and the arguments."""

    method: str
    arguments: tuple[Any, ...]
    named: Mapping[str, Any]


def _noted(method: Changing[P]) -> Changing[P]:
    """Of a method that may change the record set: its journal has the outermost call alone."""

    @wraps(method)
    def changed(self: RecordSet, /, *arguments: P.args, **named: P.kwargs) -> RecordSet:
        after = method(self, *arguments, **named)
        return after if after is self else after.noting(self, Noted(method.__name__, arguments, named))

    return changed


@dataclass(frozen=True)
class RecordSet:
    floor: int = 0
    done: ChunkedRanges = NONE  # above the floor
    claims: Mapping[str, Claim] = field(default_factory=dict)
    deliveries: DeliveryCounts = NOT_DELIVERED
    delays: Delays = field(default_factory=dict)  # of available messages
    consumers: Mapping[str, str] = field(default_factory=dict)  # consumer -> the session that speaks for it
    outbox: Outbox = NOTHING_WAITS
    position: int = 0  # of the newest acknowledgement ever
    intents: Mapping[int, Intent] = field(default_factory=dict)  # slot -> its open transfer
    nonce: str = ""  # of this record set's life, for new transfers
    slots: Mapping[int, int] = field(default_factory=dict)  # slot -> the newest number given in this life
    limit: LimitAccount = NOTHING_DROPPED  # of a subscription with a limit
    life: LifeCycle = OFF
    expired: int = 0  # how many messages have expired, each counted once
    pledges: Mapping[str, Pledge] = field(default_factory=dict)  # key -> messages of an open transaction
    left_orders: Set[str] = frozenset()  # in the store, of claims that ended: see stored_form.py
    refusals: Refusals = ()  # of unfinished messages
    returns: int = 0  # how often messages have become available again
    clears: int = 0  # how often it was cleared
    journal: tuple[Noted, ...] | None = field(default=None, compare=False, repr=False)  # None: it is not kept

    # -- reading --------------------------------------------------------------------------------------------------
    @cached_property
    def claimed(self) -> Ranges:
        """Claimed or in doubt."""
        return union(claim.picks for claim in self.claims.values())

    @cached_property
    def moving(self) -> Ranges:
        """Moving, or pledged to a transaction: the end of the transfer or transaction alone changes them."""
        moving = union(intent.picks for intent in self.intents.values())
        return moving | union(pledge.picks for pledge in self.pledges.values()) if self.pledges else moving

    def available(self, first: int, last: int) -> Ranges:
        """The available messages of first..last."""
        return self.unfinished(first, last) - self.claimed - self.moving

    def available_windows(self, first: int, last: int) -> Iterator[Ranges]:
        """The same in order, window by window: as cheap for ten million scattered messages as for ten."""
        taken = self.claimed | self.moving
        for low, high in self.done.windows(max(self.floor + 1, first), last):
            if found := self.unfinished(low, high) - taken:
                yield found

    def unfinished(self, first: int, last: int) -> Ranges:
        """The messages of first..last that are not done: the backlog."""
        return self.done.missing(Ranges.of((max(self.floor + 1, first), last)))

    def is_done(self, picks: Ranges) -> bool:
        return not self.unfinished_of(picks)

    def unfinished_of(self, picks: Ranges) -> Ranges:
        """Those of `picks` that are not done."""
        return self.done.missing(picks.between(self.floor + 1, picks.last)) if picks else picks

    @property
    def newest_known(self) -> int:
        """The largest sequence that this record set knows anything of."""
        ranges = (self.claimed, self.moving, messages_of(self.refusals))
        chunked = (self.done, *self.delays.values(), *self.deliveries.sets())
        ends = [*(known.last for known in ranges if known), *(known.last for known in chunked if known)]
        return max([self.floor, self.limit.arrived, *ends])

    @property
    def waiting(self) -> Ranges:
        """Available messages whose redelivery is delayed."""
        return union(ranges.all() for ranges in self.delays.values())

    def beyond_limit(self, limit: int) -> Ranges:
        """The messages that were shown too often to be delivered again, whether their delay is over or not."""
        beyond = self.deliveries.beyond(limit)
        return beyond - self.claimed - self.moving if beyond else beyond

    @property
    def refused(self) -> Ranges:
        """Available messages that are refused for good."""
        found = messages_of(self.refusals)
        return found - self.claimed - self.moving if found else found

    def kept_back(self, limit: int) -> Ranges:
        """The messages that no consumer gets any more, unless a declaration changes: beyond the limit, or refused for good."""
        return self.beyond_limit(limit) | self.refused

    def redelivered(self, picks: Ranges) -> dict[int, Ranges]:
        """Delivery count -> those of `picks` that are not delivered for the first time."""
        return self.deliveries.counts(picks)

    def speaks_for(self, consumer: str, session: str) -> bool:
        return self.consumers.get(consumer) == session

    def is_attended(self, live_sessions: Set[str]) -> bool:
        """A consumer of it lives, and does what housekeeping does elsewhere."""
        return not live_sessions.isdisjoint(self.consumers.values())

    # -- changing -------------------------------------------------------------------------------------------------
    def noting(self, before: RecordSet, change: Noted) -> RecordSet:
        """As what the change has made of `before`."""
        return self if before.journal is None else self.with_journal((*before.journal, change))

    def with_journal(self, journal: tuple[Noted, ...] | None) -> RecordSet:
        return self._with(journal=journal)

    @_noted
    def logging(self, *, is_on: bool, now_ms: int) -> RecordSet:
        """The life-cycle log gets what happens from now on, at this time, or nothing more."""
        if is_on == self.life.is_on and (not is_on or now_ms == self.life.now_ms):
            return self
        return self._with(life=replace(self.life, is_on=is_on, now_ms=now_ms))

    @_noted
    def attach(self, consumer: str, session: str) -> RecordSet:
        """The consumer starts or returns in this session: its newest session speaks for it, and its claims recover."""
        after = self
        for claim in self.claims.values():
            if claim.consumer == consumer:
                after = after._move(replace(claim, session=session), claim.picks, MessageEvent.RECOVER)
        return after._with(consumers={**self.consumers, consumer: session})

    @_noted
    def claim(self, claim: Claim) -> RecordSet:
        taken = (
            claim.picks & self.claimed or claim.picks & self.moving or self.unfinished_of(claim.picks) != claim.picks
        )
        if claim.id in self.claims or taken or not claim.picks:
            raise AssertionError(f"claim {claim.id} takes messages that are not available")
        return self._with(left_orders=frozenset())._move(claim, claim.picks, MessageEvent.CLAIM)

    @_noted
    def acknowledge(
        self, consumer: str, session: str, claim_id: str, epoch: int, now_ms: int, part: Ranges | None = None
    ) -> RecordSet:
        """Finish the claim's messages, or `part` of them. Acknowledging finished messages again changes nothing; any other
        message that the consumer does not hold raises ConsumerClosedException."""
        claim = self.claims.get(claim_id)
        if claim is None or claim.consumer != consumer or not self.speaks_for(consumer, session):
            if part is not None and self.is_done(part):
                return self
            raise ConsumerClosedException(
                f"claim {claim_id} of consumer {consumer} was revoked or taken over by another instance: nothing was "
                "acknowledged and its messages go to others. Close this consumer and create a new one."
            )
        picks = claim.picks if part is None else part & claim.picks
        if part is not None and picks is not part and not self.is_done(part - claim.picks):
            raise ConsumerClosedException(
                f"claim {claim_id} does not hold {part - claim.picks}: nothing was acknowledged. "
                "Close this consumer and create a new one."
            )
        if not picks:
            return self
        row = Acknowledgement(self.position + 1, consumer, claim_id, picks, epoch, now_ms)
        return self._move(claim, picks, MessageEvent.ACKNOWLEDGE, row=row)

    @_noted
    def drop(self, consumer: str, keep: str | None = None) -> RecordSet:
        """Forget the consumer's claims except `keep`: Spark never logged them, so no application saw their messages."""
        after = self
        for claim in self.claims.values():
            if claim.consumer == consumer and claim.id != keep:
                after = after._move(claim, claim.picks, MessageEvent.RETURN)
        return after

    @_noted
    def release(self, claim_id: str, part: Ranges | None = None, *, delivered: bool, until_ms: int = 0) -> RecordSet:
        """Make messages of a claim available again. If they were `delivered`, the next delivery is flagged and counted, and
        comes not before `until_ms`."""
        claim = self.claims.get(claim_id)
        if claim is None:
            return self
        picks = claim.picks if part is None else part & claim.picks
        if not picks:
            return self
        event = MessageEvent.REDELIVER if delivered else MessageEvent.RETURN
        return self._move(claim, picks, event, until_ms=until_ms)

    @_noted
    def revoke(self, claim_id: str, now_ms: int = 0, until_ms: int = 0) -> RecordSet:
        """Its consumer is dead, or taken for dead: its messages are available again, and all of them flagged. Of a client's claim only
        the first of them was certainly shown to the application (redelivery.py)."""
        claim = self.claims.get(claim_id)
        if claim is None:
            return self
        shown = None if claim.replayable else claim.shown_first
        return self._move(claim, claim.picks, MessageEvent.REDELIVER, now_ms, until_ms, shown=shown)

    @_noted
    def refuse(self, claim_id: str, refusal: MessageRefusal, *, delivered: bool) -> RecordSet:
        """Claimed messages are refused for good: they are available again, to administrators alone. `delivered`: as `release`."""
        if claim_id not in self.claims or refusal.picks - self.claims[claim_id].picks:
            raise AssertionError(f"messages are refused that claim {claim_id} does not hold")
        after = self.release(claim_id, refusal.picks, delivered=delivered)
        return after._with(refusals=added(after.refusals, refusal))

    @_noted
    def reconsider(self, picks: Ranges) -> RecordSet:
        """These are refused no longer, for now."""
        kept = left(self.refusals, picks)
        return self if kept is self.refusals else self._with(refusals=kept)

    @_noted
    def sweep(
        self,
        live_sessions: Set[str],
        now_ms: int,
        in_doubt_timeout_ms: int,
        redelivery_delay_ms: int = 0,
        due_ms: int | None = None,
    ) -> RecordSet:
        """Revoke or doubt the claims of dead sessions, end delays that are over, and forget consumers without session and
        claims. Delays that end after `due_ms` stay (None: after now). Returns self when nothing changes."""
        over = [until for until in self.delays if until <= (now_ms if due_ms is None else due_ms)]
        after = self._with(delays={until: r for until, r in self.delays.items() if until not in over}) if over else self
        until_ms = delay_end_ms(now_ms, redelivery_delay_ms)
        for claim in self.claims.values():
            event = event_of_session(claim, live_sessions, now_ms, in_doubt_timeout_ms)
            if event is MessageEvent.REDELIVER:
                after = after.revoke(claim.id, now_ms, until_ms)
            elif event is not None:
                after = after._move(claim, claim.picks, event, now_ms)
        busy = {claim.consumer for claim in after.claims.values()}
        consumers = {c: s for c, s in after.consumers.items() if s in live_sessions or c in busy}
        return after if len(consumers) == len(after.consumers) else after._with(consumers=consumers)

    @_noted
    def skip(self, ranges: Ranges, why: SkipReason | None = None, stamp: Stamp | None = None) -> RecordSet:
        """Finish messages without a consumer (see SKIP). Claimed and moving ones are left out. `why` None: they never belonged
        to the subscription, or have a row of theirs already, and neither table gets them."""
        picks = ranges - self.claimed - self.moving
        after = self._finish(picks)
        if why is None or stamp is None:
            return after
        skipped = self.unfinished_of(picks)
        life = self.life.noted(LoggedEvent(why.event, skipped, 0, detail=why.detail))
        return after._with(life=life)._counted(SKIPPER, why.name, skipped, stamp)

    @_noted
    def expire(self, picks: Ranges, claim: str, stamp: Stamp) -> RecordSet:
        """Finish messages whose time is over, and count them (see EXPIRE). Claimed, moving and finished ones are left out. The
        acknowledgement table tells of them; `claim` is one of EXPIRED_CLAIMS."""
        over = self.unfinished_of(picks - self.claimed - self.moving)
        if not over:
            return self
        row = Acknowledgement(self.position + 1, EXPIRER, claim, over, *stamp)
        return self._finish(over)._with(
            expired=self.expired + over.count,
            outbox=self.outbox.appended(row),
            position=row.position,
            life=self.life.noted(LoggedEvent(LifeEvent.EXPIRED, over, 0)),
        )

    @_noted
    def discard(self, picks: Ranges, consumer: str, claim: str, epoch: int, now_ms: int) -> RecordSet:
        """Finish available messages for good; the acknowledgement table tells by whom."""
        if picks & self.claimed or picks & self.moving or not picks or self.unfinished_of(picks) != picks:
            raise AssertionError(f"{claim} discards messages that are not available")
        row = Acknowledgement(self.position + 1, consumer, claim, picks, epoch, now_ms)
        life = self.life.noted(LoggedEvent(LifeEvent.REMOVED, picks, now_ms, consumer, claim))
        return self._finish(picks)._with(outbox=self.outbox.appended(row), position=row.position, life=life)

    @_noted
    def limited(
        self, last: int, picks: Ranges, claim: str, epoch: int, now_ms: int, *, of_whole: bool = False
    ) -> RecordSet:
        """The subscription's limit was applied to the messages up to `last`: those of `picks` that are available make room. The same
        record set when it was applied to them before. `of_whole`: the messages of other members count too, so an arrival there may
        have displaced messages here."""
        if last < self.limit.arrived or (last == self.limit.arrived and not (of_whole and picks)):
            return self
        picks = self.unfinished_of(picks) - self.claimed - self.moving
        after = self.discard(picks, LIMIT, claim, epoch, now_ms) if picks else self
        return after._with(limit=LimitAccount(last, self.limit.dropped + picks.count))

    @_noted
    def start_at(self, floor: int) -> RecordSet:
        """Skip messages up to `floor`: the subscription starts behind them. A server that was away may have kept the record set of an
        earlier one of this name: what that one has dropped and expired does not count."""
        if floor <= self.floor:
            return self
        return self.skip(Ranges.of((self.floor + 1, floor)))._with(limit=NOTHING_DROPPED, expired=0)

    @_noted
    def carry(self, carried: CarriedCounts) -> RecordSet:
        """Forwarded messages bring these delivery counts along. Repeatable."""
        counts = self.deliveries.raised(carried.of(self.unfinished_of(carried.messages)))
        return self if counts is self.deliveries else self._with(deliveries=counts)

    @_noted
    def delivered_to_table(self, position: int) -> RecordSet:
        """The acknowledgement table has all rows up to `position`."""
        rest = self.outbox.behind(position)
        return self if len(rest) == len(self.outbox) else self._with(outbox=rest)

    @_noted
    def logged_to_table(self, position: int) -> RecordSet:
        """The life-cycle table has all events up to `position`."""
        life = self.life.behind(position)
        return self if life is self.life else self._with(life=life)

    @_noted
    def ended(self, last: int, why: str, stamp: Stamp) -> RecordSet:
        """The subscription is dropped, or over: `cleared`, and the acknowledgement table tells what it had not finished of 1..`last`,
        but for what transfers and transactions take."""
        return self.cleared()._counted(ENDER, why, self.unfinished(1, last) - self.moving, stamp)

    @_noted
    def cleared(self) -> RecordSet:
        """As a subscription that was never used, for one that was dropped. The position in the acknowledgement table stays,
        or rows of a new subscription of this name would look like rows that are written; so do the rows that wait for it, the
        life-cycle log, transfers and pledges. What consumers had planned before is not done to it."""
        empty = RecordSet(
            outbox=self.outbox,
            position=self.position,
            intents=self.intents,
            nonce=self.nonce,
            slots=self.slots,
            life=self.life,
            pledges=self.pledges,
            clears=self.clears,
        )
        return self if self == empty else empty._with(clears=self.clears + 1)

    # -- transfers ------------------------------------------------------------------------------------------------
    def ticket(self, nonce: str) -> Ticket | None:
        """For a new transfer; `nonce` is used when this life has none yet. None: all slots have an open intent."""
        return free_ticket(self.nonce or nonce, self.slots, self.intents)

    @_noted
    def renewed(self, nonce: str) -> RecordSet:
        """A new life: a target knows a number that this record set has not given. Open intents keep their tickets."""
        return self._with(nonce=nonce, slots={})

    @_noted
    def move(self, claim_id: str, intent: Intent) -> RecordSet:
        """Claimed messages begin to move, by the durable intent. Nothing but the transfer's end changes them now."""
        claim, ticket = self.claims[claim_id], intent.ticket
        of_this_life = ticket.nonce == (self.nonce or ticket.nonce)
        if not of_this_life or ticket.slot in self.intents or ticket.number <= self.slots.get(ticket.slot, 0):
            raise AssertionError(f"slot {ticket.slot} cannot take transfer {ticket}")
        if intent.picks - claim.picks or not intent.picks:
            raise AssertionError(f"transfer {ticket} moves messages that claim {claim_id} does not hold")
        after = self._move(claim, intent.picks, MessageEvent.MOVE)
        slots = {**self.slots, ticket.slot: ticket.number}
        return after._with(nonce=ticket.nonce, slots=slots, intents={**self.intents, ticket.slot: intent})

    @_noted
    def moved(self, ticket: Ticket, epoch: int, now_ms: int) -> RecordSet:
        """The targets have the messages of the transfer: acknowledge them here. Repeatable."""
        intent = self.intents.get(ticket.slot)
        if intent is None or intent.ticket != ticket:
            return self
        claim = claim_to(intent.claim, ", ".join(target.destination for target in intent.targets))
        row = Acknowledgement(self.position + 1, intent.consumer, claim, intent.picks, epoch, now_ms)
        after = self._end(intent, MessageEvent.ARRIVE, now_ms)
        expired = intent.picks.count if intent.consumer == EXPIRER else 0
        return after._with(outbox=self.outbox.appended(row), position=row.position, expired=self.expired + expired)

    @_noted
    def returned(self, ticket: Ticket) -> RecordSet:
        """No target has the messages of the transfer or will ever have them: they are available again, flagged. Repeatable."""
        intent = self.intents.get(ticket.slot)
        return self if intent is None or intent.ticket != ticket else self._end(intent, MessageEvent.REFUSE)

    # -- transactions ---------------------------------------------------------------------------------------------
    @_noted
    def pledge(self, session: str, pledge: Pledge) -> RecordSet:
        """Claimed messages wait for the decision of a transaction. Raises ConsumerClosedException when the consumer does not hold
        them any more, as `acknowledge` does."""
        claim = self.claims.get(pledge.claim)
        held = claim is not None and claim.consumer == pledge.consumer and self.speaks_for(pledge.consumer, session)
        if claim is None or not held or pledge.picks - claim.picks or not pledge.picks or pledge.key in self.pledges:
            raise ConsumerClosedException(
                f"claim {pledge.claim} of consumer {pledge.consumer} was revoked or taken over by another instance: its "
                "messages go to others. Close this consumer and create a new one."
            )
        after = self._move(claim, pledge.picks, MessageEvent.PLEDGE)
        return after._with(pledges={**self.pledges, pledge.key: pledge})

    @_noted
    def fulfilled(self, ticket: Ticket, epoch: int, now_ms: int) -> RecordSet:
        """The transaction is committed: acknowledge what was pledged to it. Repeatable."""
        after = self
        for pledge in with_ticket(self.pledges, ticket):
            claim = claim_in(pledge.claim, str(pledge.ticket))
            row = Acknowledgement(after.position + 1, pledge.consumer, claim, pledge.picks, epoch, now_ms)
            after = after._end_pledge(pledge, MessageEvent.ACKNOWLEDGE, now_ms)
            after = after._with(outbox=after.outbox.appended(row), position=row.position)
        return after

    @_noted
    def withdrawn(self, ticket: Ticket, now_ms: int, until_ms: int = 0) -> RecordSet:
        """The transaction was rolled back: what was pledged to it is available again, flagged and counted. Repeatable."""
        after = self
        for pledge in with_ticket(self.pledges, ticket):
            after = after._end_pledge(pledge, MessageEvent.REDELIVER, now_ms, until_ms)
        return after

    # -- inside ---------------------------------------------------------------------------------------------------
    def _with(self, **changes: Any) -> RecordSet:
        """As `dataclasses.replace`, which takes three times as long; what is known of fields that do not change stays known."""
        after = object.__new__(RecordSet)
        fields = after.__dict__
        fields.update(self.__dict__)
        if "claims" in changes:
            fields.pop("claimed", None)
        if "intents" in changes or "pledges" in changes:
            fields.pop("moving", None)
        fields.update(changes)
        return after

    def _counted(self, consumer: str, why: str, picks: Ranges, stamp: Stamp) -> RecordSet:
        """With a row that may be a hull (endings.py)."""
        if not picks:
            return self
        position = self.position + 1
        row = Acknowledgement(position, consumer, str(HullClaim(why, picks.count, position)), hull(picks), *stamp)
        return self._with(outbox=self.outbox.appended(row), position=position)

    def _end_pledge(self, pledge: Pledge, event: MessageEvent, now_ms: int, until_ms: int = 0) -> RecordSet:
        """Take a pledge's messages out of PLEDGED."""
        transition = step_of(TRANSITIONS, MessageState.PLEDGED, event, "a pledged message")
        noted = LoggedEvent(LOGGED[event], pledge.picks, now_ms, pledge.consumer, pledge.claim, str(pledge.ticket))
        kept = {key: other for key, other in self.pledges.items() if key != pledge.key}
        after = self._with(pledges=kept, life=self.life.noted(noted))
        if not transition.redelivers:
            return after._finish(pledge.picks)
        return after._with(
            deliveries=after.deliveries.delivered(pledge.picks),
            delays=delayed(after.delays, pledge.picks, until_ms),
            returns=after.returns + 1,
        )

    def _move(
        self,
        claim: Claim,
        picks: Ranges,
        event: MessageEvent,
        now_ms: int = 0,
        until_ms: int = 0,
        row: Acknowledgement | None = None,
        shown: Ranges | None = None,
    ) -> RecordSet:
        """Take `picks` of a claim through one transition of the table. CLAIM, DOUBT and RECOVER move a whole claim. After
        MOVE the caller enters the intent, after PLEDGE the pledge. `row` joins the outbox. `shown`: those that a client
        which died had certainly shown; None: all, and the consumer lives or is a query."""
        known = self.claims.get(claim.id)
        state = known.state if known else MessageState.AVAILABLE
        transition = step_of(TRANSITIONS, state, event, "a message")
        life = self._life_after(event, claim, picks, row.acknowledged_ms if row else now_ms)
        if transition.to in (MessageState.CLAIMED, MessageState.IN_DOUBT):
            since_ms = now_ms if transition.to is MessageState.IN_DOUBT else 0
            moved = claim if claim.in_doubt_since_ms == since_ms else replace(claim, in_doubt_since_ms=since_ms)
            return self._with(claims={**self.claims, claim.id: moved}, delays=forgotten(self.delays, picks), life=life)
        claims = {key: other for key, other in self.claims.items() if key != claim.id}
        if rest := claim.picks - picks:
            claims[claim.id] = replace(claim, picks=rest)
        changes: dict[str, Any] = {"claims": claims, "life": life}
        if transition.to is MessageState.AVAILABLE:
            changes["returns"] = self.returns + 1
        if row is not None:
            changes |= {"outbox": self.outbox.appended(row), "position": row.position}
        if transition.redelivers:
            counts = self.deliveries
            changes["deliveries"] = counts.delivered(picks) if shown is None else counts.died(shown, picks - shown)
            changes["delays"] = delayed(self.delays, picks if shown is None else shown, until_ms)
        elif transition.to is MessageState.DONE:
            changes |= self._finished(picks)
        return self._with(**changes)

    def _life_after(self, event: MessageEvent, claim: Claim, picks: Ranges, at_ms: int) -> LifeCycle:
        """Claims of parts of spark-jms, which no consumer attached for, are steps of what the log says of their end."""
        if not self.life.is_on or claim.consumer not in self.consumers:
            return self.life
        return self.life.moved(event, claim, picks, claim.made_ms if event is MessageEvent.CLAIM else at_ms)

    def _end(self, intent: Intent, event: MessageEvent, now_ms: int = 0) -> RecordSet:
        """Take an intent's messages out of MOVING."""
        transition = step_of(TRANSITIONS, MessageState.MOVING, event, "a moving message")
        slot, life = intent.ticket.slot, self.life
        if life.is_on:
            what = f"{', '.join(target.destination for target in intent.targets)}: {intent.reason}"
            life = life.noted(LoggedEvent(LOGGED[event], intent.picks, now_ms, intent.consumer, intent.claim, what))
        kept = {key: other for key, other in self.intents.items() if key != slot}
        after = self._with(intents=kept, life=life)
        if transition.redelivers:
            return after._with(deliveries=after.deliveries.delivered(intent.picks), returns=after.returns + 1)
        return after._finish(intent.picks)

    def _finish(self, picks: Ranges) -> RecordSet:
        """Enter DONE."""
        return self._with(**self._finished(picks))

    def _finished(self, picks: Ranges) -> dict[str, Any]:
        """The fields that change when `picks` enter DONE: the floor rises as far as all below is done."""
        done, floor = self.done, self.floor
        if not done and len(picks) == 1 and picks.first <= floor + 1:  # in order, as most clients acknowledge
            floor = max(floor, picks.last)
        else:
            done = done | picks.between(floor + 1, picks.last) if picks else done
            floor = done.run_end(floor + 1)
            if floor > self.floor:
                done = done - Ranges.of((1, floor))
        return {
            "done": done,
            "floor": floor,
            "deliveries": self.deliveries.without(picks),
            "delays": forgotten(self.delays, picks),
            "refusals": left(self.refusals, picks),
        }
