"""The usage that senders read, while messages are finished, published, purged and merged in any order (T1)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from spark_jms import connect
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.claims.upkeep.usage import UsagePublisher, UsageRecount, publish_usage
from spark_jms.client import Context
from spark_jms.core.limits.quota import MessageUsage
from spark_jms.core.records.record_set import RecordSet
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.upkeep import housekeeping
from spark_jms.store import MemoryStore
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.domains.quotas import made

DEPTH = 3


@pytest.fixture
def context(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    made(str(tmp_path), {"messagesMaximum": 10_000})
    monkeypatch.setattr(UsagePublisher, "publish", lambda self, paced=True: None)  # only the course publishes
    monkeypatch.setattr(UsageRecount, "__call__", lambda self, destinations: None)
    with connect(str(tmp_path), housekeeping=False) as opened:
        yield opened
    MemoryStore.forget(f"quotas-{tmp_path.name}")


class Course:
    """Whatever reads and then writes has other steps in between, as other processes take them."""

    def __init__(self, context: Context, seed: int, *, bytes_are_exact: bool) -> None:
        self._chance, self._exact = random.Random(seed), bytes_are_exact
        self._domain, self._log = domain_of(context), domain_of(context).log("orders")
        self._keeper = Housekeeper(domain_of(context), records_of(context), "orders")
        self._producer, self._consumer = context.producer("orders"), context.consumer("orders", prefetch=1)
        self._sent, self._finished = MessageUsage(), 0
        self.looked, self._before = 0, (MessageUsage(), MessageUsage())  # the newest look, and what was sent then

    def step(self, depth: int = 0) -> None:
        steps = [self._send, self._finish, self._purge]
        if depth < DEPTH:
            steps += [lambda: self._publish(depth), lambda: self._look(depth)]
        self._chance.choice(steps)()

    def _others(self, depth: int) -> None:
        for _ in range(self._chance.randrange(5)):
            self.step(depth + 1)

    def _send(self) -> None:
        known = self._log.refresh().files
        count = self._chance.randint(1, 4)
        self._producer.send_many({"text": "x" * self._chance.randrange(500)} for _ in range(count))
        size = sum(file.message_bytes for path, file in self._log.refresh().files.items() if path not in known)
        self._sent += MessageUsage(count, size)

    def _finish(self) -> None:
        self._finish_some(self._chance.randint(1, 9))

    def _finish_some(self, most: int) -> None:
        for _ in range(min(most, self._sent.messages - self._finished)):
            message = self._consumer.receive(timeout=10)
            assert message is not None
            message.acknowledge()
            self._finished += 1

    def _purge(self) -> None:
        if self._chance.random() < 0.7:
            self._finish_some(100)
        self._keeper.begin_round()
        self._keeper.rounds.round()
        assert not self._keeper.health.failures

    def _publish(self, depth: int) -> None:
        def late(snapshot: Snapshot, subscription: str, member: int) -> RecordSet:
            found = self._keeper.state_now(subscription, member)
            self._others(depth)
            return found

        publish_usage(self._domain, self._log, late, lambda _: [])

    def _look(self, depth: int) -> None:
        """As for an entry of the ledger: only the first one counts that ends."""
        begun = self.looked
        published = self._domain.usages.read(self._log.snapshot.table_id)
        self._others(depth)
        sent, finished, found = self._sent, self._finished, self._domain.usages.by(published, self._log.refresh())
        assert found.messages >= sent.messages - finished, "understated"
        if self.looked != begun:
            return
        usage, then = self._before
        most = usage + sent - then
        assert found.messages <= most.messages, "it rose by more than was sent"
        assert found.bytes <= most.bytes or not self._exact, "it rose by more than was sent"
        self.looked, self._before = self.looked + 1, (found, sent)


@pytest.mark.parametrize(("compacts", "seed"), [(False, 0), (False, 1), (True, 0)])
def test_usage_rises_by_what_is_sent_only(
    context: Context, monkeypatch: pytest.MonkeyPatch, compacts: bool, seed: int
) -> None:
    """T1: so what a grant has found within the maximum stays within it. Bytes may rise with a compaction, as documented."""
    if not compacts:
        monkeypatch.setattr(housekeeping, "compact", lambda *_: None)
    course = Course(context, seed, bytes_are_exact=not compacts)
    for _ in range(40):
        course.step()
    assert course.looked > 3
