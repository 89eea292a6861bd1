"""The world: daemons, clients, connections, faults and time, all from one seed. Invariants are checked after every
step; the account is closed at the end, when all faults are over."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from spark_jms.store.regions.core.daemon import (
    Action,
    DaemonCore,
    DaemonSettings,
    Drop,
    Log,
    Stop,
    ToClient,
    ToPeer,
    Unlink,
)
from spark_jms.store.regions.core.directory import Holder, RegionEntry
from spark_jms.store.regions.core.protocol import RegionHello, RegionMessage, Reply, encode
from tests.simulator.audit import Audit
from tests.simulator.client import Book, SimClient
from tests.simulator.faults import Fault, Faults, Node
from tests.simulator.parts import Frame, Killed, SimDirectory, SimMemory, Truth, Violation, Wire

TICK_MS = 50.0
SETTLE_MS = 6_000.0
HELLO_TIMEOUT_MS = 2_000.0
MAX_STALLED = 2
LATE_SHARE = 0.3
SETTINGS = DaemonSettings(
    open_timeout_ms=15_000.0, chunk_bytes=4096, window_bytes=16_384, resilver_bytes_per_s=4_000_000
)


@dataclass
class Outcome:
    seed: int
    steps: int = 0
    acks: int = 0
    recoveries: int = 0
    lost: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    simulated_ms: float = 0.0


class World:
    def __init__(
        self, seed: int, *, duration_ms: float = 14_000.0, daemons: int | None = None, trace: bool = False,
        core: type[DaemonCore] = DaemonCore, faults: frozenset[Fault] | None = None, settings: DaemonSettings = SETTINGS,
    ) -> None:  # fmt: skip
        self.seed = seed
        self.chance = random.Random(seed)
        self.trace = trace
        self.core_type = core
        self.settings = settings
        self.now_ms = 1_000.0
        self.duration_ms = duration_ms
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.truth = Truth(self.chance)
        self.outcome = Outcome(seed)
        count = daemons or self.chance.choice((2, 3, 3, 4))
        self.region_bytes = self.chance.choice((16_384, 40_000, 65_536))
        kinds = [kind for kind in Fault if kind is not Fault.LATE]
        drawn: frozenset[Fault] = frozenset(self.chance.sample(kinds, self.chance.randint(1, 5)))
        if (
            random.Random(f"late {seed}").random() < LATE_SHARE
        ):  # beside the others, so that older seeds stay what they are
            drawn |= {Fault.LATE}
        self.faults = faults if faults is not None else drawn
        self.truth.later = self.later
        self.truth.stall = self._stall
        self._stalled = 0
        self.audit = Audit(self)
        self.truth.removed = self._region_removed
        self.truth.made = self.audit.made
        self.rivals: set[str] = set()
        regions = 3 * 3
        self.tight = Fault.MEMORY in self.faults
        self.limit = self.region_bytes * (regions if Fault.MEMORY in self.faults else regions * 4)
        self.nodes = [Node(index) for index in range(count)]
        self.wires: dict[tuple[int, int], Wire] = {}
        self.hello_ms: dict[frozenset[int], float] = {}
        self.client_wires: dict[int, tuple[int, SimClient, Wire, Wire]] = {}
        self.blocked: set[frozenset[int]] = set()
        self.clogged: set[frozenset[int]] = set()
        self.fault = Faults(self, self.faults)
        self.noise = 0.0
        self.healed = False
        self.may_lose = self.chance.random() < 0.2
        self.books: dict[str, Book] = {}
        self.connections = 0
        stores = self.chance.randint(1, 3)
        rivals = 1 if self.chance.random() < 0.3 else 0
        self.clients = [
            SimClient(self, number, f"store{number % stores}", self.region_bytes) for number in range(stores + rivals)
        ]
        for node in self.nodes:
            self.start(node)

    # ---- time

    def later(self, delay_ms: float, step: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._count, step))

    def note(self, text: str) -> None:
        if self.trace:
            print(f"{self.now_ms:10.1f}  {text}")

    def run(self) -> Outcome:
        for client in self.clients:
            self.later(self.chance.uniform(400, 900), lambda client=client: self._client_turn(client))  # type: ignore[misc]
        if self.faults:
            self.later(self.chance.uniform(1000, 1500), self.fault.turn)
        self.later(300.0, self._copies_turn)
        self._until(self.now_ms + self.duration_ms)
        self._heal()
        for _ in range(30):
            self._until(self.now_ms + 1_000.0)
            if all(client.done for client in self.clients):
                break
        self._until(self.now_ms + SETTLE_MS)
        self._final()
        self.outcome.acks = sum(client.acks for client in self.clients)
        self.outcome.recoveries = sum(client.recoveries for client in self.clients)
        self.outcome.simulated_ms = self.now_ms
        return self.outcome

    def _until(self, end_ms: float) -> None:
        while self._heap and self._heap[0][0] <= end_ms:
            at_ms, _, step = heapq.heappop(self._heap)
            self.now_ms = max(self.now_ms, at_ms)
            self.outcome.steps += 1
            step()
        self.now_ms = max(self.now_ms, end_ms)

    # ---- daemons

    def start(self, node: Node) -> None:
        node.lives += 1
        node.clock_ms = self.chance.choice((0.0, 5.0, 1e6, 3e9))
        incarnation = f"life{node.lives}"
        holder = Holder(node.index, incarnation)
        node.memory = SimMemory(self.limit)
        node.core = self.core_type(
            node.index, incarnation, len(self.nodes), self.limit, SimDirectory(self.truth, holder), node.memory,
            self.settings, self.clock(node), self._wall_us(node),
        )  # fmt: skip
        self.truth.alive.add(holder)
        node.paused = False
        node.inbox.clear()
        self.note(f"daemon {node.index} starts, {incarnation}")
        core = node.core
        self.later(self.chance.uniform(0, TICK_MS), lambda: self._tick(node, core))

    def clock(self, node: Node) -> float:
        """It never goes back in one life of the daemon, and says nothing to anybody else."""
        return self.now_ms + node.clock_ms

    def _wall_us(self, node: Node) -> int:
        return int(self.now_ms * 1000) + node.skew_us

    def _tick(self, node: Node, core: DaemonCore) -> None:
        if node.core is not core:
            return
        if not node.paused:
            self._dial(node)
            self._carry(node, self._alive(lambda: core.tick(self.clock(node), self._wall_us(node))))
        self.later(self.chance.uniform(TICK_MS * 0.5, TICK_MS * 1.5), lambda: self._tick(node, core))

    def crash(self, node: Node) -> None:
        core = node.core
        assert core is not None
        self.note(f"daemon {node.index} dies")
        self.truth.alive.discard(core.me)
        node.core, node.memory, node.paused = None, None, False
        node.inbox.clear()
        for a, b in [pair for pair in self.wires if node.index in pair]:
            self.cut(a, b)
        for connection, (index, client, _, _) in list(self.client_wires.items()):
            if index == node.index:
                self.client_cut(connection, client)

    def into(self, node: Node, core: DaemonCore, event: Callable[[], list[Action]]) -> None:
        """An event for this life of the daemon: now, or when it wakes."""

        def step() -> None:
            if node.core is core:
                self._carry(node, self._alive(event))

        if node.core is not core:
            return
        if node.paused:
            node.inbox.append(step)
        else:
            step()

    def _alive(self, event: Callable[[], list[Action]]) -> list[Action]:
        try:
            return event()
        except Killed:
            return []

    def _stall(self, holder: Holder) -> None:
        """The daemon stands still in the middle of an event, and the world goes on; it may even die there."""
        node = self.nodes[holder.daemon]
        core = node.core
        if core is None or core.me != holder or node.paused or self._stalled >= MAX_STALLED:
            return
        self._stalled += 1
        node.paused = True
        self.note(f"daemon {node.index} stands still in the middle")
        self._until(self.now_ms + self.chance.choice((300, 1500, 3000, 6000)))
        self._stalled -= 1
        if node.core is not core:
            raise Killed
        self.note(f"daemon {node.index} goes on")
        node.late = True
        self.later(0.0, lambda: self.fault.wake(node, core))

    def _carry(self, node: Node, actions: list[Action]) -> None:
        late, node.late = node.late, False
        for action in actions:
            match action:
                case ToPeer(daemon, message):
                    self._send(node.index, daemon, message)
                case ToClient(connection, message):
                    self._to_client(node, connection, message, late)
                case Drop(connection):
                    if connection in self.client_wires:
                        self.client_cut(connection, self.client_wires[connection][1])
                case Unlink(daemon):
                    self.cut(node.index, daemon)
                case Log(_, text):
                    self.note(f"daemon {node.index}: {text}")
                case Stop():
                    self._check_leaving(node)
                    self.crash(node)
                    self.later(self.chance.uniform(500, 3000), lambda: self.start(node) if not node.core else None)
                    return
        self._check(node)

    def _check_leaving(self, node: Node) -> None:
        core = node.core
        assert core is not None
        for entry in self.truth.entries.values():
            # One that was never opened may have been made a moment ago, by a write of long before: whoever opens it makes it anew.
            if core.me in entry.holders() and entry.name in self.truth.opens:
                raise Violation(f"daemon {node.index} left safely with a listed copy of {entry.name}")

    # ---- connections between daemons

    def _dial(self, node: Node) -> None:
        for other in self.nodes[node.index + 1 :]:
            pair = (node.index, other.index)
            both = frozenset(pair)
            if pair in self.wires and both in self.hello_ms and self.now_ms - self.hello_ms[both] > HELLO_TIMEOUT_MS:
                self.cut(*pair)
            if pair in self.wires or other.core is None or both in self.blocked:
                continue
            self.hello_ms[both] = self.now_ms
            self._connect(node, other)

    def _connect(self, a: Node, b: Node) -> None:
        core_a, core_b = a.core, b.core
        assert core_a is not None
        assert core_b is not None
        for here, there, core in ((a, b, core_b), (b, a, core_a)):
            self.wires[(here.index, there.index)] = Wire(
                lambda m, n=there, c=core, i=here.index: self._arrived(n, c, i, m),  # type: ignore[misc]
                lambda i=here.index, j=there.index: self.cut(i, j),  # type: ignore[misc]
            )
        self._send(a.index, b.index, RegionHello("daemon", a.index, core_a.incarnation))
        self._send(b.index, a.index, RegionHello("daemon", b.index, core_b.incarnation))

    def _arrived(self, node: Node, core: DaemonCore, sender: int, message: RegionMessage) -> None:
        if isinstance(message, RegionHello):
            self.hello_ms.pop(frozenset((node.index, sender)), None)
            self.into(node, core, lambda: core.linked(self.clock(node), sender, message.incarnation))
        else:
            self.into(node, core, lambda: core.from_peer(self.clock(node), sender, message))

    def cut(self, a: int, b: int) -> None:
        for i, j in ((a, b), (b, a)):
            wire = self.wires.pop((i, j), None)
            if wire is None:
                continue
            wire.open = False
            node = self.nodes[j]
            core = node.core
            if core is not None:
                self.into(node, core, lambda c=core, i=i, n=node: c.unlinked(self.clock(n), i))  # type: ignore[misc]

    def _delay(self) -> float:
        return self.chance.expovariate(1 / 0.8) + 0.05

    def _send(self, source: int, target: int, message: RegionMessage) -> None:
        wire = self.wires.get((source, target))
        if wire is None:
            return
        frame: Frame = wire.pack(message)
        pair = frozenset((source, target))
        if pair in self.blocked:
            return
        copies, delay = 1, self._delay()
        if self.noise and self.chance.random() < self.noise:
            kind = self.chance.choice(("drop", "double", "late", "flip", "whole"))
            if kind == "drop":
                return
            if kind == "late":
                self.later(delay + 20, lambda: wire.arrive(frame))
                return
            spoiled = bytearray(encode(*frame))
            if kind == "double":
                copies = 2
            elif kind == "flip":
                spoiled[self.chance.randrange(len(spoiled))] ^= 1 << self.chance.randrange(8)
            frame = bytes(spoiled)
        if pair in self.clogged:
            delay += self.chance.uniform(100, 3000)
        wire.last_ms = max(wire.last_ms, self.now_ms + delay)
        for _ in range(copies):
            self.later(wire.last_ms - self.now_ms, lambda: wire.arrive(frame))

    # ---- clients

    def _client_turn(self, client: SimClient) -> None:
        if client.daemon is None:
            up = [node for node in self.nodes if node.core is not None]
            if up and not client.done:
                self._attach(client, self.chance.choice(up))
            pause = self.chance.uniform(50, 400)
        else:
            client.act()
            pause = self.chance.expovariate(1 / 40.0)
        self.later(pause, lambda: self._client_turn(client))

    def _attach(self, client: SimClient, node: Node) -> None:
        core = node.core
        assert core is not None
        self.connections += 1
        connection = self.connections
        there = Wire(
            lambda m: self.into(node, core, lambda: core.from_client(self.clock(node), connection, m)),
            lambda: self.client_cut(connection, client),
        )
        back = Wire(client.receive, lambda: self.client_cut(connection, client))
        self.client_wires[connection] = (node.index, client, there, back)
        self.into(node, core, lambda: core.client_came(self.clock(node), connection, client.name))
        client.attached(node.index, connection)

    def client_sends(self, client: SimClient, message: RegionMessage) -> None:
        found = self.client_wires.get(client.connection)
        if found is not None:
            self._transmit(found[2], message)

    def _to_client(self, node: Node, connection: int, message: RegionMessage, late: bool) -> None:
        found = self.client_wires.get(connection)
        if found is not None and found[0] == node.index:
            if isinstance(message, Reply):
                if message.value is None:
                    found[1].emitted(message.request, late)
                elif isinstance(message.value, bytes):
                    found[1].read_emitted(message.request, late)
            self._transmit(found[3], message)

    def _transmit(self, wire: Wire, message: RegionMessage) -> None:
        frame = wire.pack(message)
        wire.last_ms = max(wire.last_ms, self.now_ms + self.chance.expovariate(1 / 0.3))
        self.later(wire.last_ms - self.now_ms, lambda: wire.arrive(frame))

    def client_leaves(self, client: SimClient) -> None:
        self.client_cut(client.connection, client)

    def client_cut(self, connection: int, client: SimClient) -> None:
        found = self.client_wires.pop(connection, None)
        if found is None:
            return
        index, _, there, back = found
        back.open = False
        there.open = self.chance.random() < 0.5  # what it sent before may come still
        node = self.nodes[index]
        core = node.core
        if core is not None:
            delay = max(there.last_ms - self.now_ms, 0.0) + self._delay()
            self.later(delay, lambda: self.into(node, core, lambda: core.client_gone(self.clock(node), connection)))
        client.detached()

    def region_lost(self, client: SimClient, name: str) -> None:
        if not self.may_lose:
            raise Violation(f"region {name} is lost, though one copy always lived")
        entry = self.truth.entries.get(name)
        if entry is not None and any(holder in self.truth.alive for holder in entry.holders()):
            raise Violation(f"region {name} is said to be lost, and a copy lives: {entry}")
        self.outcome.lost += 1

    # ---- what must hold

    def _region_removed(self, entry: RegionEntry) -> None:
        clients = [client for client in self.clients if entry.name.startswith(client.store + ".")]
        if clients:
            next((client for client in clients if client.owner), clients[0]).region_removed(entry.name)

    def _heal(self) -> None:
        self.note("all faults are over")
        self.healed = True
        self.noise, self.truth.failing, self.truth.late = 0.0, 0.0, 0.0
        self.clogged.clear()
        self.truth.torn.clear()
        self.truth.stalling = 0.0
        for pair in list(self.blocked):
            self.fault.unblock(pair)
        for node in self.nodes:
            if node.paused:
                self.fault.wake(node, node.core)
            if node.core is None:
                self.start(node)
        for client in self.clients:
            client.quiet, client.checked = True, 0
        for name in sorted(self.rivals):
            self.fault.remove(name)

    def _check(self, node: Node) -> None:
        if node.core is None or node.memory is None:
            return
        used = node.core.used_bytes()
        if used > self.limit:
            raise Violation(f"daemon {node.index} holds {used} bytes, its limit is {self.limit}")
        if used != node.memory.total:
            raise Violation(f"daemon {node.index} counts {used} bytes and holds {node.memory.total}")

    def check_ack(self, client: SimClient, region: str) -> None:
        """Only the daemon that the directory names answers, and only for him who opened the region last."""
        core, entry = self.nodes[client.daemon or 0].core, self.truth.entries.get(region)
        where = f"daemon {client.daemon} answered {client.name} for {region}"
        if entry is None:
            raise Violation(f"{where}, which was removed")
        if core is None or entry.primary != core.me:
            raise Violation(f"{where}, which daemon {entry.primary.daemon} serves")
        if self.truth.opens.get(region) != client.epochs.get(region) or entry.opener != client.name:
            raise Violation(f"{where}, which {entry.opener} opened at epoch {self.truth.opens.get(region)}")

    def _copies_turn(self) -> None:
        self.audit.copies()
        self.later(300.0, self._copies_turn)

    def living(self, holder: Holder) -> DaemonCore | None:
        core = self.nodes[holder.daemon].core
        return core if core is not None and core.me == holder else None

    def _final(self) -> None:
        self.audit.copies(final=True)
        self.audit.stores()
        for client in self.clients:
            if not client.done:
                raise Violation(f"{client.name} could not open its store in all this time: {client.phase.value}")
        for name, entry in self.truth.entries.items():
            alive = [h for h in entry.holders() if self.living(h) is not None]
            if not alive:
                if not self.may_lose:
                    raise Violation(f"region {name} has no living copy: {entry}")
                continue
            for holder in alive:
                core = self.living(holder)
                if core is None or name not in core.copies:
                    raise Violation(f"region {name}: daemon {holder.daemon} is listed and has no copy")
            room = [n for n in self.nodes if n.core and n.core.me not in alive and n.core.free_bytes() >= entry.size]
            if len(alive) < 2 and room:
                raise Violation(f"region {name} has one copy, with everybody well again: {entry}")
        for node in self.nodes:
            assert node.core is not None
            for name in node.core.copies:
                listed = self.truth.entries.get(name)
                if listed is None or node.core.me not in listed.holders():
                    raise Violation(f"daemon {node.index} keeps a copy of {name} that the directory does not list")


def run(seed: int, **options: Any) -> Outcome:
    return World(seed, **options).run()
