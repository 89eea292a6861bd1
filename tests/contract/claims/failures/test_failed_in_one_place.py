"""A message that was consumed too often is in one place: at its error destination, set aside, or listed as refused (C8, C20).

Random queues: the sizes of messages, their units of order and of work, what the error destination and the queue of undecodable
messages take, which changes on the way, consumers that come and go, administrators that move and purge. The seeds are the same in
every run; JMSQ_SEEDS sets how many.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from spark_jms import connect
from spark_jms.admin.purge import drop_backlog
from spark_jms.admin.transfer import MoveOrder, move
from spark_jms.claims.failures.error_destination import SET_ASIDE
from spark_jms.claims.servers.stores import state_of
from spark_jms.claims.upkeep import views
from spark_jms.client.context.context import Context
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.ordering.units_of_work import END, NUMBER, UNIT
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.refusal import holding_back
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of, members_of, records_of
from tests.harness.messages.clocked_consumer import ClockedConsumer

MESSAGES, STEPS, LARGEST = 24, 30, 80
SEEDS = int(os.environ.get("JMSQ_SEEDS", "8"))
WIDE = 10_000


class World:
    """One queue, `orders`, of which every message fails or cannot be decoded; a few are acknowledged."""

    def __init__(self, context: Context, seed: int) -> None:
        self.context, self.random = context, random.Random(seed)
        draw = self.random
        self.limit, self.whole = draw.choice([0, 0, 1, 2]), draw.random() < 0.3
        self.redirects = draw.random() < 0.4
        self.texts: list[str] = []  # of sequence 1, 2 …
        self.groups: list[str | None] = []
        self.undecodable: set[int] = set()
        self.gone: Counter[str] = Counter()  # acknowledged, or purged
        self.deliveries: Counter[int] = Counter()
        self.declare("failed", draw.randint(1, LARGEST))
        self.declare(SET_ASIDE, draw.randint(1, LARGEST))
        self.declare("other", WIDE)
        self._declare(
            Destination(
                "orders",
                "queue",
                redelivery_limit=self.limit,
                error_destination="failed",
                expiration_policy="Redirect" if self.redirects else "Discard",
                unit_of_work_handling_policy="SingleMessageDelivery" if self.whole else "PassThrough",
            )
        )
        self._send()
        self.consumer = self._consumer()

    # -- what may happen ------------------------------------------------------------------------------------------
    def declare(self, name: str, most: int) -> None:
        self._declare(Destination(name, "queue", max_message_bytes=most))

    def _declare(self, destination: Destination) -> None:
        apply_destinations(domain_of(self.context), [destination], lambda destination, member: False)

    def _send(self) -> None:
        producer, draw = self.context.producer("orders"), self.random
        while len(self.texts) < MESSAGES:
            parts = draw.randint(1, 3) if self.whole and draw.random() < 0.5 else 1
            group = None if parts > 1 else draw.choice([None, None, "a", "b"])
            for number in range(1, parts + 1):
                text = f"{len(self.texts):02}" + "x" * draw.randint(0, LARGEST)
                unit = {
                    UNIT: f"u{len(self.texts) - number}",
                    NUMBER: number,
                    **({END: True} if number == parts else {}),
                }
                life = {"time_to_live": "1 h"} if self.redirects and draw.random() < 0.3 else {}
                producer.send(text=text, properties=unit if parts > 1 else {}, group_id=group, **life)
                self.texts.append(text)
                self.groups.append(group)
                if parts == 1 and draw.random() < 0.2:
                    self.undecodable.add(len(self.texts))

    def _consumer(self) -> ClockedConsumer:
        self.lives = getattr(self, "lives", 0) + 1
        made = ClockedConsumer(self.context, "orders", f"q{self.lives}")
        made.now_ms = max(made.now_ms, self.consumer.now_ms if self.lives > 1 else 0)
        return made

    def restart(self) -> None:
        members_of(self.consumer.subscriber).close()
        self.consumer = self._consumer()

    def later(self) -> None:
        self.consumer.now_ms += self.random.choice([1_000, 10_000, 2 * 3_600_000])

    def move(self) -> None:
        members_of(self.consumer.subscriber).close()
        move(domain_of(self.context), records_of(self.context), MoveOrder("orders", "other", limit=2), 5)
        self.consumer = self._consumer()

    def purge(self) -> None:
        members_of(self.consumer.subscriber).close()
        before = self.present()
        drop_backlog(domain_of(self.context), records_of(self.context), "orders", None, [0], 5)
        self.gone += before - self.present()
        self.consumer = self._consumer()

    def narrow(self) -> None:
        self.declare(self.random.choice(["failed", SET_ASIDE]), self.random.randint(1, LARGEST))

    def consume(self, count: int | None = None) -> bool:
        """Receive messages, and reject nearly all of them. False: there are none."""
        self.consumer.now_ms += 1_000
        most = self.random.choice([1, 3, 50]) if count is None else count
        batch = self.consumer.subscriber.next_batch(self.consumer.start, Limits(max_messages=most))
        if batch is not None:
            self._fail(batch)
        return batch is not None

    def _fail(self, batch: Batch) -> None:
        picks, subscriber = batch.members[0].picks, self.consumer.subscriber
        bad = picks & Ranges.from_numbers(sorted(self.undecodable))
        for sequence in bad.numbers().tolist():
            assert subscriber.set_aside(batch.claim, 0, {sequence: "it cannot be decoded"})
        rest = picks - bad
        self.deliveries.update(rest.numbers().tolist())
        if rest and not self.whole and self.random.random() < 0.1:
            done = rest.take(1)
            assert not subscriber.acknowledge({batch.claim: {0: done}})
            self.gone[self.texts[done.first - 1]] += 1
            rest = rest - done
        if rest:
            assert subscriber.release(batch.claim, {0: rest}, delivered=True)

    def step(self) -> None:
        actions = [
            (self.consume, 10),
            (self.narrow, 2),
            (self.restart, 1),
            (self.later, 1),
            (self.move, 0.3),
            (self.purge, 0.1),
        ]
        (act,) = self.random.choices([act for act, _ in actions], [weight for _, weight in actions])
        act()
        self.check()

    # -- what must hold -------------------------------------------------------------------------------------------
    @property
    def state(self) -> RecordSet:
        return state_of(records_of(self.context), domain_of(self.context).log("orders").refresh(), "-", 0)

    def present(self) -> Counter[str]:
        """Without those of open transfers, which are at their target or on the way."""
        state = self.state
        unfinished = state.unfinished(1, len(self.texts)) - state.moving
        return Counter(self.texts[sequence - 1] for sequence in unfinished.numbers().tolist())

    def check(self) -> None:
        """Each message is in one place; none was delivered too often; what is refused is listed once, with its reason."""
        places = self.present() + self.gone
        for name in ("failed", SET_ASIDE, "other"):
            places += Counter(str(message.text) for message in self.context.browser(name))
        moving = Counter(self.texts[sequence - 1] for sequence in self.state.moving.numbers().tolist())
        assert places | moving == Counter(self.texts), "a message is missing, or in two places"
        assert max(self.deliveries.values(), default=0) <= self.limit + 1
        listed = views.refusals(domain_of(self.context), records_of(self.context), "orders")
        assert sum(row.messages for row in listed) == self.state.refused.count
        assert all(row.reason and row.failure for row in listed)

    def settle(self) -> None:
        for _ in range(200):
            if not self.consume(50):
                self.consumer.now_ms += 10_000
                if not self.consume(50):
                    return
        raise AssertionError("messages come again and again")

    def check_settled(self) -> None:
        """What is left is refused by what its target declares now, or is behind such a message in its unit of order."""
        self.check()
        state = self.state
        free = state.unfinished(1, len(self.texts)) - state.refused
        assert not state.claimed | state.moving
        blocked = {self.groups[n - 1] for n in holding_back(state.refusals).numbers().tolist()} - {None}
        assert all(self.groups[sequence - 1] in blocked for sequence in free.numbers().tolist())
        domain = domain_of(self.context)
        for refusal in state.refusals:
            most = domain.log(refusal.target).refresh().destination.max_message_bytes
            sizes = [len(self.texts[sequence - 1]) for sequence in refusal.picks.numbers().tolist()]
            assert self.whole or all(size + LARGEST > most for size in sizes)
            assert max(sizes) + 150 > most, "a unit of work has a part that is too large"


@pytest.fixture(params=range(SEEDS))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    with memory_domain(unused="queue") as root, connect(root, housekeeping=False) as context:
        yield World(context, request.param)


def test_failed_message_is_in_one_place(world: World) -> None:
    """C8, C18, C20, T6, T10, T12: at any time; in the end all are where they belong, once their targets take them."""
    for _ in range(STEPS):
        world.step()
    world.settle()
    world.check_settled()
    for name in ("failed", SET_ASIDE):
        world.declare(name, WIDE)
    world.settle()
    world.check()
    assert not world.present(), "a message stays although its target takes it"
    assert not world.state.refusals


def test_worlds_have_messages_of_each_end() -> None:
    """C8, C20: the test above is not empty."""
    ends: Counter[str] = Counter()
    for seed in range(4):
        with memory_domain(unused="queue") as root, connect(root, housekeeping=False) as context:
            world = World(context, seed)
            for _ in range(STEPS):
                world.step()
            for refusal in world.state.refusals:
                ends[f"{refusal.consumer} refused"] += refusal.picks.count
            for name in ("failed", SET_ASIDE):
                ends[name] += len(list(context.browser(name)))
    wanted: dict[str, Any] = {"failed": 5, SET_ASIDE: 2, "redelivery limit refused": 5, "set aside refused": 2}
    assert all(ends[name] >= count for name, count in wanted.items()), ends
