"""Redelivery: the states of a message, when a claim is revoked, and when each of its messages comes again, or comes no longer.

A claim whose session died is revoked at once, unless its consumer can replay the batch: then it is in doubt until the
consumer comes back or the in-doubt timeout is over. A revoked message goes to another consumer, flagged and counted.

`Delays` maps a time to the available messages that no consumer gets before it.

**Two numbers.** A claim has more messages than its consumer has shown to the application, and a consumer that dies does not tell
how many. So `DeliveryCounts` has, of each unfinished message, how often it was *shown* for certain, and how often besides it was
*perhaps* shown:

    what happens                                              shown   perhaps   is claimed alone next time
    ------------                                              -----   -------   --------------------------
    a live consumer gives it back that has delivered it       + 1               no
    a live consumer gives it back that has not                                  as before
    a transaction with it is rolled back                      + 1               no
    the claim's session died: the first message in the        + 1               yes
    order of delivery that is not acknowledged
    the claim's session died: any other message                       + 1       yes
    a query's claim is revoked: each message, since tasks     + 1               no
    get all of them at once
    the store was restored from a copy                                + 1       as before

The flag and the delivery count of a message cover both numbers: an application may have seen it. The redelivery limit and the
redelivery delay go by what was shown: a message that no application has seen is never discarded, moved or held back because
others of its claim killed their consumers. A claim of a message that is claimed *alone* has no other message (a unit of work
whole), so what it does to its consumer is counted for it and for no other. It is claimed alone until it is acknowledged, or a
live consumer gives it back that has delivered it: claimed with others, a message that kills its consumers could stand behind
them, and not be counted, each second time.

A message that was shown more often than the destination's redelivery limit allows (limit 0: once) goes to the error
destination, or is discarded where there is none.

Features: C5, C8, C9 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.messages.arrays import arrow_array
from spark_jms.core.messages.carried import NOTHING_CARRIED, CarriedCounts
from spark_jms.core.messages.chunked_ranges import NONE, ChunkedRanges
from spark_jms.core.messages.properties import TYPES_PROPERTY
from spark_jms.core.messages.ranges import EMPTY, Ranges, union
from spark_jms.core.messages.types import map_column, map_rows
from spark_jms.settings.destination import UNLIMITED

_SHORTEST_STEP_MS, _STEPS = 100, 64
MAX_ORDER = 100
Deliveries = Mapping[int, ChunkedRanges]
Delays = Mapping[int, ChunkedRanges]  # ms since 1970 -> messages


# -- the states of a message -------------------------------------------------------------------------------------------
class MessageState(Enum):
    """Of a message in a record set.

    AVAILABLE   a consumer may claim it
    CLAIMED     a consumer has it, and that consumer's session lives
    IN_DOUBT    the session died, but the consumer (a Spark query) can come back and replay the same batch
    MOVING      a transfer takes it to another destination; only the transfer's end changes it
    PLEDGED     a transaction acknowledges it if it commits; only the transaction's end changes it
    DONE        acknowledged, expired, refused by a topic's selector, dropped by a limit, purged or lost; final
    """

    __hash__ = object.__hash__  # Enum's own runs in Python; every change looks a row up

    AVAILABLE = auto()
    CLAIMED = auto()
    IN_DOUBT = auto()
    MOVING = auto()
    PLEDGED = auto()
    DONE = auto()


class MessageEvent(Enum):
    __hash__ = object.__hash__

    CLAIM = auto()
    ACKNOWLEDGE = auto()
    RETURN = auto()  # no application has seen it: a release of prefetched messages, a claim that Spark never logged
    REDELIVER = auto()  # an application may have seen it: a release after delivery, a revoked claim
    DOUBT = auto()  # the session of the claim died
    RECOVER = auto()  # the consumer is back, or its session was only slow
    SKIP = auto()  # refused, dropped, purged, missed or lost
    EXPIRE = auto()  # its time is over, and no consumer has it
    MOVE = auto()  # the intent of a transfer is durable
    ARRIVE = auto()  # all targets of the transfer have it
    REFUSE = auto()  # no target has it, and none will
    PLEDGE = auto()  # a transaction that is not decided will acknowledge it if it commits


class MessageTransition(NamedTuple):
    """`redelivers`: the next delivery is flagged and counted. `RecordSet._move` looks every change up in TRANSITIONS."""

    to: MessageState
    redelivers: bool = False


_S, _E = MessageState, MessageEvent
TRANSITIONS: Mapping[tuple[MessageState, MessageEvent], MessageTransition] = {
    (_S.AVAILABLE, _E.CLAIM): MessageTransition(_S.CLAIMED),
    (_S.AVAILABLE, _E.SKIP): MessageTransition(_S.DONE),
    (_S.AVAILABLE, _E.EXPIRE): MessageTransition(_S.DONE),
    (_S.CLAIMED, _E.ACKNOWLEDGE): MessageTransition(_S.DONE),
    (_S.CLAIMED, _E.RETURN): MessageTransition(_S.AVAILABLE),
    (_S.CLAIMED, _E.REDELIVER): MessageTransition(_S.AVAILABLE, redelivers=True),
    (_S.CLAIMED, _E.DOUBT): MessageTransition(_S.IN_DOUBT),
    (_S.CLAIMED, _E.RECOVER): MessageTransition(_S.CLAIMED),
    (_S.CLAIMED, _E.MOVE): MessageTransition(_S.MOVING),
    (_S.CLAIMED, _E.PLEDGE): MessageTransition(_S.PLEDGED),
    (_S.IN_DOUBT, _E.ACKNOWLEDGE): MessageTransition(_S.DONE),
    (_S.IN_DOUBT, _E.RETURN): MessageTransition(_S.AVAILABLE),
    (_S.IN_DOUBT, _E.REDELIVER): MessageTransition(_S.AVAILABLE, redelivers=True),
    (_S.IN_DOUBT, _E.RECOVER): MessageTransition(_S.CLAIMED),
    (_S.MOVING, _E.ARRIVE): MessageTransition(_S.DONE),
    (_S.MOVING, _E.REFUSE): MessageTransition(_S.AVAILABLE, redelivers=True),
    (_S.PLEDGED, _E.ACKNOWLEDGE): MessageTransition(_S.DONE),
    (_S.PLEDGED, _E.REDELIVER): MessageTransition(_S.AVAILABLE, redelivers=True),
}


# -- claims and deliveries ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Claim:
    """`session` guards the claim. A `replayable` one belongs to a consumer that can come back and ask for the same batch;
    others wait `in_doubt_timeout_ms` for it, as its own consumer wished (None: as the destination says).

    `order` has what the consumer shows to the application at a time, one after the other: single messages, or units of work whole.
    None: message by message, in the order of the sequences. It has MAX_ORDER entries at most, and none where the consumer shows
    messages of another member first; what comes behind its end is not known."""

    id: str
    consumer: str
    session: str
    picks: Ranges
    made_ms: int
    replayable: bool
    in_doubt_since_ms: int = 0  # 0 = not in doubt: its session lives, as far as the record set knows
    in_doubt_timeout_ms: int | None = None
    order: tuple[Ranges, ...] | None = None

    @property
    def shown_first(self) -> Ranges:
        """What an application has for certain got of these messages, if it got any."""
        if self.order is None:
            return self.picks.take(1)
        return next((found for one in self.order if (found := one & self.picks)), EMPTY)

    @property
    def state(self) -> MessageState:
        return MessageState.IN_DOUBT if self.in_doubt_since_ms else MessageState.CLAIMED


def event_of_session(
    claim: Claim, live_sessions: Set[str], now_ms: int, in_doubt_timeout_ms: int
) -> MessageEvent | None:
    """What the life or death of its session does to a claim; None when nothing changes. `in_doubt_timeout_ms` is the
    destination's, for claims without one of their own."""
    in_doubt = claim.state is MessageState.IN_DOUBT
    if claim.session in live_sessions:
        return MessageEvent.RECOVER if in_doubt else None
    since_ms = claim.in_doubt_since_ms or now_ms
    own_ms = claim.in_doubt_timeout_ms
    if not claim.replayable or now_ms - since_ms >= (in_doubt_timeout_ms if own_ms is None else own_ms):
        return MessageEvent.REDELIVER
    return None if in_doubt else MessageEvent.DOUBT


