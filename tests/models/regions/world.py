"""One world from one seed: a cluster, its clients, its faults, and the checks of what must hold.

Invariants are checked after every event. At the end the faults stop, every client reads its store once more, and the
copies of every region are compared.
"""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import attrs

from spark_jms.settings.store import DaemonSettings
from tests.models.regions.audit import StoreAudit
from tests.models.regions.cluster import SimCluster
from tests.models.regions.errors import Promise, Violation
from tests.models.regions.event_loop import SimLoop
from tests.models.regions.faults import Fault, Faults
from tests.models.regions.invariants import Invariants
from tests.models.regions.object_process import ObjectProcess
from tests.models.regions.observer import Observer
from tests.models.regions.process import StoreProcess
from tests.models.regions.record_process import RecordProcess
from tests.models.regions.stored import Stored
from tests.models.regions.timing import RandomTiming

START_MS = 1_000.0
FAULTY_MS = 13_000.0
REST_MS = 6_000.0
CHECK_COPIES_MS = 300.0
SHARES = {  # of the seeds that have this fault, beside the one to five others that each seed has
    Fault.LATE: 0.3,
    Fault.EMPTY: 0.25,
    Fault.SLOW: 0.3,
    Fault.MOMENT: 0.4,
    Fault.HANG: 0.15,
    Fault.NEWER: 0.1,
    Fault.NOWHERE: 0.15,
    Fault.SILENT: 0.2,
}
OBJECT_STORES = 0.7  # the share of stores whose processes use objects; the others have record sets
MEMORY_REGIONS = 36  # that fit into each daemon's memory, or a quarter of these
SETTINGS = DaemonSettings(
    client_timeout_ms=5_000.0, chunk_bytes=4096, window_bytes=16_384, resilver_bytes_per_s=4_000_000
)


@dataclass
class SeedOutcome:
    seed: int
    steps: int = 0
    acks: int = 0
    recoveries: int = 0
    lost: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    simulated_ms: float = 0.0


class PrintedTrace(Observer):
    def __init__(self, now_ms: Callable[[], float]) -> None:
        self._now_ms = now_ms

    def note(self, text: str) -> None:
        print(f"{self._now_ms():10.1f}  {text}")

    def logged(self, daemon: int, text: str) -> None:
        self.note(f"daemon {daemon}: {text}")


