"""What goes wrong in the simulated world, one thing after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from spark_jms.store.regions.core.daemon import DaemonCore
from spark_jms.store.regions.core.protocol import Open, RegionMessage, Remove, Shutdown
from tests.simulator.parts import SimMemory

if TYPE_CHECKING:
    from tests.simulator.world import World


class Fault(Enum):
    CRASH = "crash"
    PAUSE = "pause"
    PARTITION = "partition"
    CLOG = "clog"
    CUT = "cut"
    NOISE = "noise"  # frames dropped, doubled, reordered, flipped
    DIRECTORY = "directory"
    CLOCK = "clock"
    DRAIN = "drain"
    MEMORY = "memory"  # tight limits
    CLIENT = "client"  # clients die
    RIVAL = "rival"  # somebody else takes memory, and gives it back
    REMOVE = "remove"  # an administrator removes regions by force
    MASSACRE = "massacre"  # all daemons but one die at nearly the same time
    STALL = "stall"  # a daemon stands still in the middle of a call to the directory
    TORN = "torn"  # the file of one region cannot be read
    LATE = "late"  # what is written to the directory is not answered, and happens later, even after its writer's death


@dataclass
class Node:
    index: int
    core: DaemonCore | None = None
    memory: SimMemory | None = None
    paused: bool = False
    late: bool = False  # it stood still in the middle of the event whose answers go out now
    clock_ms: float = 0.0  # what its own clock is ahead
    inbox: list[Callable[[], None]] = field(default_factory=list)
    lives: int = 0
    skew_us: int = 0


class Faults:
    """Of these kinds, until the world is healed."""

    def __init__(self, world: World, kinds: frozenset[Fault]) -> None:
        self._world = world
        self._faults = kinds

    def turn(self) -> None:
        if self._world.healed:
            return
        fault = self._world.chance.choice(sorted(self._faults, key=lambda f: f.value))
        self._world.outcome.faults[fault.value] += 1
        getattr(self, f"_{fault.value}")()
        self._world.later(self._world.chance.expovariate(1 / 1000.0) + 50, self.turn)

    def _some(self, keep: int = 1) -> Node | None:
        up = [n for n in self._world.nodes if n.core is not None and not n.paused]
        return self._world.chance.choice(up) if len(up) > keep else None

    def _sole(self, node: Node) -> bool:
        """Whether a region would be lost with this daemon."""
        assert node.core is not None
        return any(
            node.core.me in entry.holders()
            and not any(h != node.core.me and h in self._world.truth.alive for h in entry.holders())
            for entry in (*self._world.truth.entries.values(), *self._world.truth.on_the_way)
        )

    def _crash(self) -> None:
        node = self._some()
        if node is not None:
            self._kill(node)

    def _kill(self, node: Node) -> None:
        if self._world.may_lose or not self._sole(node):
            self._world.audit.stores()
            self._world.crash(node)
            self._world.later(
                self._world.chance.choice((50, 1000, 4000)), lambda: self._world.start(node) if not node.core else None
            )

    def _massacre(self) -> None:
        spared = self._world.chance.choice(self._world.nodes)
        for node in self._world.nodes:
            if node is not spared and node.core is not None:
                self._world.later(self._world.chance.uniform(0, 20), lambda n=node: self._kill(n) if n.core else None)  # type: ignore[misc]

    def _rival(self) -> None:
        node = self._some(keep=0)
        if node is None or node.core is None:
            return
        name = f"rival.{len(self._world.rivals):03d}"
        self._world.rivals.add(name)
        size = self._world.chance.choice((1, 2, 4)) * self._world.region_bytes
        self._ask_once(node, Open(1, name, size))
        self._world.later(self._world.chance.choice((500, 2500)), lambda: self.remove(name))

    def _remove(self) -> None:
        names = sorted(name for name in self._world.truth.entries if self._world.may_lose or name.startswith("rival."))
        if names:
            self.remove(self._world.chance.choice(names))

    def remove(self, name: str) -> None:
        node = self._some(keep=0)
        if node is not None:
            self._ask_once(node, Remove(2, name, True))

    def _ask_once(self, node: Node, message: RegionMessage) -> None:
        """Somebody who does not wait for the answer, but stays for a while."""
        core = node.core
        assert core is not None
        self._world.connections += 1
        number = self._world.connections
        self._world.into(node, core, lambda: core.client_came(self._world.clock(node), number, f"admin{number}"))
        self._world.into(node, core, lambda: core.from_client(self._world.clock(node), number, message))
        self._world.later(
            5_000, lambda: self._world.into(node, core, lambda: core.client_gone(self._world.clock(node), number))
        )

    def _torn(self) -> None:
        if self._world.truth.entries:
            name = self._world.chance.choice(sorted(self._world.truth.entries))
            self._world.truth.torn.add(name)
            self._world.later(self._world.chance.choice((300, 1500)), lambda: self._world.truth.torn.discard(name))

    def _stall(self) -> None:
        self._world.truth.stalling = 0.05
        self._world.later(1_500, lambda: setattr(self._world.truth, "stalling", 0.0))

    def _pause(self) -> None:
        node = self._some()
        if node is not None:
            core = node.core
            node.paused = True
            self._world.note(f"daemon {node.index} stands still")
            self._world.later(self._world.chance.choice((300, 1500, 2500, 6000)), lambda: self.wake(node, core))

    def wake(self, node: Node, core: DaemonCore | None) -> None:
        if node.core is not core or core is None or not node.paused:
            return
        self._world.note(f"daemon {node.index} wakes")
        node.paused = False
        inbox, node.inbox = node.inbox, []
        for step in inbox:
            step()

    def _pair(self) -> frozenset[int]:
        return frozenset(self._world.chance.sample(range(len(self._world.nodes)), 2))

    def _partition(self) -> None:
        pair = self._pair()
        self._world.blocked.add(pair)
        self._world.note(f"partition {sorted(pair)}")
        self._world.later(self._world.chance.choice((500, 2500, 5000)), lambda: self.unblock(pair))

    def unblock(self, pair: frozenset[int]) -> None:
        self._world.blocked.discard(pair)
        a, b = sorted(pair)
        self._world.cut(a, b)

    def _clog(self) -> None:
        pair = self._pair()
        self._world.clogged.add(pair)
        self._world.later(self._world.chance.choice((500, 3000)), lambda: self._world.clogged.discard(pair))

    def _cut(self) -> None:
        a, b = sorted(self._pair())
        self._world.cut(a, b)
        if self._world.client_wires and self._world.chance.random() < 0.5:
            connection = self._world.chance.choice(sorted(self._world.client_wires))
            self._world.client_cut(connection, self._world.client_wires[connection][1])

    def _noise(self) -> None:
        self._world.noise = 0.02
        self._world.later(1500, lambda: setattr(self, "noise", 0.0))

    def _directory(self) -> None:
        self._world.truth.failing = self._world.chance.choice((0.2, 0.5, 1.0))
        self._world.later(self._world.chance.choice((300, 1500)), lambda: setattr(self._world.truth, "failing", 0.0))

    def _late(self) -> None:
        self._world.truth.late = self._world.chance.choice((0.2, 0.5, 1.0))
        self._world.later(self._world.chance.choice((300, 1500)), lambda: setattr(self._world.truth, "late", 0.0))

    def _clock(self) -> None:
        node = self._world.chance.choice(self._world.nodes)
        node.skew_us += self._world.chance.choice((-3_600_000_000, 5_000_000, 86_400_000_000))

    def _drain(self) -> None:
        node = self._some(keep=2)
        if node is not None and node.core is not None:
            if any(node.core.me in e.holders() and e.opener for e in self._world.truth.entries.values()):
                for index, client, _, _ in list(self._world.client_wires.values()):
                    if index == node.index:
                        self._world.client_cut(client.connection, client)
            self._ask_once(node, Shutdown(1, [node.index], False))

    def _memory(self) -> None:
        """The limit is tight from the start: nothing more to do now."""

    def _client(self) -> None:
        if self._world.client_wires:
            connection = self._world.chance.choice(sorted(self._world.client_wires))
            self._world.client_cut(connection, self._world.client_wires[connection][1])
