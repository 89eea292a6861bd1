"""A consumer that returns the sequences of what it gets, at a time that the test sets."""

from __future__ import annotations

from typing import Any

from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.client import Context
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.core.selector import Selector
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms
from spark_jms.testing.inside import members_of, records_of


class Reader:
    """A client with a clock of its own, which acknowledges what it receives with the next `take`, or keeps it."""

    def __init__(
        self, context: Context, selector: str | None = None, name: str = "r", where: tuple[str, str] = ("orders", "-")
    ) -> None:
        self.context, self.name, self.now_ms = context, name, now_ms() + 10
        self.where = where
        settings = ConsumerSettings(Selector.parse(selector), replayable=False)
        self.subscriber = Subscriber(
            Domain(context.root), records_of(context), *where, name, settings, clock_ms=lambda: self.now_ms
        )
        members_of(self.subscriber).monotonic_s = lambda: self.now_ms / 1000
        self.kept: list[Batch] = []

    def take(self, count: int | None = None, *, keep: bool = False) -> list[int]:
        """The sequences of all batches until there is none."""
        got: list[int] = []
        self.now_ms += 2_000  # a selector's consumer returns to a member that it has left to others
        while (batch := self.subscriber.next_batch(Batch(self.name), Limits(max_messages=count))) or self.more():
            if batch is not None:
                got += batch.members[0].picks.numbers().tolist()
                if keep:
                    self.kept.append(batch)
                else:
                    self.subscriber.acknowledge({batch.claim: {0: batch.members[0].picks}})
            if count is not None:
                break
        return got

    def parts(self) -> dict[str, dict[int, Ranges]]:
        """What it has kept, by claim."""
        return {b.claim: {member: pick.picks for member, pick in b.members.items()} for b in self.kept if b.claim}

    def more(self) -> bool:
        return self.subscriber.has_more()


def put(context: Context, *messages: dict[str, Any], where: str = "orders") -> None:
    for n, message in enumerate(messages):
        context.producer(where).send(text=str(n), **message)
