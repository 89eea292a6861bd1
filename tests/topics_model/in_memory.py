"""Storage in memory, the model's clock everywhere, and no threads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from spark_jms.claims import (
    batches,
    branch,
    branches,
    distributed,
    lane,
    members,
    previous_batch,
    progress,
    subscription_use,
)
from spark_jms.claims.distributed import DistributedSubscriber
from spark_jms.claims.lane import Inline
from spark_jms.claims.subscriber import Subscriber
from spark_jms.log import breath, domain, storage
from spark_jms.testing.memory_storage import MemoryStorage
from tests.queue_model.clock import Clock


@contextmanager
def in_memory(files: MemoryStorage, clock: Clock) -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(domain, "open_storage", lambda root: files)
        for module in (
            batches,
            branch,
            branches,
            breath,
            distributed,
            members,
            previous_batch,
            progress,
            storage,
            subscription_use,
        ):
            patch.setattr(module, "time", clock)
        patch.setattr(subscription_use, "random", random.Random(0))
        patch.setattr(lane, "Lane", lambda name: Inline())
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
