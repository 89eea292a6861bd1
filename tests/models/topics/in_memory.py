"""Storage in memory, the model's clock everywhere, and no threads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from spark_jms.claims.consumers import branches, subscriber
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
            branches,
            health,
            subscriber,
            members,
            storage,
            subscriptions,
        ):
            patch.setattr(module, "time", clock)
        patch.setattr(subscriptions, "random", random.Random(0))
        patch.setattr(timed_stores, "StoreThread", lambda name: Inline())
        defaults = Subscriber.__init__.__kwdefaults__
        patch.setitem(defaults, "store_thread", lambda name: Inline())
        patch.setitem(defaults, "monotonic_s", clock.monotonic)
        yield patch
