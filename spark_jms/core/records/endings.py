"""How a message ended, told by the consumer in its row of the acknowledgement table. Pure.

A part of spark-jms that ends messages has a name of its own, which stands in the row where an application's consumer would stand.
`kind_of` is the table of these names; any other name is a consumer's:

    consumer             kind       what ended the message
    --------             ----       ----------------------
    (any other)          finished   a consumer acknowledged it, alone or in a transaction
    message expiration   expired    its time was over; claim `expired-discard`, `expired-log`, or that of the redirecting transfer
    subscription limit   dropped    the subscription had more messages than its limit
    redelivery limit     dropped    it was delivered too often: moved to the error destination, or discarded
    poison isolation     dropped    its batches failed: the same
    unit of work         dropped    it is no part of its unit of work: the same
    jmsq move            moved      an administrator took it elsewhere
    jmsq redrive         moved      the same, out of an error destination
    jmsq forward         moved      it was forwarded to another destination or member
    set aside            aside      it cannot be decoded: moved to the queue jmsq-set-aside
    jmsq purge           purged     an administrator dropped it
    message skip         skipped    it was no message of the subscription, or is lost: `SkipReason`
    subscription end     ended      the subscription was dropped, or was not durable and over

A transfer or a transaction writes its other end behind the claim: `<claim> to <target>`, `<claim> in <ticket>`. `split_claim` takes
both apart.

**Hulls.** What a selector refuses is scattered: every second message of a topic would fill the outbox of a record set, and a full
outbox stops consumers. So a row of `message skip` or `subscription end` with more than MAX_HULL_RANGES ranges keeps the first and the
last of its messages alone, and how many they are. The count and the row's position stand behind the reason in the claim:
`refused/12/7`. The table's own row has the count in `messages`; where `ranges` holds more than that, it is a hull.

Features: C5, T3, T6 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from spark_jms.core.destinations.subscriptions import LIMIT
from spark_jms.core.messages.ranges import Ranges
from spark_jms.settings.fields import DISCARD, LOG, LifeEvent

PURGER, LIMITER, ISOLATION, JUDGE = "jmsq purge", "redelivery limit", "poison isolation", "unit of work"
MOVER, REDRIVER, FORWARDER = "jmsq move", "jmsq redrive", "jmsq forward"
EXPIRER, ASIDE = "message expiration", "set aside"
SKIPPER, ENDER = "message skip", "subscription end"
EXPIRED_CLAIMS: Mapping[str, str] = {DISCARD: "expired-discard", LOG: "expired-log"}  # by policy
FINISHED, EXPIRED, DROPPED, MOVED = "finished", "expired", "dropped", "moved"
SET_ASIDE, PURGED, SKIPPED, ENDED = "aside", "purged", "skipped", "ended"
KINDS: Mapping[str, str] = {
    EXPIRER: EXPIRED,
    LIMIT: DROPPED,
    LIMITER: DROPPED,
    ISOLATION: DROPPED,
    JUDGE: DROPPED,
    MOVER: MOVED,
    REDRIVER: MOVED,
    FORWARDER: MOVED,
    ASIDE: SET_ASIDE,
    PURGER: PURGED,
    SKIPPER: SKIPPED,
    ENDER: ENDED,
}
REFUSED, MISSED, LOST = "refused", "missed", "lost"  # why messages were skipped
DROPPED_SUBSCRIPTION, OVER_SUBSCRIPTION = "dropped", "over"  # why a subscription ended
MAX_HULL_RANGES = 16
_TO, _IN = " to ", " in "


class Stamp(NamedTuple):
    """Who ends messages, by the epoch in which it holds their record set, and when."""

    epoch: int
    now_ms: int


class SkipReason(NamedTuple):
    """Why messages are finished without a consumer. `event` and `detail` go to the life-cycle log."""

    name: str
    event: LifeEvent
    detail: str = ""


SELECTOR_REFUSED = SkipReason(REFUSED, LifeEvent.REFUSED)
SERVER_WAS_DOWN = SkipReason(MISSED, LifeEvent.SKIPPED, "sent while its server was down")
FILES_ARE_LOST = SkipReason(LOST, LifeEvent.SKIPPED, "lost")
LOST_WITH_THE_POWER = SkipReason(LOST, LifeEvent.SKIPPED, "lost with the power")


class HullClaim(NamedTuple):
    """The claim of a row of SKIPPER or ENDER. `position`: of the row, in its record set."""

    reason: str
    messages: int
    position: int

    def __str__(self) -> str:
        return f"{self.reason}/{self.messages}/{self.position}"

    @staticmethod
    def parse(claim: str) -> HullClaim:
        """Raises ValueError."""
        reason, messages, position = claim.split("/")
        return HullClaim(reason, int(messages), int(position))


def messages_of(consumer: str, claim: str, messages: int) -> int:
    """Of a row of the table that has so many `messages`. An earlier release that wrote a hull out of an outbox counted all of it."""
    if not counts_apart(consumer):
        return messages
    with suppress(ValueError):
        return HullClaim.parse(claim).messages
    return messages


def kind_of(consumer: str) -> str:
    return KINDS.get(consumer, FINISHED)


def counts_apart(consumer: str) -> bool:
    """The rows of this consumer may be hulls, and have a HullClaim."""
    return consumer in (SKIPPER, ENDER)


def fold_key(consumer: str, claim: str) -> str:
    """Rows may become one row that have the same key: those of applications' consumers, those of one part of spark-jms, and of
    skipped messages those of one reason."""
    if consumer not in KINDS:
        return ""
    return f"{consumer}/{claim.split('/')[0]}" if counts_apart(consumer) else consumer


def hull(picks: Ranges) -> Ranges:
    """The messages themselves while they are few ranges, else all from the first to the last."""
    return picks if len(picks) <= MAX_HULL_RANGES else Ranges.of((picks.first, picks.last))


def claim_to(claim: str, target: str) -> str:
    """Of messages that a transfer has taken to `target`."""
    return f"{claim}{_TO}{target}"


def claim_in(claim: str, transaction: str) -> str:
    """Of messages that were acknowledged in a transaction."""
    return f"{claim}{_IN}{transaction}"


def split_claim(consumer: str, claim: str) -> tuple[str, str]:
    """The claim, and its detail: a target, a transaction, a policy or a reason; "" where there is none."""
    if counts_apart(consumer):
        return "", claim.split("/")[0]
    for middle in (_TO, _IN):
        if middle in claim:
            before, _, behind = claim.partition(middle)
            return before, behind
    if consumer == EXPIRER and claim in EXPIRED_CLAIMS.values():
        return "", claim.removeprefix("expired-")
    return claim, ""
