"""A batch, the messages that a consumer claims at once: its form as a Spark offset, when it is made, and of which messages.

`messagingPerformancePreference` of a destination trades the time that a message waits against the number of batches:

    preference   a client's batch has              waits for a full batch, from the first message on
    ----------   ------------------------------   --------------------------------------------------
    0            one message                       not at all
    25           up to `messagesMaximum`           not at all
    50           up to `messagesMaximum`           20 ms
    75           up to `messagesMaximum`           100 ms
    100          up to `messagesMaximum`           500 ms

A query of Spark has no `messagesMaximum`: its batches have no limit unless `maxMessagesPerTrigger` sets one, and a batch of
FULL_BATCH messages is full.

**The pace of a query.** Spark begins a batch as soon as there is a message, and a batch costs about as much processor time for one
message as for a hundred. So a busy query makes more batches, the cheaper they are, and saves nothing. With the preference 25 a query
claims at most one batch in `batchPace`: it rests until that time has passed since its last claim. Spark asks at the trigger's next
interval: with one of `batchPace` or more there is no rest, because the trigger is the pace.

Features: C5, C6, C9, C18, T9, T13 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.poison import Messages, Trial, trial_from_json, trial_to_json, without
from spark_jms.errors import FormatVersionError, OffsetError, RecordSetError

OFFSET_VERSION = 3  # of offsets with messages of an earlier claim; all others have 2
MAX_RANGES_PER_MEMBER = 20_000  # keeps an offset small; the next batch takes the rest
WAITS_MS = {0: 0, 25: 0, 50: 20, 75: 100, 100: 500}
FULL_BATCH = 10_000  # of a query without maxMessagesPerTrigger
FORMAT_VERSION = 3  # of a query's progress with messages that a trial withholds; without any, version 2
PROGRESS = "progress"  # the key


@dataclass(frozen=True)
class MemberPick:
    """One member's part of a batch. `redelivered` maps a delivery count above 1 to its messages. `claim` is an earlier claim
    whose messages were delivered with an earlier batch and cannot be acknowledged yet, because the member's server is down;
    "": the batch's own."""

    epoch: int
    picks: Ranges
    redelivered: Mapping[int, Ranges] = field(default_factory=dict)
    claim: str = ""


@dataclass(frozen=True)
class Batch:
    """Everything a task needs to produce the batch again. The first offset of a query has a consumer and no claim. `table`
    is the id of the destination's table; offsets of version 1 have none."""

    consumer: str
    claim: str = ""
    members: Mapping[int, MemberPick] = field(default_factory=dict)
    table: str = ""

    @property
    def count(self) -> int:
        """Of the messages that this batch delivers."""
        return sum(pick.picks.count for pick in self.delivered.values())

    @property
    def delivered(self) -> dict[int, MemberPick]:
        """What this batch delivers, by member."""
        return {member: pick for member, pick in self.members.items() if not pick.claim}

    def carried(self, members: Iterable[int]) -> dict[int, MemberPick]:
        """These members' messages, as a later batch names them while they are not acknowledged."""
        kept = set(members)
        return {m: replace(p, claim=p.claim or self.claim) for m, p in self.members.items() if m in kept}

    def without(self, members: Collection[int]) -> Batch:
        """Without what the batch itself delivers of these members; what it carries of them stays."""
        return replace(self, members={m: p for m, p in self.members.items() if p.claim or m not in members})

    def part(self, members: Iterable[int]) -> Batch:
        """Of these members, which are on one server: their messages and the claim that these belong to."""
        own = self.carried(members)
        claim = next((pick.claim for pick in own.values()), self.claim)
        return Batch(self.consumer, claim, {m: replace(pick, claim="") for m, pick in own.items()}, self.table)

    def to_json(self) -> dict[str, object]:
        """With keys in a fixed order, so that Spark takes equal batches for equal offsets."""
        members = {}
        for member, pick in sorted(self.members.items()):
            entry: dict[str, object] = {"epoch": pick.epoch, "pick": pick.picks.to_json()}
            if pick.redelivered:
                entry["redelivered"] = {str(count): r.to_json() for count, r in sorted(pick.redelivered.items())}
            if pick.claim:
                entry["claim"] = pick.claim
            members[str(member)] = entry
        return {
            "v": OFFSET_VERSION if any(pick.claim for pick in self.members.values()) else 2,
            "table": self.table,
            "consumer": self.consumer,
            "claim": self.claim,
            "members": members,
        }

    @staticmethod
    def from_json(value: object) -> Batch:
        """Raises OffsetError (damaged, or of another source) or FormatVersionError (of a newer spark-jms)."""
        if not isinstance(value, dict) or not {"v", "consumer", "claim", "members"} <= value.keys():
            raise OffsetError(
                f"the offset in the checkpoint is not one of spark-jms: {str(value)[:200]!r}. Use the checkpointLocation "
                "that belongs to this query, or a fresh one."
            )
        if type(value["v"]) is int and value["v"] > OFFSET_VERSION:
            raise FormatVersionError(
                f"the checkpoint's offset has version {value['v']}, this spark-jms reads up to {OFFSET_VERSION}: "
                "install a later spark-jms"
            )
        try:
            members = {
                int(member): MemberPick(
                    int(entry["epoch"]),
                    Ranges.from_json(entry["pick"]),
                    {int(count): Ranges.from_json(r) for count, r in entry.get("redelivered", {}).items()},
                    str(entry.get("claim", "")),
                )
                for member, entry in value["members"].items()
            }
            table = "" if value["v"] == 1 else value["table"]
            if not all(isinstance(text, str) for text in (value["consumer"], value["claim"], table)):
                raise ValueError("consumer, claim and table must be text")
            return Batch(value["consumer"], value["claim"], members, table)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OffsetError(
                f"the offset in the checkpoint is damaged ({error}): {str(value)[:200]!r}. Restore the checkpoint from a "
                "copy, or start with a fresh checkpointLocation."
            ) from error


