"""The record set: the finished state of one (destination, subscription, member), and all its changes (C5, C8, C9).

Sets represent the states of messages; message_state.py has the table of their transitions:

    AVAILABLE   in none of the sets below
    CLAIMED     in `claims[id].picks`, with `in_doubt_since_ms` 0
    IN_DOUBT    in `claims[id].picks`, with `in_doubt_since_ms` set
    DONE        at or below `floor`, or in `done`

A message is in exactly one of them. Every method returns a new record set and reads neither clock nor disk. The holder of
the record writes the result to the store in one commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from spark_jms.core.acknowledgement import Acknowledgement, Outbox, appended, is_full
from spark_jms.core.claim import Claim
from spark_jms.core.message_state import TRANSITIONS, MessageEvent, MessageState
from spark_jms.core.ranges import EMPTY, Ranges, union
from spark_jms.core.redelivery import Deliveries, counted, delivery_counts, event_of_session, forgotten
from spark_jms.errors import ConsumerClosedException, FormatVersionError, RecordSetError

FORMAT_VERSION = 1
MAX_REMEMBERED = 64  # consumers whose newest acknowledged claim is known


@dataclass(frozen=True)
class RecordSet:
    floor: int = 0
    done: Ranges = EMPTY  # above the floor
    claims: Mapping[str, Claim] = field(default_factory=dict)
    deliveries: Deliveries = field(default_factory=dict)  # of unfinished messages
    consumers: Mapping[str, str] = field(default_factory=dict)  # consumer -> the session that speaks for it
    outbox: Outbox = ()
    position: int = 0  # of the newest acknowledgement ever
    acknowledged: Mapping[str, str] = field(default_factory=dict)  # replaying consumer -> its newest acknowledged claim

    # -- reading --------------------------------------------------------------------------------------------------
    @property
    def claimed(self) -> Ranges:
        """Claimed or in doubt."""
        return union(claim.picks for claim in self.claims.values())

    def available(self, first: int, last: int) -> Ranges:
        """The available messages of first..last."""
        return Ranges.of((max(self.floor + 1, first), last)) - self.done - self.claimed

    def unfinished(self, first: int, last: int) -> Ranges:
        """The messages of first..last that are not done: the backlog."""
        return Ranges.of((max(self.floor + 1, first), last)) - self.done

    def is_done(self, picks: Ranges) -> bool:
        return not (picks - Ranges.of((1, self.floor)) - self.done)

    def redelivered(self, picks: Ranges) -> dict[int, Ranges]:
        """Delivery count -> those of `picks` that are not delivered for the first time."""
        return delivery_counts(self.deliveries, picks)

    @property
    def outbox_is_full(self) -> bool:
        return is_full(self.outbox)

    def speaks_for(self, consumer: str, session: str) -> bool:
        return self.consumers.get(consumer) == session

    # -- changing -------------------------------------------------------------------------------------------------
    def attach(self, consumer: str, session: str) -> RecordSet:
        """The consumer starts or returns in this session: its newest session speaks for it, and its claims recover."""
        after = self
        for claim in self.claims.values():
            if claim.consumer == consumer:
                after = after._move(replace(claim, session=session), claim.picks, MessageEvent.RECOVER)
        return replace(after, consumers={**self.consumers, consumer: session})

    def claim(self, claim: Claim) -> RecordSet:
        if claim.id in self.claims or claim.picks & self.claimed or claim.picks & self.done or not claim.picks:
            raise AssertionError(f"claim {claim.id} takes messages that are not available")
        if claim.picks.first <= self.floor:
            raise AssertionError(f"claim {claim.id} takes messages that are done")
        return self._move(claim, claim.picks, MessageEvent.CLAIM)

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
        if part is not None and not self.is_done(part - claim.picks):
            raise ConsumerClosedException(
                f"claim {claim_id} does not hold {part - claim.picks}: nothing was acknowledged. "
                "Close this consumer and create a new one."
            )
        after = self._move(claim, picks, MessageEvent.ACKNOWLEDGE)
        if picks:
            row = Acknowledgement(self.position + 1, consumer, claim_id, picks, epoch, now_ms)
            after = replace(after, outbox=appended(self.outbox, row), position=row.position)
        return after._remember(consumer, claim_id) if claim.replayable else after

    def drop(self, consumer: str, keep: str | None = None) -> RecordSet:
        """Forget the consumer's claims except `keep`: Spark never logged them, so no application saw their messages."""
        after = self
        for claim in self.claims.values():
            if claim.consumer == consumer and claim.id != keep:
                after = after._move(claim, claim.picks, MessageEvent.RETURN)
        return after

    def release(self, claim_id: str, part: Ranges | None = None, *, delivered: bool) -> RecordSet:
        """Make messages of a claim available again. If they were `delivered`, the next delivery is flagged and counted."""
        claim = self.claims.get(claim_id)
        if claim is None:
            return self
        picks = claim.picks if part is None else part & claim.picks
        return self._move(claim, picks, MessageEvent.REDELIVER if delivered else MessageEvent.RETURN)

    def sweep(self, live_sessions: Set[str], now_ms: int, in_doubt_timeout_ms: int) -> RecordSet:
        """Revoke or doubt the claims of dead sessions, and forget consumers without session and claims. Returns self when
        nothing changes."""
        after = self
        for claim in self.claims.values():
            event = event_of_session(claim, live_sessions, now_ms, in_doubt_timeout_ms)
            if event is not None:
                after = after._move(claim, claim.picks, event, now_ms)
        busy = {claim.consumer for claim in after.claims.values()}
        consumers = {c: s for c, s in after.consumers.items() if s in live_sessions or c in busy}
        return after if len(consumers) == len(after.consumers) else replace(after, consumers=consumers)

    def skip(self, ranges: Ranges) -> RecordSet:
        """Finish messages without an acknowledgement (see SKIP). Claimed ones are left to their consumers."""
        return self._finish(ranges - self.claimed)

    def start_at(self, floor: int) -> RecordSet:
        """Skip messages up to `floor`: the subscription starts behind them."""
        return self.skip(Ranges.of((self.floor + 1, floor))) if floor > self.floor else self

    def delivered_to_table(self, position: int) -> RecordSet:
        """The acknowledgement table has all rows up to `position`."""
        rest = tuple(row for row in self.outbox if row.position > position)
        return self if len(rest) == len(self.outbox) else replace(self, outbox=rest)

    # -- inside ---------------------------------------------------------------------------------------------------
    def _move(self, claim: Claim, picks: Ranges, event: MessageEvent, now_ms: int = 0) -> RecordSet:
        """Take `picks` of a claim through one transition of the table. CLAIM, DOUBT and RECOVER move a whole claim."""
        known = self.claims.get(claim.id)
        transition = TRANSITIONS[known.state if known else MessageState.AVAILABLE, event]
        if transition.to in (MessageState.CLAIMED, MessageState.IN_DOUBT):
            moved = replace(claim, in_doubt_since_ms=now_ms if transition.to is MessageState.IN_DOUBT else 0)
            return replace(self, claims={**self.claims, claim.id: moved})
        claims = {key: other for key, other in self.claims.items() if key != claim.id}
        if rest := claim.picks - picks:
            claims[claim.id] = replace(claim, picks=rest)
        after = replace(self, claims=claims)
        if transition.redelivers:
            return replace(after, deliveries=counted(after.deliveries, picks))
        return after._finish(picks) if transition.to is MessageState.DONE else after

    def _finish(self, picks: Ranges) -> RecordSet:
        """Enter DONE: raise the floor as far as all below is done."""
        done, floor = self.done | picks, self.floor
        if done and done.first <= floor + 1:
            done = done - Ranges.of((1, floor))
            if done and done.first == floor + 1:
                floor = int(done.hi[0])
                done = done - Ranges.of((1, floor))
        return replace(self, done=done, floor=floor, deliveries=forgotten(self.deliveries, picks))

    def _remember(self, consumer: str, claim_id: str) -> RecordSet:
        """The newest to acknowledge comes last; the one that has been silent longest is forgotten."""
        others = [(c, k) for c, k in self.acknowledged.items() if c != consumer]
        return replace(self, acknowledged=dict([*others, (consumer, claim_id)][-MAX_REMEMBERED:]))

    # -- stored form ----------------------------------------------------------------------------------------------
    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "v": FORMAT_VERSION,
                "floor": self.floor,
                "done": self.done.to_json(),
                "position": self.position,
                "claims": [
                    [c.id, c.consumer, c.session, c.picks.to_json(), c.made_ms, c.replayable, c.in_doubt_since_ms]
                    for c in self.claims.values()
                ],
                "deliveries": [[n, r.to_json()] for n, r in self.deliveries.items()],
                "consumers": dict(self.consumers),
                "acknowledged": dict(self.acknowledged),
                "outbox": [
                    [a.position, a.consumer, a.claim, a.picks.to_json(), a.epoch, a.acknowledged_ms, a.since]
                    for a in self.outbox
                ],
            },
            separators=(",", ":"),
        ).encode()

    @staticmethod
    def from_bytes(data: bytes | None, name: str) -> RecordSet:
        """The inverse of `to_bytes`; None is a new record set. Raises RecordSetError or FormatVersionError with `name`."""
        if data is None:
            return RecordSet()
        try:
            state = json.loads(data)
            if state["v"] > FORMAT_VERSION:
                raise FormatVersionError(
                    f"the state of {name} has format version {state['v']}, this spark-jms reads up to {FORMAT_VERSION}: "
                    "install a later spark-jms"
                )
            return RecordSet(
                floor=state["floor"],
                done=Ranges.from_json(state["done"]),
                position=state["position"],
                claims={
                    key: Claim(key, consumer, session, Ranges.from_json(picks), *rest)
                    for key, consumer, session, picks, *rest in state["claims"]
                },
                deliveries={n: Ranges.from_json(r) for n, r in state["deliveries"]},
                consumers=state["consumers"],
                acknowledged=state.get("acknowledged", {}),
                outbox=tuple(
                    Acknowledgement(position, consumer, claim, Ranges.from_json(picks), *rest)
                    for position, consumer, claim, picks, *rest in state["outbox"]
                ),
            )
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise RecordSetError(
                f"the state of {name} in the store cannot be read ({error}): restore the store from a copy, or drop the "
                "subscription with `jmsq subscriptions --drop`"
            ) from error
