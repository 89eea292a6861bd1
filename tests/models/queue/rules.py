"""What the queue of a seed is declared with (C8, C12, D5, T6). A part of the seeds has a plain queue. The rules have chances of
their own, so that the other choices of a seed do not depend on them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from spark_jms.core.destinations.destination import Destination
from spark_jms.settings.destination import UNLIMITED
from spark_jms.settings.fields import DISCARD, REDIRECT

NARROW_BYTES, WIDE_BYTES = 1, 10_000  # a text has one to three, its unit of order one


@dataclass(frozen=True)
class Rules:
    redelivery_limit: int = UNLIMITED
    redelivery_delay_ms: int = 0
    keeps_failed: bool = False  # there is an error destination, the queue aside
    in_doubt_timeout_ms: int = 60_000
    expires: bool = False  # some messages do
    redirects: bool = False  # expired messages, to the error destination
    sorts: bool = False  # by priority
    forwards: bool = False  # from members without consumers
    narrow: bool = False  # the error destination takes small messages alone, at times

    @staticmethod
    def of(seed: int) -> Rules:
        chance = random.Random(f"rules {seed}")
        if chance.random() < 0.25:
            return Rules()
        keeps_failed = chance.random() < 0.5
        return Rules(
            redelivery_limit=chance.choice([UNLIMITED, 0, 0, 1]),
            redelivery_delay_ms=chance.choice([0, 0, 5_000, 60_000]),
            keeps_failed=keeps_failed,
            in_doubt_timeout_ms=chance.choice([60_000, 5_000]),
            expires=chance.random() < 0.5,
            redirects=keeps_failed and chance.random() < 0.5,
            sorts=chance.random() < 0.25,
            forwards=chance.random() < 0.3,
            narrow=keeps_failed and chance.random() < 0.5,
        )

    def orders(self, name: str, members: int, aside: str) -> Destination:
        return Destination(
            name,
            "queue" if members == 1 else "distributed-queue",
            members,
            file_grace_ms=0,  # clean-up deletes files that left the log at once
            redelivery_limit=self.redelivery_limit,
            redelivery_delay_ms=self.redelivery_delay_ms,
            in_doubt_timeout_ms=self.in_doubt_timeout_ms,
            expiration_policy=REDIRECT if self.redirects else DISCARD,
            destination_keys=("JMSPriority descending",) if self.sorts else (),
            forward_delay_ms=1 if self.forwards and members > 1 else None,
            error_destination=aside if self.keeps_failed else None,
        )

    def aside(self, name: str, *, narrow: bool | None = None) -> Destination:
        """`narrow` None: as it is at first."""
        most = NARROW_BYTES if (self.narrow if narrow is None else narrow) else WIDE_BYTES
        return Destination(name, "queue", 1, file_grace_ms=0, max_message_bytes=most)
