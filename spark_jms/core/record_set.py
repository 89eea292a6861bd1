"""The record set: the state of one (destination, subscription, member), and every change it can go through (C5, C8, C9).

    message          is in                       leaves it by
    -------          -----                       ------------
    available        nothing                     claim
    claimed          claims[id].picks            acknowledge -> done | drop, release -> available | revoke -> available,
                                                 with its delivery count raised
    done             <= floor or in `done`       never

A message is in exactly one of the three. A claim belongs to a consumer and is guarded by a session; when the session
dies, a claim that will be replayed (a Spark query's) is *in doubt*: it is withheld until the same consumer comes back
or the in-doubt time is over. Any other claim is revoked at once. Every function here returns a new record set and reads
neither clock nor disk; whoever holds the record in the store writes the result in one commit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from spark_jms.core.acknowledgement import Acknowledgement, Outbox, appended, is_full
from spark_jms.core.ranges import EMPTY, Ranges, union
from spark_jms.errors import ConsumerClosedException, FormatVersionError, RecordSetError

FORMAT_VERSION = 1
MAX_REMEMBERED = 64  # consumers whose newest acknowledged claim is known


@dataclass(frozen=True)
class Claim:
    """Messages in one consumer's hands. `replayable`: the consumer can come back and ask for the same batch."""

    id: str
    consumer: str
    session: str
    picks: Ranges
    made_ms: int
    replayable: bool
    in_doubt_since_ms: int = 0  # 0 = its session lives, as far as is known