def counted(deliveries: Deliveries, picks: Ranges) -> Deliveries:
    """After one more delivery of `picks` that was not acknowledged."""
    counts: dict[int, ChunkedRanges] = dict(deliveries)
    first_time = picks
    for times in sorted(deliveries, reverse=True):  # from above: a message rises by one
        again = deliveries[times] & picks
        if again:
            first_time = first_time - again
            counts[times] = counts[times] - again
            counts[times + 1] = counts.get(times + 1, NONE) | again
    if first_time:
        counts[1] = counts.get(1, NONE) | first_time
    return {times: ranges for times, ranges in counts.items() if ranges}


def forgotten(numbered: Mapping[int, ChunkedRanges], picks: Ranges) -> Mapping[int, ChunkedRanges]:
    """Deliveries without `picks`, which are done; or delays without those that are claimed or done."""
    if not numbered:
        return numbered
    return {number: left for number, ranges in numbered.items() if (left := ranges - picks)}


@dataclass(frozen=True)
class DeliveryCounts:
    """Of the unfinished messages that were delivered without being acknowledged: how often each was shown to an application, how
    often besides it was perhaps shown, and which of them are claimed alone. A message in no entry has not been delivered yet."""

    shown: Deliveries = field(default_factory=dict)
    perhaps: Deliveries = field(default_factory=dict)
    alone: ChunkedRanges = NONE

    def __bool__(self) -> bool:
        return bool(self.shown or self.perhaps)

    def sets(self) -> tuple[ChunkedRanges, ...]:
        return (*self.shown.values(), *self.perhaps.values(), self.alone)

    def delivered(self, shown: Ranges) -> DeliveryCounts:
        """`shown` were delivered once more, for certain, and harmed no consumer."""
        if not shown:
            return self
        return replace(self, shown=counted(self.shown, shown), alone=self.alone - shown if self.alone else NONE)

    def died(self, shown: Ranges, rest: Ranges) -> DeliveryCounts:
        """The consumer died: it had delivered `shown` for certain, and `rest` perhaps."""
        after = self.perhaps_delivered(rest, alone=True)
        return replace(after, shown=counted(after.shown, shown), alone=after.alone | shown) if shown else after

    def perhaps_delivered(self, picks: Ranges, *, alone: bool) -> DeliveryCounts:
        """`picks` were delivered once more, or not."""
        if not picks:
            return self
        return replace(self, perhaps=counted(self.perhaps, picks), alone=self.alone | picks if alone else self.alone)

    def without(self, picks: Ranges) -> DeliveryCounts:
        """`picks` are done."""
        if not self:
            return self
        alone = self.alone - picks if self.alone else NONE
        return DeliveryCounts(forgotten(self.shown, picks), forgotten(self.perhaps, picks), alone)

    def beyond(self, limit: int) -> Ranges:
        """The messages that must not be delivered again."""
        if limit == UNLIMITED or not self.shown:
            return EMPTY
        return union(ranges.all() for times, ranges in self.shown.items() if times > limit)

    def counts(self, picks: Ranges) -> dict[int, Ranges]:
        """The delivery count (above 1) that these messages get when they are delivered now -> those of `picks`."""
        if not self.perhaps:
            hits = {times + 1: ranges & picks for times, ranges in self.shown.items()}
            return {count: found for count, found in sorted(hits.items()) if found}
        made: dict[int, Ranges] = {}
        for shown, part in _parts(self.shown, picks):
            for perhaps, found in _parts(self.perhaps, part):
                if shown + perhaps:
                    made[shown + perhaps + 1] = made.get(shown + perhaps + 1, EMPTY) | found
        return dict(sorted(made.items()))

    def carried(self, picks: Ranges) -> CarriedCounts:
        """What these messages bring along to another member, by their places among `picks`."""
        if not self or not picks:
            return NOTHING_CARRIED
        numbers = picks.numbers()

        def places(some: Ranges) -> Ranges:
            return Ranges.from_numbers(pc.add(pc.index_in(some.numbers(), value_set=numbers), 1)) if some else some

        shown, perhaps = (
            {times: places(found) for times, ranges in one.items() if (found := ranges & picks)}
            for one in (self.shown, self.perhaps)
        )
        return CarriedCounts(shown, perhaps, places(self.alone & picks))

    def raised(self, carried: CarriedCounts) -> DeliveryCounts:
        """With what messages have brought along. The same when all of it is counted already."""
        shown, new = _at_least(self.shown, carried.shown)
        perhaps, more = _at_least(self.perhaps, carried.perhaps)
        new = new | more
        if not new:
            return self
        alone = carried.alone & new
        return DeliveryCounts(shown, perhaps, self.alone | alone if alone else self.alone)


