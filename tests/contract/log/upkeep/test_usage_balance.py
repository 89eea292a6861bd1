"""The usage history compares itself with the queues, and a restored copy is noticed (T3)."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jms import apply, connect
from spark_jms.admin.services import Rounds
from spark_jms.claims.upkeep import usage_history as upkeep
from spark_jms.claims.upkeep.usage_history import UsageHistory
from spark_jms.client.context.context import Context
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.record_set import RecordSet
from spark_jms.errors import StaleDomainError, UsageDifferenceError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.upkeep.usage_history import UsageHistoryTable
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.domains.quotas import receive
from tests.harness.domains.usage import drop, expire, usage_domain


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    with usage_domain(tmp_path) as made:
        yield made


def rounds_of(root: str, count: int = 2, history: UsageHistory | None = None) -> list[dict[str, Exception]]:
    """The errors of so many rounds of one process."""
    with connect(root, housekeeping=False) as context:
        history = history or UsageHistory(Domain(root), records_of(context))
        return [history.record(["orders"])[1] for _ in range(count)]


def send_and_receive(root: str, sent: int, received: int) -> None:
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send_many({"text": f"{n}"} for n in range(sent))
        if received:
            receive(context, received)


def test_queue_at_rest_that_does_not_hold_what_it_must_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """T3: here its store was restored from a copy, so finished messages are there again. The second look names it, the log once
    until it changes; with another process it is still named, and over when the store is repaired."""
    root, store = str(tmp_path / "messages"), tmp_path / "messages" / "_jmsq" / "store"
    apply(root, {"destinations": {"orders": {"kind": "queue"}}})
    send_and_receive(root, 5, 1)
    assert rounds_of(root, 3) == [{}, {}, {}]
    shutil.copytree(store, tmp_path / "copy")
    send_and_receive(root, 0, 3)
    assert rounds_of(root, 3) == [{}, {}, {}]
    shutil.move(store, tmp_path / "right")
    shutil.copytree(tmp_path / "copy", store)
    send_and_receive(root, 1, 0)
    with caplog.at_level(logging.ERROR):
        errors = rounds_of(root, 4)
    assert [{name: type(error) for name, error in one.items()} for one in errors] == [
        {},
        *[{"orders": UsageDifferenceError}] * 3,
    ]
    assert "orders must hold 2 messages, and it holds 5" in str(errors[-1]["orders"])
    assert caplog.text.count("orders must hold 2 messages") == 1
    send_and_receive(root, 2, 0)
    assert "must hold 4 messages, and it holds 7" in str(rounds_of(root)[-1]["orders"])
    shutil.rmtree(store)
    shutil.move(tmp_path / "right", store)
    send_and_receive(root, 1, 0)
    assert rounds_of(root, 3) == [{}, {}, {}]


def test_every_ending_of_a_queue_keeps_its_balance(context: Context) -> None:
    """T3: by consumers, expiration, purge, and what was purged before it was read; also when the history begins late."""
    history = UsageHistory(domain_of(context), records_of(context))
    rounds = Rounds(domain_of(context), records_of(context), clean_up=True)

    def balanced(holds: int) -> None:
        assert [history.record(["orders"])[1] for _ in range(3)] == [{}, {}, {}]
        table = domain_of(context).log("orders").refresh().table_id
        assert UsageHistoryTable(domain_of(context)).known().levels == {table: holds}

    context.producer("orders").send_many({"text": f"{n}"} for n in range(10))
    receive(context, 2)
    balanced(8)
    receive(context, 2)
    expire(context, "orders", 3)
    balanced(6)
    assert drop(context, "orders") == 6
    balanced(0)
    context.producer("orders").send_many({"text": f"{n}"} for n in range(3))
    receive(context, 3)
    rounds.run(["orders"])  # purged before it was read
    context.producer("orders").send(text="x")
    balanced(1)
    with context.consumer("orders") as consumer:
        assert consumer.receive(timeout=10) is not None
        context.producer("orders").send(text="x")
        balanced(2)
    rounds.close()


def test_store_that_is_restored_without_news_is_noticed(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T3: as by a database that falls back to an older replica; within ten minutes."""
    now_s = [0.0]
    history = UsageHistory(domain_of(context), records_of(context), monotonic_s=lambda: now_s[0])
    context.producer("orders").send_many({"text": f"{n}"} for n in range(3))
    assert [history.record(["orders"])[1] for _ in range(3)] == [{}] * 3
    monkeypatch.setattr(RecordSet, "unfinished", lambda *_: Ranges.of((1, 2)))
    assert history.record(["orders"])[1] == {}
    now_s[0] += upkeep.COMPARE_ALL_S
    assert [[*history.record(["orders"])[1]] for _ in range(2)] == [[], ["orders"]]


def test_restored_table_is_named_and_counted_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """T3: the positions of the history were ahead of it; what is sent to the copy counts."""
    root, table = str(tmp_path / "messages"), tmp_path / "messages" / "orders"
    apply(root, {"destinations": {"orders": {"kind": "queue"}}})
    send_and_receive(root, 2, 0)
    shutil.copytree(table, tmp_path / "copy")
    send_and_receive(root, 3, 0)
    assert rounds_of(root) == [{}, {}]
    shutil.rmtree(table)
    shutil.move(tmp_path / "copy", table)
    with caplog.at_level(logging.WARNING):
        first, second = rounds_of(root)
    assert {name: type(error) for name, error in first.items()} == {"orders": StaleDomainError}
    assert "was ahead of its table (sent, member 0: 5, and the table ends at 2)" in caplog.text
    assert second == {}
    send_and_receive(root, 1, 0)
    assert rounds_of(root, 3) == [{}, {}, {}]
    assert sum(row.sent for row in UsageHistoryTable(Domain(root)).read(["orders"])) == 6
