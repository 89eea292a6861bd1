"""The sink of the expiration query: messages that are due, of which the record set decides (T6, M12)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_jms import apply, connect
from spark_jms.admin.statistics import collect
from spark_jms.claims.failures.due_expiration import DueExpiration, DueMessages
from spark_jms.claims.failures.expiration import ExpirationScan
from spark_jms.client.context.context import Context
from spark_jms.core.messages.ranges import Ranges
from spark_jms.store import MemoryStore, StoreBusyError
from spark_jms.testing import wait_until
from spark_jms.testing.inside import domain_of, records_of


@pytest.fixture
def context(tmp_path: Any) -> Iterator[Context]:
    store = f"due-{tmp_path.name}"
    destinations = {"orders": {"kind": "queue"}, "others": {"kind": "queue"}}
    apply(str(tmp_path), {"store": f"memory://{store}", "destinations": destinations})
    with connect(str(tmp_path), housekeeping=False) as made:
        yield made
    MemoryStore.forget(store)


def due(context: Context, name: str, first: int = 1, last: int = 100) -> DueMessages:
    table = domain_of(context).log(name).refresh().table_id
    return DueMessages(table, name, 0, Ranges.of((first, last)))


def send_over(context: Context, name: str, count: int) -> None:
    context.producer(name).send_many({"text": f"{n}", "time_to_live": "1 ms"} for n in range(count))


def expired(context: Context, name: str) -> int:
    return collect(domain_of(context), records_of(context), name).expired


def test_only_what_is_over_expires_and_once(context: Context) -> None:
    """T6: messages of other files stay for another time; a batch that is repeated, and a second sink, change nothing."""
    for count in (2, 3):
        send_over(context, "orders", count)
    context.producer("orders").send(text="stays", time_to_live="1 h")
    context.producer("orders").send(text="stays")
    one, other = (DueExpiration(domain_of(context), records_of(context)) for _ in range(2))
    wait_until(lambda: one.expire([due(context, "orders", 1, 2)]) == 2, 10)
    assert expired(context, "orders") == 2
    wait_until(lambda: one.expire([due(context, "orders")]) == 3, 10)
    assert [sink.expire([due(context, "orders")]) for sink in (one, other)] == [0, 0]
    found = collect(domain_of(context), records_of(context), "orders")
    assert (found.expired, found.backlog) == (5, 2)


def test_message_that_a_consumer_has_expires_later(context: Context) -> None:
    """T6: the state of the query names it again."""
    sink = DueExpiration(domain_of(context), records_of(context))
    context.producer("orders").send(text="held", time_to_live="1 s")
    with context.consumer("orders") as consumer:
        assert consumer.receive(timeout=10) is not None
        send_over(context, "others", 1)
        wait_until(lambda: sink.expire([due(context, "orders"), due(context, "others")]) == 1, 10)
        assert expired(context, "orders") == 0
    wait_until(lambda: sink.expire([due(context, "orders")]) == 1, 10)


def test_destination_that_fails_or_is_gone_holds_up_no_other(
    context: Context, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T6: it is logged, and comes again."""
    for name in ("orders", "others"):
        send_over(context, name, 2)
    sink = DueExpiration(domain_of(context), records_of(context))
    gone = DueMessages("another table", "orders", 0, Ranges.of((1, 9)))
    run = ExpirationScan.run

    def away(scan: ExpirationScan, **given: Any) -> int:
        if wanted(scan):
            raise StoreBusyError("away")
        return run(scan, **given)

    def wanted(scan: ExpirationScan) -> bool:
        return vars(scan)["_table"].name == "orders"

    with monkeypatch.context() as patch:
        patch.setattr(ExpirationScan, "run", away)
        wait_until(lambda: sink.expire([gone, due(context, "orders"), due(context, "others")]) == 2, 10)
    assert "orders: messages that are due did not expire" in caplog.text
    assert expired(context, "others") == 2
    wait_until(lambda: sink.expire([due(context, "orders")]) == 2, 10)