NOT_DELIVERED = DeliveryCounts()


def _parts(deliveries: Deliveries, picks: Ranges) -> Iterator[tuple[int, Ranges]]:
    """`picks` by their number, 0 included."""
    rest = picks
    for times, ranges in deliveries.items():
        if found := ranges & picks:
            rest = rest - found
            yield times, found
    if rest:
        yield 0, rest


def delay_end_ms(now_ms: int, delay_ms: int) -> int:
    """When a delay that begins now ends; 0: at once. Ends are rounded up by at most 0.1 s or 2 % of the delay, so that a
    record set has few of them."""
    if delay_ms <= 0:
        return 0
    step = max(_SHORTEST_STEP_MS, delay_ms // _STEPS)
    return -(-(now_ms + delay_ms) // step) * step


def delayed(delays: Delays, picks: Ranges, until_ms: int) -> Delays:
    """With `picks` kept back until then. They have no other delay."""
    return {**delays, until_ms: delays.get(until_ms, NONE) | picks} if until_ms and picks else delays


# -- what an error destination keeps of a message ----------------------------------------------------------------------
FROM, POSITION, REASON = "JMS_JMSQ_ErrorFrom", "JMS_JMSQ_ErrorPosition", "JMS_JMSQ_ErrorReason"
DELIVERIES, TIME, EXPIRATION = "JMS_JMSQ_ErrorDeliveries", "JMS_JMSQ_ErrorTime", "JMS_JMSQ_ErrorExpiration"
_TYPES = {DELIVERIES: "int", TIME: "long", EXPIRATION: "long"}
_OURS = (FROM, POSITION, REASON, DELIVERIES, TIME, EXPIRATION)
SET_ASIDE_FROM, SET_ASIDE_REASON, SET_ASIDE_TYPES = (
    "JMS_JMSQ_SetAsideFrom",
    "JMS_JMSQ_SetAsideReason",
    "JMS_JMSQ_SetAsideTypes",
)
_ADDED = arrow_array([*_OURS, SET_ASIDE_FROM, SET_ASIDE_REASON, SET_ASIDE_TYPES], pa.string())
_ADDED_TYPE = rf"(^|,)({'|'.join(_TYPES)}):[a-z]+"


@dataclass(frozen=True)
class MessageFailure:
    """Why messages of one member move to an error destination. `label` names the record set they come from.

    The error destination keeps it beside each message, as typed properties, so that selectors, SQL and `jmsq redrive` can use it:

        JMS_JMSQ_ErrorFrom         the destination it comes from
        JMS_JMSQ_ErrorPosition     destination/subscription/member#sequence
        JMS_JMSQ_ErrorReason       text
        JMS_JMSQ_ErrorDeliveries   int: how often it was delivered there
        JMS_JMSQ_ErrorTime         long: when it was moved, ms since 1970
        JMS_JMSQ_ErrorExpiration   long: its JMSExpiration, if it had one; in the error destination it does not expire
    """

    destination: str
    label: str
    reason: str
    time_ms: int


def described(
    batch: pa.RecordBatch, sequences: Sequence[int], deliveries: Sequence[int], failure: MessageFailure
) -> pa.RecordBatch:
    """Rows as the error destination keeps them. `batch` has the columns `properties` and JMSExpiration."""
    properties = []
    for row, sequence, count, expiration in zip(
        map_rows(batch.column("properties")),
        sequences,
        deliveries,
        batch.column("JMSExpiration").to_pylist(),
        strict=True,
    ):
        added = {
            FROM: failure.destination,
            POSITION: f"{failure.label}#{sequence}",
            REASON: failure.reason,
            DELIVERIES: str(count),
            TIME: str(failure.time_ms),
            **({EXPIRATION: str(expiration)} if expiration else {}),
        }
        properties.append(_with_types({**without_failure(row or {}), **added}, added))
    return _replaced(batch, properties, pa.array([0] * batch.num_rows, pa.int64()))


def redriven(batch: pa.RecordBatch, now_ms: int) -> pa.RecordBatch:
    """The rows as they were before they failed. One whose expiration has passed meanwhile gets none: a person has decided
    that it shall be delivered."""
    properties, expirations = [], []
    for row in map_rows(batch.column("properties")):
        known = row or {}
        expiration = int(known.get(EXPIRATION, 0))
        expirations.append(expiration if expiration > now_ms else 0)
        properties.append(without_failure(known))
    return _replaced(batch, properties, pa.array(expirations, pa.int64()))


def without_failure(properties: Mapping[str, str]) -> dict[str, str]:
    """Without the properties of an error destination and their types."""
    kept = {name: text for name, text in properties.items() if name not in _OURS}
    if TYPES_PROPERTY in kept:
        types = [item for item in kept[TYPES_PROPERTY].split(",") if item.split(":")[0] not in _OURS]
        kept[TYPES_PROPERTY] = ",".join(types)
        if not types:
            del kept[TYPES_PROPERTY]
    return kept


def added_bytes(rows: pa.RecordBatch) -> pa.Int64Array | None:
    """How many bytes of each row's properties are of an error destination, or of `jmsq-set-aside`; None: none."""
    properties = rows.column("properties")
    keys, values = properties.keys, properties.items
    ours = pc.is_in(keys, _ADDED)
    if not pc.any(ours, min_count=0).as_py():
        return None
    names, texts = _lengths(keys), _lengths(values)
    types = pc.utf8_ltrim(pc.replace_substring_regex(values, _ADDED_TYPE, ""), ",")
    left = _lengths(types)
    of_types = pc.add(pc.subtract(texts, left), pc.if_else(pc.equal(left, 0), names, 0))
    is_types = pc.equal(keys, TYPES_PROPERTY)
    by_entry = pc.if_else(ours, pc.add(names, texts), pc.if_else(is_types, of_types, 0))
    through = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(by_entry)]).take(properties.offsets)
    by_row = pc.subtract(through[1:], through[:-1])
    return pc.if_else(properties.is_valid(), by_row, 0)


