"""A pledge: messages of a claim that a transaction acknowledges if its coordinator decides so. transaction.py has the theory.

Features: T16 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_jms.core.ranges import Ranges
from spark_jms.core.transfer import Ticket


@dataclass(frozen=True)
class Pledge:
    """`coordinator` is the record in the domain's home store that has the decision on `ticket`. `consumer` and `claim` stand in
    the acknowledgement."""

    ticket: Ticket
    coordinator: str
    picks: Ranges
    consumer: str
    claim: str
    made_ms: int

    @property
    def key(self) -> str:
        """Unique in a record set."""
        return f"{self.ticket.nonce}-{self.ticket.slot}-{self.ticket.number}/{self.claim}"


def pledge_to_json(pledge: Pledge) -> list[Any]:
    ticket = pledge.ticket
    return [
        [ticket.nonce, ticket.slot, ticket.number],
        pledge.coordinator,
        pledge.picks.to_json(),
        pledge.consumer,
        pledge.claim,
        pledge.made_ms,
    ]


def pledge_from_json(value: list[Any]) -> Pledge:
    """Raises ValueError, IndexError or TypeError."""
    (nonce, slot, number), coordinator, picks, consumer, claim, made_ms = value
    return Pledge(
        Ticket(str(nonce), int(slot), int(number)),
        str(coordinator),
        Ranges.from_json(picks),
        str(consumer),
        str(claim),
        int(made_ms),
    )


def with_ticket(pledges: Mapping[str, Pledge], ticket: Ticket) -> list[Pledge]:
    """Those of one transaction."""
    return [pledge for pledge in pledges.values() if pledge.ticket == ticket]
