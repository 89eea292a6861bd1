"""A consumer whose time the test sets."""

from __future__ import annotations

from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.client import Context
from spark_jms.core.records.batch import Batch
from spark_jms.log.tables.storage import now_ms
from spark_jms.testing.inside import domain_of, records_of


class ClockedConsumer:
    """A client's consumer of `destination`, without background threads. `now_ms` is what it takes for the time."""

    def __init__(self, context: Context, destination: str, consumer: str = "q") -> None:
        self.now_ms = now_ms() + 1_000
        self.subscriber = Subscriber(
            domain_of(context),
            records_of(context),
            destination,
            "-",
            consumer,
            ConsumerSettings(replayable=False),
            lambda: self.now_ms,
        )
        self.start = Batch(consumer)