def _lengths(texts: pa.StringArray) -> pa.Int64Array:
    return pc.cast(pc.fill_null(pc.binary_length(texts), 0), pa.int64())


def _with_types(properties: dict[str, str], added: Mapping[str, str]) -> dict[str, str]:
    declared = [item for item in properties.get(TYPES_PROPERTY, "").split(",") if item]
    declared += [f"{name}:{kind}" for name, kind in _TYPES.items() if name in added]
    return {**properties, TYPES_PROPERTY: ",".join(declared)}


def _replaced(batch: pa.RecordBatch, properties: list[dict[str, str]], expirations: pa.Array) -> pa.RecordBatch:
    rows = map_column([row or None for row in properties])
    for name, column in (("properties", rows), ("JMSExpiration", expirations)):
        batch = batch.set_column(batch.schema.get_field_index(name), name, column)
    return batch


def _at_least(deliveries: Deliveries, carried: Mapping[int, Ranges]) -> tuple[Deliveries, Ranges]:
    """The deliveries with these numbers where they are lower, and where they were."""
    counts, risen = dict(deliveries), EMPTY
    for times, picks in carried.items():
        low = picks - union(ranges & picks for known, ranges in deliveries.items() if known >= times)
        if low:
            counts = dict(forgotten(counts, low))
            counts[times] = counts.get(times, NONE) | low
            risen = risen | low
    return counts, risen
