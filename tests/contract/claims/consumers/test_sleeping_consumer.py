"""A consumer whose process stood still for longer than its session's time-out (C9)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from spark_jms import connect
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.servers.stores import store_of
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.errors import ConsumerClosedException
from spark_jms.log.destinations.domain import Domain
from spark_jms.store import MemoryStore
from spark_jms.store.ledger.session import LedgerSession
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import members_of, records_of

CALLS = ("open", "commit", "change", "look", "cancel", "_read", "_close_handle")  # of a session, and of its handles
ORDERS: dict[str, Any] = {"kind": "distributed-queue", "members": 2}


class Sleep:
    """Before the call number `at` of a session, its process stands still while `meanwhile` runs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
        self.at, self.calls, self.session_id = at, 0, ""
        self.meanwhile: Callable[[], None] | None = None
        for name in CALLS:
            monkeypatch.setattr(LedgerSession, name, self._slept(getattr(LedgerSession, name)))

    def _slept(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def slept(session: LedgerSession, *given: Any, **named: Any) -> Any:
            if session.session_id == self.session_id and self.meanwhile is not None:
                self.calls += 1
                if self.calls == self.at:
                    meanwhile, self.meanwhile = self.meanwhile, None
                    meanwhile()
            return call(session, *given, **named)

        return slept


def subscriber(root: str, store: MemoryStore, consumer: str, *, query: bool) -> Subscriber:
    return Subscriber(Domain(root), store, "orders", "-", consumer, ConsumerSettings(replayable=query))


def work(consumer: Subscriber) -> None:
    """All that a consumer does with its session: five batches, where that of a query acknowledges the one before, a look at its
    session, and rows to its table."""
    first = consumer.next_batch(Batch(consumer.consumer), Limits(max_messages=4))
    assert first is not None
    if consumer.settings.replayable:
        consumer.resume(first)
    else:
        first = Batch(consumer.consumer)  # a client acknowledges in another way
    second = consumer.next_batch(first, Limits(max_messages=4))
    consumer.check_session()
    for _ in range(3):
        second = consumer.next_batch(second or first if consumer.settings.replayable else first, Limits(max_messages=4))
    consumer.flush_outbox()


@pytest.mark.parametrize("query", [True, False])
def test_consumer_that_slept_in_any_call_is_closed_by_name(monkeypatch: pytest.MonkeyPatch, *, query: bool) -> None:
    """C9: wherever the process stood still, while its session ended and another consumer took the records, the call raises
    ConsumerClosedException and no error of the store."""
    for at in count(1):
        sleep = Sleep(monkeypatch, at)
        with memory_domain(orders=ORDERS) as root, connect(root, housekeeping=False) as context:
            context.producer("orders").send_many({"text": str(n)} for n in range(40))
            store = store_of(records_of(context), HOME)
            assert isinstance(store, MemoryStore)
            sleeper, other = (subscriber(root, store, name, query=query) for name in ("sleeper", "other"))

            def taken_over(
                store: MemoryStore = store, sleeper: Subscriber = sleeper, other: Subscriber = other
            ) -> None:
                store.crash(members_of(sleeper).session)
                other.next_batch(Batch("other"), Limits(max_messages=4))

            sleep.session_id, sleep.meanwhile = members_of(sleeper).session_id, taken_over
            try:
                work(sleeper)
                ended = sleep.meanwhile is None
            except ConsumerClosedException:
                ended = True
                with pytest.raises(ConsumerClosedException):
                    sleeper.next_batch(Batch("sleeper"), Limits())
            sleeper.close()
            other.close()
        monkeypatch.undo()
        if not ended:
            assert at > 8, "the work has fewer calls than it should"
            return
