"""Deliveries come first: what consumers and the search for expired messages do beside them (T6)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from spark_jms import connect
from spark_jms.claims.batches import planner
from spark_jms.claims.failures import expiration
from spark_jms.claims.messages import scan as claims_scan
from spark_jms.claims.messages.scan import Scan
from spark_jms.claims.servers import stores
from spark_jms.client.context.context import Context
from spark_jms.core.messages.ranges import Ranges
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.upkeep import health
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.domains.expirations import (
    HOUR_MS,
    Later,
    Search,
    expired,
    opened_domain,
    send,
)


@pytest.fixture
def context() -> Iterator[Context]:
    with opened_domain() as opened:
        yield opened


def test_consumer_is_not_held_up_by_many_expired_messages(
    context: Context, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T6: while it has messages to deliver it logs some in a second, by whatever clock, and looks at none of the others again;
    more of them once it has delivered none for a second. A plan between two deliveries is empty, and logs none."""
    monkeypatch.setattr(expiration, "DELIVERING", 10)
    monkeypatch.setattr(expiration, "IDLE", 15)
    looked: list[int] = []
    looks = claims_scan.scan

    def scan(table: DeltaLog, member: int, candidates: Ranges, *given: Any, **more: Any) -> Scan:
        looked.append(candidates.count)
        return looks(table, member, candidates, *given, **more)

    monkeypatch.setattr(planner, "scan", scan)
    send(context, "logged", *map(str, range(50)))
    send(context, "logged", *map(str, range(50, 60)), time_to_live=None)
    later = Later(context, "logged")
    with caplog.at_level(logging.WARNING, "spark_jms.expiration"):
        assert [later.batch(2)[1] for _ in range(2)] == [[51, 52], [53, 54]]
        assert len(caplog.records) == 10
        later.now_ms += expiration.DELIVERING_EVERY_MS
        assert [later.batch(2)[1] for _ in range(2)] == [[55, 56], [57, 58]]
        assert len(caplog.records) == 20
        later.now_ms -= HOUR_MS  # the clock was put back
        assert later.batch(2)[1] == [59, 60]
        assert len(caplog.records) == 30
        assert [later.batch(2)[1] for _ in range(2)] == [[], []]
        assert len(caplog.records) == 30
        later.now_ms += expiration.DELIVERING_EVERY_MS
        assert later.batch(2)[1] == []
        assert len(caplog.records) == 45
        assert later.batch(2)[1] == []
        assert len(caplog.records) == 50
    assert looked == [2, 58, 2, 2, 2, 2]
    assert expired(context, "logged") == 50


def test_search_reads_the_log_before_it_takes_the_record(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T6: much is sent while it logs a step, and no consumer of the record waits while it reads those commits."""
    monkeypatch.setattr(expiration, "LOGGED", 1)
    send(context, "logged", "a", "b")
    search, known, opens = Search(context, "logged"), list[int](), stores.opened_records

    def opened(*given: Any, **more: Any) -> Any:
        known.append(search.table.snapshot.last_sequence(0))
        return opens(*given, **more)

    def log_written(_: expiration.Expiration) -> None:
        with connect(domain_of(context).root, housekeeping=False) as sender:
            send(sender, "logged", "later", time_to_live=None)

    monkeypatch.setattr(expiration, "opened_records", opened)
    monkeypatch.setattr(expiration.Expiration, "log_written", log_written)
    assert search.run() == 2
    assert known == [2, 3]


def test_search_lets_other_threads_run_while_it_logs(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T6: after every 25 lines, and without the record; a consumer, whose plan waits for it, does not."""
    held: list[str | None] = []
    record = f"{domain_of(context).log('logged').refresh().table_id}/-/0"

    def rest(begun_s: float) -> float:
        held.append(next(info.holder for name, info in records_of(context).infos("").items() if name.endswith(record)))
        return begun_s

    monkeypatch.setattr(expiration, "rest", rest)
    send(context, "logged", *map(str, range(100)))
    assert Search(context, "logged").run() == 100
    assert held == [None] * 4
    held.clear()
    send(context, "logged", *map(str, range(100)))
    later = Later(context, "logged")
    later.batch()
    later.subscriber.close()
    assert (expired(context, "logged"), held) == (200, [])


def test_long_search_leaves_the_rest_to_the_next_round(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T6, C13: so purges and what senders wait for go on; the next round continues at once, whatever the interval."""
    monkeypatch.setattr(expiration, "LOGGED", 10)
    send(context, "logged", *map(str, range(35)))
    search = Search(context, "logged")
    step = search.scan._step

    def slow_step(*arguments: Any) -> Any:
        search.monotonic_s += 3
        return step(*arguments)

    monkeypatch.setattr(search.scan, "_step", slow_step)
    assert [search.scan.run() for _ in range(3)] == [20, 15, 0]
    send(context, "logged", *map(str, range(35)))
    assert search.scan.run() == 0, "the interval is not over"
    assert search.run() == 35


def test_search_rests_twice_as_long_as_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """T6: so consumers beside a long search have the cores; and longer where others make its work take longer."""
    now_s, slept = iter((10.25, 10.75, 11.0, 12.0)), list[float]()
    monkeypatch.setattr(health, "time", SimpleNamespace(monotonic=lambda: next(now_s), sleep=slept.append))
    begun_s = health.rest(10.0)
    assert begun_s == 10.75
    health.rest(begun_s)
    assert slept == [0.5, 0.5]