def claim_id(number: int, token: str) -> str:
    """The numbers of a query's claims rise and never repeat, so an id tells whether it is older than the query's newest
    acknowledgement."""
    return f"{number}-{token}"


def claim_number(claim: str) -> int:
    """0 for no claim, and for claims of old versions, which have no number."""
    number, dash, _ = claim.partition("-")
    return int(number) if dash and number.isdigit() else 0


@dataclass(frozen=True)
class Limits:
    """Admission control. None = no limit. A batch waits for `min_messages`: at most `linger_ms` from the first message on, or,
    if that is None, at most `max_delay_ms` from the batch before. A consumer shows the messages of `first_member` and the members
    behind it first."""

    max_messages: int | None = None
    max_bytes: int | None = None
    min_messages: int = 1
    max_delay_ms: int = 900_000
    linger_ms: int | None = None
    first_member: int = 0

    def allow(self, available: int, waited_ms: float, *, draining: bool) -> bool:
        """A batch of so many messages may be made now. `draining`: what is there is taken, however little."""
        return available > 0 and (draining or available >= self.min_messages or waited_ms >= self.max_delay_ms)


def fair_shares(limit: int, wanted: Mapping[int, int]) -> dict[int, int]:
    """Share `limit` among members that want so many each. No member gets more than it wants, nothing is left over while
    a member wants more, and the shares of two members differ by more than 1 only if the smaller one wants no more."""
    shares = dict.fromkeys(wanted, 0)
    hungry = sorted((count, member) for member, count in wanted.items() if count > 0)
    left = limit
    for i, (count, member) in enumerate(hungry):
        share = min(count, -(-left // (len(hungry) - i)) if i < len(hungry) - 1 else left)
        shares[member] = share
        left -= share
    return shares


# -- when a batch is made ----------------------------------------------------------------------------------------------
def client_limits(preference: int, maximum: int | None, max_bytes: int) -> Limits:
    """Of a client's consumer. `maximum` None: any number of messages."""
    if preference == 0:
        return Limits(1, max_bytes)
    wait_ms = WAITS_MS[preference]
    return Limits(maximum, max_bytes, _full(maximum) if wait_ms else 1, linger_ms=wait_ms or None)


def query_limits(preference: int, max_messages: int | None, max_bytes: int | None) -> Limits:
    """Of a query whose options say nothing of waiting."""
    wait_ms = WAITS_MS[preference]
    return Limits(max_messages, max_bytes, _full(max_messages) if wait_ms else 1, linger_ms=wait_ms or None)


def _full(maximum: int | None) -> int:
    return min(maximum or FULL_BATCH, FULL_BATCH)


class Admission:
    """Whether the next batch may be made, from plan to plan. Times are in milliseconds, of any clock that never goes back.

    The wait ends when its messages are seen to be gone. While another session has opened their record set, that is not known, and
    the wait continues."""

    def __init__(self, now_ms: float) -> None:
        self._made_ms = self._looked_ms = now_ms  # the batch before, the plan before
        self._due_ms: float | None = None  # when the messages seen now may go, however few
        self._waits_on: Set[int] = frozenset()  # the members that have them

    def allows(
        self, limits: Limits, offered: Mapping[int, int], now_ms: float, *, draining: bool, looked_at: Set[int]
    ) -> bool:
        """`offered`: member -> messages that may be claimed now, of the members `looked_at`. `draining`: what is there is taken,
        however little."""
        available = sum(offered.values())
        if limits.linger_ms is None:
            return limits.allow(available, now_ms - self._made_ms, draining=draining)
        self._looked_ms = now_ms
        if available:
            self._waits_on = frozenset(offered)
            self._due_ms = now_ms + limits.linger_ms if self._due_ms is None else self._due_ms
        elif self._waits_on <= looked_at:
            self._due_ms = None
        due = self._due_ms is not None and now_ms >= self._due_ms
        return available > 0 and (draining or due or available >= limits.min_messages)

    @property
    def lingers(self) -> bool:
        """Messages that were available with the last plan wait for others."""
        return self._due_ms is not None

    def is_due(self, now_ms: float) -> bool:
        """Since the last plan, messages have waited for others as long as they may: plan again."""
        return self._due_ms is not None and self._looked_ms < self._due_ms <= now_ms

    def made(self, now_ms: float) -> None:
        """A batch was made."""
        self._made_ms, self._due_ms = now_ms, None


# -- of which members: how consumers share them ------------------------------------------------------------------------
def preferred(me: str, consumers: Collection[str], members: Collection[int]) -> set[int]:
    """Of which members a consumer takes messages first, so that it seldom meets the others. Each consumer decides by itself, and
    all decide alike: with fewer consumers than members each member has one, with more each consumer has a member. An empty one lets
    it take of the others' members."""
    order, places = sorted({me, *consumers}), sorted(members)
    mine = order.index(me)
    if len(order) > len(places):
        return {places[mine % len(places)]} if places else set()
    return set(places[mine :: len(order)])


# -- how large: the pipeline of a consumer -----------------------------------------------------------------------------
def fitting(sizes: Iterable[int], limit_bytes: int) -> int:
    """How many of the first messages have at most so many bytes together; at least one, however large.

    A consumer claims `messagesMaximum` messages at a time. Together they have at most `maxMessageSize` bytes. The planner chooses
    by the averages of files, which are compressed; the consumer counts what it reads, and returns what is too much.
    """
    used = count = 0
    for size in sizes:
        used += size
        if count and used > limit_bytes:
            break
        count += 1
    return count


def advised_maximum(acknowledged: int, times: int) -> int | None:
    """The advice of the texts, 2 * interval + 1, for an application that acknowledged so many messages in so many calls. None
    before the first."""
    interval = -(-acknowledged // times) if times else 0
    return 2 * interval + 1 if interval else None


# -- a query's progress ------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class QueryProgress:
    """What a query has claimed and acknowledged, in a record of its own. `claimed` is the number of the newest claim ever,
    `acknowledged` the newest claim that Spark has in its commit log. `trial` is of the open claim, once its batch was replayed or
    has failed. `left` are the messages of the acknowledged batch that its acknowledgement has not finished: they were revoked, set
    aside or withheld.

    A query holds this record for life, and its handle takes part in every write of the query's claims and acknowledgements.
    So of two instances of one query, as a copied Spark checkpoint makes them, only one can commit anything.

    A trial (poison.py) is stored here and not in the claim's record sets: a failure has to be noted at once,
    whoever has opened those.
    """

    claimed: int = 0
    acknowledged: str = ""
    trial: Trial | None = None
    left: Messages = field(default_factory=dict)

    def with_acknowledged(self, claim: str, batch: Messages | None = None) -> QueryProgress:
        """Spark has the claim in its commit log; nothing of its `batch` is finished yet."""
        if claim_number(claim) <= claim_number(self.acknowledged):
            return self
        claimed = max(self.claimed, claim_number(claim))
        return replace(self, claimed=claimed, acknowledged=claim, left=dict(batch or {}))

    def with_finished(self, claim: str, messages: Messages) -> QueryProgress:
        """The acknowledgement of the claim finishes these messages of its batch."""
        if claim != self.acknowledged or not messages:
            return self
        return replace(self, left=without(self.left, messages))

    def has_acknowledged(self, claim: str) -> bool:
        return claim_number(claim) <= claim_number(self.acknowledged)

    def is_behind(self, claim: str) -> bool:
        """A checkpoint that ends with `claim` is older than what this query has acknowledged. Claims of early versions had no
        numbers: nothing is known of them."""
        numbered = not claim or claim_number(claim) > 0
        return numbered and claim_number(claim) < claim_number(self.acknowledged)

    def knows(self, claim: str) -> bool:
        """False: the claim was made by a query that had come further than this one."""
        return claim_number(claim) <= self.claimed

    def to_bytes(self) -> bytes:
        value: dict[str, object] = {"v": 2, "claimed": self.claimed, "acknowledged": self.acknowledged}
        if self.trial is not None:
            narrowed = self.trial.withheld or self.trial.finished
            value |= {"v": FORMAT_VERSION if narrowed else 2, "trial": trial_to_json(self.trial)}
        if self.left:
            value["left"] = {str(member): ranges.to_json() for member, ranges in sorted(self.left.items())}
        return json.dumps(value, separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(data: bytes | None, name: str) -> QueryProgress:
        """None is a new query. Raises RecordSetError or FormatVersionError with `name`."""
        if data is None:
            return QueryProgress()
        try:
            value = json.loads(data)
            if value["v"] > FORMAT_VERSION:
                raise FormatVersionError(
                    f"the progress of {name} has format version {value['v']}, this spark-jms reads up to {FORMAT_VERSION}: "
                    "install a later spark-jms"
                )
            trial = trial_from_json(value["trial"]) if "trial" in value else None
            left = {int(member): Ranges.from_json(ranges) for member, ranges in value.get("left", {}).items()}
            return QueryProgress(int(value["claimed"]), str(value["acknowledged"]), trial, left)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordSetError(
                f"the progress of {name} in the store cannot be read ({error!r}): restore the store from a copy, or start "
                "with a fresh checkpointLocation"
            ) from error
