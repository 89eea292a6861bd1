"""The network between daemons: connections, and frames that are delayed, blocked or damaged on their way."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from functools import partial

from spark_jms.store.regions.core.daemon import DaemonCore
from spark_jms.store.regions.protocol.messages import RegionHello, RegionMessage, encode
from tests.models.regions.connections import Frame, Wire
from tests.models.regions.daemons import SimDaemon
from tests.models.regions.schedule import Schedule
from tests.models.regions.timing import Timing

HELLO_TIMEOUT_MS = 2_000.0


class Network:
    """Two wires for each pair of daemons. `blocked` pairs lose every frame without noticing, `blocked_ways` those from the
    first daemon to the second. `clogged` pairs are slow. `noise` is the share of frames that are dropped, doubled, reordered
    or flipped."""

    def __init__(
        self,
        daemons: Sequence[SimDaemon],
        schedule: Schedule,
        timing: Timing,
        chance: random.Random,
        sent: Callable[[int, int, RegionMessage], None],
    ) -> None:
        self._daemons = daemons
        self._schedule = schedule
        self._timing = timing
        self._chance = chance
        self._sent = sent
        self._wires: dict[tuple[int, int], Wire] = {}
        self._hello_by_ms: dict[tuple[int, int], float] = {}  # connections without a hello, by their lower daemon first
        self._leftover: dict[tuple[int, int], Wire] = {}  # with the last frames of daemons that died
        self.blocked: set[frozenset[int]] = set()
        self.blocked_ways: set[tuple[int, int]] = set()
        self.clogged: set[frozenset[int]] = set()
        self.noise = 0.0
        self._held: Callable[[int, RegionMessage], bool] | None = None
        self._kept: list[tuple[Wire, RegionMessage]] = []

    # ---- connections

    def dial(self, daemon: SimDaemon) -> None:
        """Connects a daemon to those after it. A connection without a hello is given up after a while."""
        for other in self._daemons[daemon.index + 1 :]:
            pair = (daemon.index, other.index)
            if pair in self._wires:
                if self._schedule.now_ms <= self._hello_by_ms.get(pair, math.inf):
                    continue
                self.cut(*pair)
            if other.core is None or frozenset(pair) in self.blocked:
                continue
            self._hello_by_ms[pair] = self._schedule.now_ms + HELLO_TIMEOUT_MS
            self._connect(daemon, other)

    def _connect(self, a: SimDaemon, b: SimDaemon) -> None:
        core_a, core_b = a.running, b.running
        self._wire(a, b, core_b)
        self._wire(b, a, core_a)
        self.send(a.index, b.index, RegionHello("daemon", a.index, core_a.incarnation))
        self.send(b.index, a.index, RegionHello("daemon", b.index, core_b.incarnation))

    def _wire(self, source: SimDaemon, target: SimDaemon, core: DaemonCore) -> None:
        self._end_leftover(source.index, target.index)
        self._wires[(source.index, target.index)] = Wire(
            partial(self._arrived, target, core, source.index), partial(self.cut, source.index, target.index)
        )

    def _arrived(self, daemon: SimDaemon, core: DaemonCore, sender: int, message: RegionMessage) -> None:
        if isinstance(message, RegionHello):
            self._hello_by_ms.pop((min(daemon.index, sender), max(daemon.index, sender)), None)
            daemon.feed(core, core.linked, sender, message.incarnation)
        else:
            daemon.feed(core, core.from_peer, sender, message)

    def cut(self, a: int, b: int) -> None:
        for source, target in ((a, b), (b, a)):
            wire = self._wires.pop((source, target), None)
            if wire is None:
                continue
            wire.open = False
            self._unlink(self._daemons[target], source)

    def _unlink(self, daemon: SimDaemon, sender: int) -> None:
        core = daemon.core
        if core is not None:
            daemon.feed(core, core.unlinked, sender)

    def died(self, index: int) -> None:
        """The frames that it sent may still arrive, and the others learn of its end after them."""
        for pair in [pair for pair in self._wires if index in pair]:
            wire = self._wires.pop(pair)
            if pair[0] == index and wire.last_ms > self._schedule.now_ms and self._timing.arrives_after_death():
                self._leftover[pair] = wire
                self._schedule.later(wire.last_ms - self._schedule.now_ms, partial(self._end_leftover, *pair, wire))
            else:
                wire.open = False
                self._unlink(self._daemons[pair[1]], pair[0])

    def _end_leftover(self, source: int, target: int, which: Wire | None = None) -> None:
        wire = self._leftover.get((source, target))
        if wire is not None and which in (None, wire):
            del self._leftover[source, target]
            wire.open = False
            self._unlink(self._daemons[target], source)

    def lead_nowhere(self, pair: frozenset[int]) -> None:
        """Nothing comes through the connection of these two any more; another one would work."""
        for source, target in itertools.permutations(pair):
            if (source, target) in self._wires:
                self._wires[source, target].leads_nowhere = True

    def unblock(self, pair: frozenset[int]) -> None:
        self.blocked.discard(pair)
        self.blocked_ways.difference_update(itertools.permutations(pair))
        self.cut(*sorted(pair))

    # ---- frames

    def send(self, source: int, target: int, message: RegionMessage) -> None:
        wire = self._wires.get((source, target))
        if wire is None:
            return
        self._sent(source, target, message)
        if self._held is not None and self._held(source, message):
            self._kept.append((wire, message))
            return
        frame: Frame = wire.pack(message)
        if wire.leads_nowhere or (self.blocked and frozenset((source, target)) in self.blocked):
            return
        if self.blocked_ways and (source, target) in self.blocked_ways:
            return
        copies, delay_ms = 1, self._timing.peer_delay_ms()
        if self.noise and self._chance.random() < self.noise:
            kind = self._chance.choice(("drop", "double", "late", "flip", "whole"))
            if kind == "drop":
                return
            if kind == "late":
                self._schedule.later(delay_ms + 20, lambda: wire.arrive(frame))
                return
            damaged = bytearray(encode(*frame))
            if kind == "double":
                copies = 2
            elif kind == "flip":
                damaged[self._chance.randrange(len(damaged))] ^= 1 << self._chance.randrange(8)
            frame = bytes(damaged)
        if self.clogged and frozenset((source, target)) in self.clogged:
            delay_ms += self._chance.uniform(100, 3000)
        self._deliver(wire, frame, delay_ms)
        if copies == 2:
            self._deliver(wire, frame, 0.0)

    def _deliver(self, wire: Wire, frame: Frame, delay_ms: float) -> None:
        now_ms = self._schedule.now_ms
        wire.last_ms = max(wire.last_ms, now_ms + delay_ms)
        self._schedule.later(wire.last_ms - now_ms, partial(wire.arrive, frame))

    def hold(self, held: Callable[[int, RegionMessage], bool]) -> None:
        """Keeps the frames that `held` accepts (by sender and message) on their way; others overtake them."""
        self._held = held

    def release(self) -> list[RegionMessage]:
        """Delivers the frames that were held, as far as their connections still exist, and returns them."""
        self._held = None
        kept, self._kept = [(wire, message) for wire, message in self._kept if wire.open], []
        for wire, message in kept:
            self._deliver(wire, wire.pack(message), 0.0)
        return [message for _, message in kept]
