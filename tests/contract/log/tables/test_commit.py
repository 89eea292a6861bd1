"""Commits decide on an immutable snapshot, and decisions do no I/O (C5, C10, C13)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError, replace
from typing import Any

import attrs
import pytest

from spark_jms import connect
from spark_jms.claims.records import life_cycle
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.core.destinations.destination import Destination
from spark_jms.log.destinations import declarations
from spark_jms.log.destinations.declarations import apply_destinations, create_subscription, drop_subscription
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.sending import send
from spark_jms.log.tables import commit as commit_module
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import LocalStorage
from spark_jms.log.upkeep import compaction, purge
from spark_jms.log.upkeep.compaction import compact
from spark_jms.store.ledger.store import MemoryStore
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of, records_of


# -- snapshots ------------------------------------------------------------------------------------------------------------
def test_a_snapshot_never_changes() -> None:
    """C5: following the log makes new snapshots; an older one keeps its version, files and declaration."""
    with memory_domain(orders="topic") as root, connect(root, housekeeping=False) as context:
        log = domain_of(context).log("orders")
        before = log.refresh()
        context.producer("orders").send(text="a")
        create_subscription(log, "s", lambda snapshot: {0: 0})
        compact(log)
        after = log.refresh()
        assert (before.version, dict(before.files), dict(before.members), before.last_sequence(0)) == (0, {}, {}, 0)
        assert before.destination.subscriptions == {}
        assert (after.version, len(after.files), after.last_sequence(0)) == (2, 1, 1)
        assert set(after.destination.subscriptions) == {"s"}
        with pytest.raises(FrozenInstanceError):
            after.version = 9  # type: ignore[misc]


def test_a_subscription_made_while_members_are_removed_is_kept() -> None:
    """C10: `apply` reads the store for a member's messages, which follows the log to a version with the new subscription.
    The change must not be committed on top of that version from the declaration before it."""
    topic = Destination("prices", "distributed-topic", 2)
    with memory_domain(prices={"kind": "distributed-topic", "members": 2}) as root:
        domain, other = Domain(root), Domain(root)
        apply_destinations(domain, [attrs.evolve(topic, members=3)], lambda *_: True)
        with connect(root, housekeeping=False) as context:
            context.producer("prices").send_many({"text": str(n)} for n in range(9))
        asked = []

        def empty(destination: str, member: int) -> bool:
            asked.append(member)
            create_subscription(other.log(destination), "late", lambda snapshot: {0: 0})
            domain.log(destination).refresh()
            return True

        apply_destinations(domain, [topic], empty)
        declared = Domain(root).log("prices").refresh().destination
        assert asked == [2, 2]
        assert declared.members == 2
        assert set(declared.subscriptions) == {"late"}


# -- decisions ------------------------------------------------------------------------------------------------------------
class Guard:
    """Fails every call of a port while a decision is made."""

    def __init__(self) -> None:
        self.deciding = False
        self.decided: list[str] = []
        self.calls: list[str] = []

    @contextlib.contextmanager
    def decision(self, what: str) -> Iterator[None]:
        self.decided.append(what)
        self.deciding = True
        try:
            yield
        finally:
            self.deciding = False

    def watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if self.deciding:
                self.calls.append(name)
            return function(*args, **named)

        return call


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Guard:
    """Watches storage, store and clock, and knows when `decide` runs."""
    made = Guard()
    commit_prepared = commit_module.commit_prepared

    def guarded(log: Any, prepare: Any, decide: Any, **limits: Any) -> Any:
        def decide_guarded(snapshot: Snapshot, prepared: Any) -> Any:
            with made.decision(log.name):
                decision = decide(snapshot, prepared)
                return decision and replace(decision, actions=list(decision.actions))

        return commit_prepared(log, prepare, decide_guarded, **limits)

    for module in (commit_module, send, compaction, declarations, life_cycle):
        monkeypatch.setattr(module, "commit_prepared", guarded)
    for name in ("get", "create", "sync", "put", "exists", "list", "delete", "open_input", "open_output"):
        monkeypatch.setattr(LocalStorage, name, made.watched(f"storage.{name}", getattr(LocalStorage, name)))
    for name in ("connect", "peek", "infos", "sessions"):
        monkeypatch.setattr(MemoryStore, name, made.watched(f"store.{name}", getattr(MemoryStore, name)))
    for module in (compaction, purge, declarations, life_cycle, send):
        if hasattr(module, "now_ms"):
            monkeypatch.setattr(module, "now_ms", made.watched("now_ms", module.now_ms))
    return made


def test_decisions_call_no_port(guard: Guard) -> None:
    """C5: send, reroute, repeated transaction, compaction, purge, acknowledgements, declarations, subscriptions."""
    with (
        memory_domain(orders={"kind": "distributed-queue", "members": 2}, prices="topic") as root,
        connect(root, housekeeping=False) as context,
    ):
        producer = context.producer("orders")
        log = domain_of(context).log("orders")
        for n in range(40):
            producer.send(text=str(n))
        for _ in range(2):
            producer.send_many([{"text": "once"}], transaction=("t", 1))
        compact(log)
        with context.consumer("orders", prefetch=100, acknowledge="auto") as consumer:
            while consumer.receive(timeout=0):
                pass
        housekeeper = Housekeeper(domain_of(context), records_of(context), "orders")
        assert housekeeper.run()
        housekeeper.close()
        apply_destinations(domain_of(context), [Destination("orders", "distributed-queue", 4)], lambda *_: True)
        topic = domain_of(context).log("prices")
        create_subscription(topic, "s", lambda snapshot: {0: 0})
        assert drop_subscription(topic, "s")
        assert log.refresh().destination.members == 4
        assert {"orders", "prices", "acknowledgements of orders"} <= set(guard.decided)
        assert len(guard.decided) > 45
        assert guard.calls == []
