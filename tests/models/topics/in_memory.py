"""Storage in memory, the model's clock everywhere, and no threads."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from spark_jms.claims.consumers import branches, subscriber
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.records import members, subscriptions
from spark_jms.claims.servers import timed_stores
from spark_jms.claims.servers.timed_stores import Inline
from spark_jms.log.destinations import domain
from spark_jms.log.tables import storage
from spark_jms.log.upkeep import health
from spark_jms.store import RuleCall
from spark_jms.store.ledger.session import LedgerSession
from spark_jms.testing.memory_storage import MemoryStorage
from tests.models.queue.clock import Clock


def others_act(patch: pytest.MonkeyPatch, chance: random.Random, act: Callable[[], object]) -> None:
    """Now and then `act`, of another process, comes between the plan of one and its write; and not within `act` again."""
    real, inside = LedgerSession.change, False

    def change(self: LedgerSession, names: Sequence[str], call: RuleCall, *held: Any) -> bytes:
        nonlocal inside
        if not inside and chance.random() < 0.3:
            inside = True
            try:
                act()
            finally:
                inside = False
        return real(self, names, call, *held)

    patch.setattr(LedgerSession, "change", change)


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
        patch.setattr(subscriber, "random", random.Random(0))
        patch.setattr(timed_stores, "StoreThread", lambda name: Inline())
        defaults = Subscriber.__init__.__kwdefaults__
        patch.setitem(defaults, "store_thread", lambda name: Inline())
        patch.setitem(defaults, "monotonic_s", clock.monotonic)
        yield patch