@dataclass(frozen=True)
class RecordSet:
    floor: int = 0
    done: Ranges = EMPTY  # above the floor
    claims: Mapping[str, Claim] = field(default_factory=dict)
    deliveries: Mapping[int, Ranges] = field(default_factory=dict)  # times delivered in vain -> unfinished messages
    consumers: Mapping[str, str] = field(default_factory=dict)  # consumer -> the session that speaks for it
    outbox: Outbox = ()
    position: int = 0  # of the newest acknowledgement ever
    acknowledged: Mapping[str, str] = field(default_factory=dict)  # replaying consumer -> its newest acknowledged claim

    # -- asking ---------------------------------------------------------------------------------------------------
    @property
    def claimed(self) -> Ranges:
        return union(claim.picks for claim in self.claims.values())

    def available(self, first: int, last: int) -> Ranges:
        """What can be picked of the messages first..last."""
        return Ranges.of((max(self.floor + 1, first), last)) - self.done - self.claimed

    def unfinished(self, first: int, last: int) -> Ranges:
        """All that is not done: what a browser shows and what counts as backlog."""
        return Ranges.of((max(self.floor + 1, first), last)) - self.done

    def is_done(self, picks: Ranges) -> bool:
        return not (picks - Ranges.of((1, self.floor)) - self.done)

    def redelivered(self, picks: Ranges) -> dict[int, Ranges]:
        """delivery count -> those of `picks` that are not delivered for the first time."""
        hits = {times + 1: picks & ranges for times, ranges in self.deliveries.items()}
        return {count: ranges for count, ranges in sorted(hits.items()) if ranges}

    @property
    def outbox_is_full(self) -> bool:
        return is_full(self.outbox)

    def speaks_for(self, consumer: str, session: str) -> bool:
        return self.consumers.get(consumer) == session

    # -- changing -------------------------------------------------------------------------------------------------
    def attach(self, consumer: str, session: str) -> RecordSet:
        """The consumer starts, or comes back, in this session: the last to start speaks for it, its claims live again."""
        claims = {
            key: replace(claim, session=session, in_doubt_since_ms=0) if claim.consumer == consumer else claim
            for key, claim in self.claims.items()
        }
        return replace(self, claims=claims, consumers={**self.consumers, consumer: session})

    def claim(self, claim: Claim) -> RecordSet:
        if claim.id in self.claims or claim.picks & self.claimed or claim.picks & self.done or not claim.picks:
            raise AssertionError(f"claim {claim.id} takes what is not available")
        if claim.picks.first <= self.floor:
            raise AssertionError(f"claim {claim.id} takes what is done")
        return replace(self, claims={**self.claims, claim.id: claim})

    def acknowledge(
        self, consumer: str, session: str, claim_id: str, epoch: int, now_ms: int, part: Ranges | None = None
    ) -> RecordSet:
        """The claim's messages (or `part` of them) are done. Acknowledging again what is done changes nothing; anything
        else that the consumer does not hold is refused."""
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
        after = self._without(claim, picks)._finish(consumer, claim_id, picks, epoch, now_ms)
        return after._remember(consumer, claim_id) if claim.replayable else after

    def drop(self, consumer: str, keep: str | None = None) -> RecordSet:
        """Forget the consumer's claims but `keep`: Spark never logged them, so nobody ever saw their messages."""
        claims = {k: c for k, c in self.claims.items() if c.consumer != consumer or k == keep}
        return self if len(claims) == len(self.claims) else replace(self, claims=claims)

    def release(self, claim_id: str, part: Ranges | None = None, *, delivered: bool) -> RecordSet:
        """Give messages back. If they were `delivered`, the next delivery is flagged and counted."""
        claim = self.claims.get(claim_id)
        if claim is None:
            return self
        picks = claim.picks if part is None else part & claim.picks
        after = self._without(claim, picks)
        return after._count_delivery(picks) if delivered else after

    def sweep(self, live: Set[str], now_ms: int, in_doubt_timeout_ms: int) -> RecordSet:
        """What the death of sessions means for their claims and consumers. Returns self when nothing changes."""
        after = self
        for claim in self.claims.values():
            if claim.session in live:
                if claim.in_doubt_since_ms:  # it was only slow: the next doubt starts from nothing
                    after = replace(after, claims={**after.claims, claim.id: replace(claim, in_doubt_since_ms=0)})
                continue
            since = claim.in_doubt_since_ms or now_ms
            if not claim.replayable or now_ms - since >= in_doubt_timeout_ms:
                after = after.release(claim.id, delivered=True)
            elif not claim.in_doubt_since_ms:
                after = replace(after, claims={**after.claims, claim.id: replace(claim, in_doubt_since_ms=now_ms)})
        busy = {claim.consumer for claim in after.claims.values()}
        consumers = {c: s for c, s in after.consumers.items() if s in live or c in busy}
        return after if len(consumers) == len(after.consumers) else replace(after, consumers=consumers)

    def skip(self, ranges: Ranges) -> RecordSet:
        """These messages are gone (purged, lost): done without anybody's acknowledgement."""
        return self._done(ranges - self.claimed)

    def start_at(self, floor: int) -> RecordSet:
        """What lies at or before `floor` is not wanted: the starting position of a subscription."""
        return self.skip(Ranges.of((self.floor + 1, floor))) if floor > self.floor else self

    def delivered_to_table(self, position: int) -> RecordSet:
        """The acknowledgement table holds everything up to `position`."""
        rest = tuple(a for a in self.outbox if a.position > position)
        return self if len(rest) == len(self.outbox) else replace(self, outbox=rest)

    # -- inside ---------------------------------------------------------------------------------------------------
    def _without(self, claim: Claim, picks: Ranges) -> RecordSet:
        rest = claim.picks - picks
        claims = {k: c for k, c in self.claims.items() if k != claim.id}
        if rest:
            claims[claim.id] = replace(claim, picks=rest)
        return replace(self, claims=claims)

    def _finish(self, consumer: str, claim_id: str, picks: Ranges, epoch: int, now_ms: int) -> RecordSet:
        if not picks:
            return self
        after = self._done(picks)
        position = self.position + 1
        row = Acknowledgement(position, consumer, claim_id, picks, epoch, now_ms)
        return replace(after, outbox=appended(self.outbox, row), position=position)

    def _remember(self, consumer: str, claim_id: str) -> RecordSet:
        """The latest to acknowledge is last; the one that has been silent longest is forgotten."""
        others = [(c, k) for c, k in self.acknowledged.items() if c != consumer]
        return replace(self, acknowledged=dict([*others, (consumer, claim_id)][-MAX_REMEMBERED:]))

    def _done(self, picks: Ranges) -> RecordSet:
        done, floor = self.done | picks, self.floor
        if done and done.first <= floor + 1:
            done = done - Ranges.of((1, floor))
            if done and done.first == floor + 1:
                floor = int(done.hi[0])
                done = done - Ranges.of((1, floor))
        deliveries = {n: left for n, r in self.deliveries.items() if (left := r - picks)}
        return replace(self, done=done, floor=floor, deliveries=deliveries)

    def _count_delivery(self, picks: Ranges) -> RecordSet:
        counts: dict[int, Ranges] = {}
        first_time = picks
        for times, ranges in self.deliveries.items():
            again = ranges & picks
            first_time = first_time - again
            for key, part in ((times, ranges - again), (times + 1, again)):
                if part:
                    counts[key] = counts.get(key, EMPTY) | part
        if first_time:
            counts[1] = counts.get(1, EMPTY) | first_time
        return replace(self, deliveries=counts)

    # -- writing down ---------------------------------------------------------------------------------------------
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
        """The inverse of `to_bytes`; None is a new record set. Raises RecordSetError / FormatVersionError with `name`."""
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
                    c[0]: Claim(c[0], c[1], c[2], Ranges.from_json(c[3]), c[4], c[5], c[6]) for c in state["claims"]
                },
                deliveries={n: Ranges.from_json(r) for n, r in state["deliveries"]},
                consumers=state["consumers"],
                acknowledged=state.get("acknowledged", {}),
                outbox=tuple(
                    Acknowledgement(a[0], a[1], a[2], Ranges.from_json(a[3]), *a[4:7]) for a in state["outbox"]
                ),
            )
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise RecordSetError(
                f"the state of {name} in the store cannot be read ({error}): restore the store from a copy, or drop the "
                "subscription with `jmsq subscriptions --drop`"
            ) from error
