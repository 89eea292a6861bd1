"""What tests of expiration share: a domain, its consumers and its search two hours later (T6)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spark_jms import connect
from spark_jms.admin.statistics import collect
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.failures.expiration import ExpirationScan
from spark_jms.claims.servers.stores import not_durable
from spark_jms.client.context.context import Context
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.log.tables.storage import now_ms
from spark_jms.testing import memory_domain
from spark_jms.testing.domain import wait_until
from spark_jms.testing.inside import domain_of, records_of

HOUR_MS = 3_600_000
REDIRECTED = {"kind": "queue", "expiration_policy": "Redirect", "error_destination": "failed"}
DESTINATIONS: dict[str, Any] = {
    "plain": "queue",
    "logged": {"kind": "queue", "expiration_policy": "Log", "expiration_logging_policy": "JMSPriority, %properties%"},
    "two": {"kind": "distributed-queue", "members": 2},
    "moved": REDIRECTED,
    "works": {"kind": "queue", "unit_of_work_handling_policy": "SingleMessageDelivery"},
    "news": {"kind": "topic", "expiration_policy": "Log"},
    "failed": "queue",
}


@contextmanager
def opened_domain() -> Iterator[Context]:
    with memory_domain(**DESTINATIONS) as root, connect(root, housekeeping=False) as opened:
        yield opened


class Search:
    """The scan of one destination, whose time the test sets: two hours later, when what lives for an hour is over."""

    def __init__(self, context: Context, destination: str) -> None:
        self.now_ms, self.monotonic_s = now_ms() + 2 * HOUR_MS, 0.0
        self.table = table = domain_of(context).log(destination)
        table.refresh()
        self.scan = ExpirationScan(
            domain_of(context),
            records_of(context),
            table,
            lambda: not_durable(records_of(context), table.snapshot.table_id),
            lambda: self.now_ms,
            lambda: self.monotonic_s,
        )

    def run(self) -> int:
        return self.scan.run(at_once=True)


class Later:
    """A consumer of a queue, two hours later."""

    def __init__(self, context: Context, destination: str) -> None:
        self.now_ms = now_ms() + 2 * HOUR_MS
        settings = ConsumerSettings(replayable=False)
        self.subscriber = Subscriber(
            domain_of(context), records_of(context), destination, "-", "later", settings, lambda: self.now_ms
        )

    def batch(self, count: int | None = None) -> tuple[Batch | None, list[int]]:
        batch = self.subscriber.next_batch(Batch("later"), Limits(max_messages=count))
        return batch, batch.members[0].picks.numbers().tolist() if batch else []

    def drain(self, taken: list[int], stop: threading.Event) -> None:
        """Take and acknowledge until there is no more, by 30, and hand the record over whenever another process waits."""
        while True:
            last = stop.is_set()
            batch, picks = self.batch(30)
            if batch is not None:
                taken += picks
                parts = {batch.claim: {0: batch.members[0].picks}}
                wait_until(lambda parts=parts: not self.subscriber.acknowledge(parts))  # the search may have the record
            elif last:
                return
            self.subscriber.flush_outbox()


def send(context: Context, destination: str, *texts: str, **more: Any) -> None:
    """Messages that live for an hour."""
    how = {"time_to_live": "1 h", **more}
    context.producer(destination).send_many({"text": text, **how} for text in texts)


def texts(context: Context, destination: str) -> list[str | None]:
    return [message.text for message in context.browser(destination)]


def expired(context: Context, destination: str) -> int:
    return collect(domain_of(context), records_of(context), destination).expired
