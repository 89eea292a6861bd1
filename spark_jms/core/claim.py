"""A claim: messages that a consumer has taken and not acknowledged (C8, C9)."""

from __future__ import annotations

from dataclasses import dataclass

from spark_jms.core.message_state import MessageState
from spark_jms.core.ranges import Ranges


@dataclass(frozen=True)
class Claim:
    """`session` guards the claim. A `replayable` one belongs to a consumer that can come back and ask for the same batch;
    others wait `in_doubt_timeout_ms` for it, as its own consumer wished (None: as the destination says)."""

    id: str
    consumer: str
    session: str
    picks: Ranges
    made_ms: int
    replayable: bool
    in_doubt_since_ms: int = 0  # 0 = not in doubt: its session lives, as far as the record set knows
    in_doubt_timeout_ms: int | None = None

    @property
    def state(self) -> MessageState:
        return MessageState.IN_DOUBT if self.in_doubt_since_ms else MessageState.CLAIMED
