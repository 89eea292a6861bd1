"""A claim: messages that a consumer has taken and not acknowledged.

Features: C8, C9 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_jms.core.message_state import MessageState
from spark_jms.core.ranges import EMPTY, Ranges

MAX_ORDER = 100


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
