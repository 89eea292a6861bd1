"""The clock rule: whose clock decides, and what a wrong clock does (C17)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_jms import connect
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.upkeep.housekeeping import Housekeeper, published_failures
from spark_jms.client import Context
from spark_jms.core.messages.ranges import EMPTY
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables import storage
from spark_jms.log.tables.storage import now_ms, read_clock
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of, records_of

HOUR_MS = 3_600_000


@pytest.fixture
def context() -> Iterator[Context]:
    with memory_domain(orders="queue") as root, connect(root, housekeeping=False) as opened:
        yield opened


def received(context: Context, behind_ms: int) -> list[int]:
    """What a consumer plans whose clock is behind the senders'."""
    settings = ConsumerSettings(replayable=False)
    one = Subscriber(
        Domain(context.root),
        records_of(context),
        "orders",
        "-",
        f"c{behind_ms}",
        settings,
        clock_ms=lambda: now_ms() - behind_ms,
    )
    batch = one.next_batch(Batch(one.consumer), Limits())
    picks = batch.members[0].picks if batch else EMPTY
    if batch:
        one.release(batch.claim, {0: picks}, delivered=False)
    one.close()
    return picks.numbers().tolist()


def test_messages_without_a_delay_come_at_once_whatever_the_clocks(context: Context) -> None:
    """C17, C12: also in one file with delayed ones; a delay is shifted by the skew."""
    context.producer("orders").send(text="1")
    context.producer("orders").send_many([{"text": "2"}, {"text": "3", "delay": "1 h"}, {"text": "4", "group_id": "g"}])
    assert received(context, HOUR_MS) == [1, 2, 4]
    assert received(context, 0) == [1, 2, 4]
    assert received(context, -HOUR_MS - 1_000) == [1, 2, 3, 4]


def test_clock_is_compared_with_the_roots(context: Context) -> None:
    """C17: nothing of the measurement stays."""
    reading = read_clock(domain_of(context).storage)
    assert reading.is_tolerated
    assert list(domain_of(context).storage.list("_jmsq/clock")) == []


def test_housekeeping_names_a_wrong_clock(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C17, C20: published for `jmsq stat`; housekeeping itself works on."""
    monkeypatch.setattr(storage, "now_ms", lambda: now_ms() - HOUR_MS)
    housekeeper = Housekeeper(Domain(context.root), records_of(context), "orders")
    assert housekeeper.run()
    (failure,) = published_failures(domain_of(context), records_of(context), "orders")
    assert failure.what == "clock"
    assert "ClockSkewError" in failure.error
    assert "ms behind" in failure.error
    housekeeper.close()
    monkeypatch.undo()
    housekeeper = Housekeeper(Domain(context.root), records_of(context), "orders")
    assert housekeeper.run()
    assert published_failures(domain_of(context), records_of(context), "orders") == ()
    housekeeper.close()
