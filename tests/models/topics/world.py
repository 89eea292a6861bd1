"""The servers, the senders and the administrator, and one run of the model."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest

from spark_jms.admin.servers import start_server, stop_server
from spark_jms.claims.records.subscriptions import clear_leftovers, ensure_subscription
from spark_jms.claims.servers.stores import read_state, state_of
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.claims.upkeep.views import is_empty
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.servers import LeaseTerm
from spark_jms.core.destinations.subscriptions import server_of_subscription
from spark_jms.core.messages.columns import NON_PERSISTENT, PERSISTENT
from spark_jms.errors import MemberRemovalError, ServerDownError
from spark_jms.log.destinations import domain
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.servers import ServerEntry, follow_term
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending.send import send
from spark_jms.log.upkeep.purge import TOPIC_WITHOUT_SUBSCRIPTIONS_RETENTION_MS, purge
from spark_jms.store import MemoryStore, StoreError
from spark_jms.store.kinds.routed import RoutedStore
from spark_jms.testing.memory_storage import MemoryStorage
from tests.models.queue.clock import Clock
from tests.models.topics.faults import Faults
from tests.models.topics.in_memory import in_memory, others_act
from tests.models.topics.life import Key, Life, SentMessage
from tests.models.topics.listener import Listener
from tests.models.topics.lives import Lives
from tests.models.topics.query import TOPIC, Query

ROOT = "memory://topics-model"
SERVERS = "abc"
KINDS = ("partitioned", "replicated", "without stores")
STEPS = 80
_LATER_MS = TOPIC_WITHOUT_SUBSCRIPTIONS_RETENTION_MS + 3_600_000


class World:
    def __init__(self, files: MemoryStorage, clock: Clock, seed: int, kind: str, patch: pytest.MonkeyPatch) -> None:
        self.random, self.clock, self.kind = random.Random(seed), clock, kind
        domain.create_domain(ROOT, "memory://unused")
        self.stores = {name: MemoryStore(clock_ms=clock.ms) for name in ("home", *SERVERS)}
        self.domain = Domain(ROOT)
        for name in SERVERS:
            self.domain.servers.add(name, ServerEntry(f"memory://{name}"))
        self.store = RoutedStore(self.stores["home"], self.stores.__getitem__, lambda: list(SERVERS))
        self._apply(*SERVERS)
        self.log = self.domain.log(TOPIC)
        self.sent: list[SentMessage] = []
        self.lives = Lives(self.sent, keeps=kind != "without stores")
        self.queries = [self._query(number, name) for number, name in enumerate(self._durable())]
        self.listeners = [
            Listener(shared, server, self.lives, self.domain, self.store, self.random)
            for shared, server in ((None, None), (None, None), ("s", None), ("s", None), ("t", "a"))
        ]
        self.housekeeper = Housekeeper(self.domain, self.store, TOPIC)
        self.faults = Faults(self.stores)
        self.faults.install(patch)
        self.seen: Counter[str] = Counter()
        self._terms: Counter[str] = Counter()
        self._ends = False
        others_act(patch, random.Random(f"others {seed}"), self._another)

    def _durable(self) -> list[str]:
        return {"partitioned": ["billing"], "replicated": ["a@billing", "b@billing"]}.get(self.kind, [])

    def _query(self, number: int, name: str) -> Query:
        ensure_subscription(self.log, name, None)
        life = Life(name, server_of_subscription(name), True, 0)
        return Query(f"q{number}", life, self.domain, self.store, self.random)

    def _another(self) -> None:
        if self._ends:
            return
        self.random.choice([one for one in (*self.queries, *self.listeners) if not one.acts]).step()

    def _apply(self, *servers: str) -> None:
        forwarding = "partitioned" if self.kind == "partitioned" else "replicated"
        wanted = Destination(
            TOPIC,
            "distributed-topic",
            len(servers),
            servers=servers,
            forwarding=forwarding,
            store_enabled=self.kind != "without stores",
        )
        apply_destinations(self.domain, [wanted], lambda name, member: is_empty(self.domain, self.store, name, member))

    # -- what happens -------------------------------------------------------------------------------------------------
    def send(self) -> None:
        snapshot = self.log.refresh()
        writer = MessageWriter(self.log.storage, snapshot.destination, self.random.randrange(9), self.clock.ms())
        modes = [self.random.choice([PERSISTENT, NON_PERSISTENT]) for _ in range(self.random.randint(1, 4))]
        columns = [pa.array([bytes([mode]) for mode in modes], pa.binary()), pa.array(modes, pa.int32())]
        writer.write(pa.record_batch(columns, names=["body", "JMSDeliveryMode"]))
        if self.random.random() < 0.2:  # between the two
            self.random.choice([self.stop_server, self.start_servers, self.lapse, self.change_servers])()
        try:
            done = send(self.log, writer.close(), snapshot.route_id)
        except ServerDownError:
            declared = self.log.snapshot.destination
            assert set(declared.servers) <= declared.down.keys(), "one server is enough"
            self.seen["all down"] += 1
            return
        down = frozenset(self.log.snapshot.destination.down) if self.kind != "partitioned" else frozenset[str]()
        for member, picks in done.sequences.items():
            self.sent += [
                SentMessage((member, n), self._is_persistent(member, n), down) for n in picks.numbers().tolist()
            ]
        self.seen["sent while a server is down"] += bool(down)

    def _is_persistent(self, member: int, sequence: int) -> bool:
        (file,) = self.log.snapshot.member_files(member).overlapping(sequence, sequence)
        with self.log.storage.open_input(file.path) as source:
            body = pa.parquet.read_table(source, columns=["body"]).column("body")
        return bool(body[sequence - file.first].as_py() == bytes([PERSISTENT]))

    def query(self) -> None:
        if self.queries:
            self.random.choice(self.queries).step()

    def listen(self) -> None:
        self.random.choice(self.listeners).step()

    def crash(self) -> None:
        self.random.choice([*self.queries, *self.listeners]).crash()

    def go_away(self) -> None:
        self.faults.away.add(self.random.choice(SERVERS))

    def come_back(self) -> None:
        self.faults.away.clear()

    def lose_answer(self) -> None:
        self.faults.forgetful = self.random.choice(SERVERS)

    def stop_server(self) -> None:
        self.seen["stopped"] += bool(stop_server(self.domain, self.random.choice(SERVERS)))

    def start_servers(self) -> None:
        for server in self.domain.servers.stopped():
            start_server(self.domain, server)
        for server in SERVERS:
            if self._terms[server] % 2:
                self._next_term(server)

    def lapse(self) -> None:
        self._next_term(self.random.choice(SERVERS))

    def _next_term(self, server: str) -> None:
        self._terms[server] += 1
        number = self._terms[server]
        follow_term(self.log, server, LeaseTerm(number, self.clock.ms() if number % 2 else None))

    def change_servers(self) -> None:
        servers = self.random.sample(SERVERS, self.random.randint(1, 3))
        try:
            self._apply(*servers)
            self.seen["servers changed"] += 1
        except (MemberRemovalError, StoreError):
            self.seen["change refused"] += 1

    def purge(self) -> None:
        self.housekeeper._states.clear()
        self.housekeeper._away.clear()
        names, now = self.housekeeper.live_names, self.clock.ms() + _LATER_MS
        self.seen["purged"] += purge(self.log, self.housekeeper.is_done, now=now, live_names=names).purged_messages > 0
        with self.store.connect("housekeeping") as session:
            try:
                clear_leftovers(self.store, session, self.log)
            except StoreError:
                self.seen["leftovers left"] += 1

    def wait(self) -> None:
        self.clock.now_ms += self.random.choice([500, 12_000, 61_000])

    # -- a run --------------------------------------------------------------------------------------------------------
    def run(self) -> None:
        acts: list[tuple[Callable[[], None], int]] = [
            (self.send, 12),
            (self.query, 25),
            (self.listen, 45),
            (self.crash, 2),
            (self.go_away, 3),
            (self.come_back, 4),
            (self.lose_answer, 3),
            (self.stop_server, 4),
            (self.start_servers, 3),
            (self.lapse, 2),
            (self.change_servers, 2),
            (self.purge, 4),
            (self.wait, 2),
        ]
        for step in range(STEPS):
            (act,) = self.random.choices([act for act, _ in acts], [weight for _, weight in acts])
            act()
            self.clock.now_ms += self.random.choice([1, 60, 600])
            if step % 10 == 0:
                self.check()
        self._end()

    def _end(self) -> None:
        """The faults end, and everything that was sent arrives or is skipped."""
        self.faults.away, self.faults.forgetful = set(), ""
        self.start_servers()
        for _ in range(200):
            for query in self.queries:
                query.step()
            for listener in self.listeners:
                if listener.subscriber is not None:
                    listener.drain()
            self.clock.now_ms += 5_000
            if self._is_drained():
                break
        self._ends = True
        self.check()
        for life in (*self._durable_lives(), *self.lives.open.values()):
            life.check_drained(self.sent)
        for consumer in self.listeners:
            consumer.acknowledge()
            consumer.close()
        for query in self.queries:
            query.step()
        self.purge()
        left = [(file.member, file.first, file.last) for file in self.log.refresh().files.values()]
        assert not left, f"all have finished, and the purge has left {left}"
        self._check_nothing_left()

    def _durable_lives(self) -> list[Life]:
        return [query.life for query in self.queries]

    def _is_drained(self) -> bool:
        lives = (*self._durable_lives(), *self.lives.open.values())
        return not any(q.is_busy for q in self.queries) and all(life.is_drained(self.sent) for life in lives)

    # -- what must hold -----------------------------------------------------------------------------------------------
    def check(self) -> None:
        for life in (*self._durable_lives(), *self.lives.open.values(), *self.lives.ended):
            life.check(self.sent)
        if not self.faults.away:
            for life in self._durable_lives():
                self._check_conserved(life)

    def _check_conserved(self, life: Life) -> None:
        """Sent = received + skipped + present: what the record sets take for finished was received or skipped, and all else is
        in the table (C10, D6)."""
        snapshot = self.log.refresh()
        got, skipped = {key for key, _ in life.got}, life.skipped(self.sent)
        finished: set[Key] = set()
        for member in snapshot.destination.member_ids:
            last = snapshot.last_sequence(member)
            left = set(state_of(self.store, snapshot, life.name, member).unfinished(1, last).numbers().tolist())
            finished |= {(member, n) for n in range(1, last + 1) if n not in left}
            for n in left:
                assert snapshot.member_files(member).overlapping(n, n), (
                    f"{life.name}: {n} of member {member} was purged"
                )
        assert finished <= got | skipped, f"{life.name} finished {finished - got - skipped}, which it has not received"

    def _check_nothing_left(self) -> None:
        """No subscription that was not durable has left anything on the servers (C10)."""
        for server in ("", *(f"@{name}/" for name in self.log.snapshot.destination.servers_in_use())):
            for name in self.store.names(f"{server}members/"):
                state = read_state(self.store, name)
                if "/~" in name:
                    assert state == state.cleared(), f"{name} was left behind"
        for name in self.store.names("subscribers/"):
            assert all(not key.startswith("~") for key in self.store.peek(name))


def run(seed: int) -> World:
    kind = KINDS[seed % len(KINDS)]
    files, clock = MemoryStorage(), Clock()
    with in_memory(files, clock) as patch:
        world = World(files, clock, seed, kind, patch)
        world.run()
    return world
