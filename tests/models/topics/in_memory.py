"""Storage in memory, the model's clock everywhere, and no threads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from spark_jms.claims.batches import acknowledgement, batch
from spark_jms.claims.consumers import branches, distributed
from spark_jms.claims.consumers.distributed import DistributedSubscriber
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.records import members, subscriptions
from spark_jms.claims.servers import timed_stores
from spark_jms.claims.servers.timed_stores import Inline
from spark_jms.log.destinations import domain
from spark_jms.log.tables import storage
from spark_jms.log.upkeep import health
from spark_jms.testing.memory_storage import MemoryStorage
from tests.models.queue.clock import Clock


@contextmanager
def in_memory(files: MemoryStorage, clock: Clock) -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(domain, "open_storage", lambda root: files)
        for module in (
            batch,
            branches,
            branches,
            health,
            distributed,
            members,
            acknowledgement,
            members,
            storage,
            subscriptions,
        ):
            patch.setattr(module, "time", clock)
        patch.setattr(subscriptions, "random", random.Random(0))
        patch.setattr(timed_stores, "StoreThread", lambda name: Inline())
        defaults = DistributedSubscriber.__init__.__kwdefaults__
        patch.setitem(defaults, "lane", lambda name: Inline())
        patch.setitem(defaults, "monotonic_s", clock.monotonic)
        opened = DistributedSubscriber._opened

        def on_the_clock(self: DistributedSubscriber, server: str) -> Subscriber:
            made = opened(self, server)
            made.members.monotonic_s = clock.monotonic
            return made

        patch.setattr(DistributedSubscriber, "_opened", on_the_clock)
        yield patch