class World:
    """The same seed does the same, as long as no code draws random numbers in another order."""

    def __init__(
        self,
        seed: int,
        *,
        trace: bool = False,
    ) -> None:
        self.chance = chance = random.Random(seed)
        self.outcome = SeedOutcome(seed)
        daemons = chance.choice((2, 3, 3, 4))
        region_bytes = chance.choice((16_384, 40_000, 65_536))
        kinds = self._draw_faults(seed)
        tight = Fault.MEMORY in kinds
        may_lose = chance.random() < 0.2
        stores = chance.randint(1, 3)
        rivals = 1 if chance.random() < 0.3 else 0
        self.cluster = SimCluster(
            daemons,
            region_bytes * (MEMORY_REGIONS // 4 if tight else MEMORY_REGIONS),
            _draw_settings(seed, tight),
            timing=RandomTiming(chance),
            chance=chance,
            start_ms=START_MS,
        )
        self._invariants = Invariants(self.cluster, may_lose)
        self.stores = [Stored(f"store{n}", region_bytes, chance.random() < OBJECT_STORES) for n in range(stores)]
        self._audit = StoreAudit(self.cluster, self.stores, self.outcome.faults, tight)
        self.clients: list[StoreProcess] = []
        for number in range(stores + rivals):
            store = self.stores[number % stores]
            process = ObjectProcess if store.objects else RecordProcess
            self.clients.append(process(number, store, self.cluster, self._invariants, chance, self._audit.check_store))
        self._kinds = kinds
        self._answered_ms = 0.0
        self._faults = Faults(
            self.cluster,
            chance,
            kinds,
            region_bytes=region_bytes,
            may_lose=may_lose,
            counts=self.outcome.faults,
            before_death=self._audit.check_stores,
            processes=self.clients,
        )
        if trace:
            self.cluster.observe(PrintedTrace(lambda: self.cluster.now_ms))
        self.cluster.observe(self._invariants)
        self.cluster.observe(self._audit)
        for daemon in self.cluster.daemons:
            self.cluster.start(daemon)

    def _draw_faults(self, seed: int) -> frozenset[Fault]:
        kinds = [kind for kind in Fault if kind not in SHARES]
        drawn = frozenset(self.chance.sample(kinds, self.chance.randint(1, 5)))
        # Drawn from generators of their own, so that one more leaves the seeds without it as they are.
        return drawn | {kind for kind in SHARES if random.Random(f"{kind.value} {seed}").random() < SHARES[kind]}

    # ---- its course

    def run(self) -> SeedOutcome:
        """Without the collector of cycles, which would look at the whole world again and again."""
        with _no_collector():
            try:
                return self._run()
            finally:
                for client in self.clients:
                    client.loop.die()
                SimLoop.stop_all()

    def _run(self) -> SeedOutcome:
        later, chance = self.cluster.schedule.later, self.chance
        for client in self.clients:
            later(chance.uniform(400, 900), client.start)
        later(chance.uniform(1000, 1500), self._faults.turn)
        later(CHECK_COPIES_MS, self._copies_turn)
        self._run_for(FAULTY_MS)
        self._heal()
        for _ in range(30):
            self._run_for(1_000.0)
            if all(client.done for client in self.clients):
                break
        self._run_for(REST_MS + max(self._answered_ms - self.cluster.now_ms, 0.0))
        self._check_end()
        self.outcome.acks = sum(store.acks for store in self.stores)
        self.outcome.recoveries = sum(client.recoveries for client in self.clients)
        self.outcome.lost = self._invariants.lost
        self.outcome.steps = self.cluster.schedule.steps
        self.outcome.simulated_ms = self.cluster.now_ms
        return self.outcome

    def _run_for(self, duration_ms: float) -> None:
        self.cluster.schedule.run_until(self.cluster.now_ms + duration_ms)

    def _copies_turn(self) -> None:
        self._invariants.check_copies()
        self._invariants.check_opens()
        self.cluster.schedule.later(CHECK_COPIES_MS, self._copies_turn)

    def _heal(self) -> None:
        self.cluster.note("all faults are over")
        self._answered_ms = self.cluster.directory_faults.hangs_until_ms  # what was asked of the directory before
        self._faults.end()
        for client in self.clients:
            client.finishing = True

    def _check_end(self) -> None:
        self._invariants.check_copies(final=True)
        self._audit.check_stores()
        for client in self.clients:
            if not client.done:
                raise Violation(Promise.CONTINUES, f"{client.name} could not open its store in all this time")
        self._invariants.check_end()


def _draw_settings(seed: int, tight: bool) -> DaemonSettings:
    """Both modes. With tight memory there may be no room for a second copy, and then nothing can be written."""
    chance = random.Random(f"settings {seed}")
    refuses = chance.random() < 0.3 and not tight
    open_timeout_ms = chance.choice((3_000.0, 15_000.0))
    return attrs.evolve(SETTINGS, single_copy="refuse" if refuses else "allow", open_timeout_ms=open_timeout_ms)


def run(seed: int, **options: Any) -> SeedOutcome:
    """One world, and then the memory of its cycles is given back. The collector looks at the seed's own objects and at no
    others: at all modules of a process that has imported Spark and pytest, it would cost as much as the seed."""
    gc.freeze()
    with _no_collector():
        try:
            return World(seed, **options).run()
        finally:
            gc.collect()
            gc.unfreeze()


@contextmanager
def _no_collector() -> Iterator[None]:
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
