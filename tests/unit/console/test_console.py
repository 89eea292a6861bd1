"""The console's pure parts: past, charts, page; and what it serves to whom (M8)."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from spark_jms.admin.destinations import PauseRow
from spark_jms.admin.domain_sample import ClusterSample, DomainSample, check_exposure
from spark_jms.admin.quota import QuotaRow
from spark_jms.admin.servers import ServerRow, TransactionRow
from spark_jms.admin.services import ServiceReport
from spark_jms.admin.statistics import DestinationStatistics, MemberStatistics
from spark_jms.claims.upkeep.views import ClaimRow, SubscriptionRow
from spark_jms.console.history import MAX_SAMPLES, History, Point, Series, chart
from spark_jms.console.page import page
from spark_jms.errors import OptionError
from spark_jms.store import SessionInfo
from spark_jms.store.regions.admin.port import DaemonInfo, RegionInfo

HOSTILE = "<script>alert(1)</script>"


def statistics(sent: int, backlog: int) -> DestinationStatistics:
    members = [MemberStatistics(0, sent, sent, 1, 100, backlog, 0)]
    rows = [SubscriptionRow("orders", "-", 0, sent - backlog, sent, backlog, 0, (HOSTILE,), 1, 0)]
    return DestinationStatistics("orders", "queue", 1, 1, 1, 100, sent, sent, backlog, 0, members, rows)


def sample(second: int, sent: int, backlog: int) -> DomainSample:
    claim = ClaimRow("orders", "-", 0, "c1", HOSTILE, "s1", False, 2, 1, 2, datetime.now(timezone.utc), None)
    cluster = ClusterSample(
        (DaemonInfo(0, "127.0.0.1", 7100, 1, 2**30, True),),
        (RegionInfo(HOSTILE, 1, "SINGLE", 1, 0, None, "", 0, 0),),
    )
    return DomainSample(
        second * 1000, "root", "file", (statistics(sent, backlog),), (claim,), (SessionInfo("s1", HOSTILE),), cluster
    )


def test_history_gives_backlog_and_rates() -> None:
    """M8"""
    history = History()
    for second, sent, backlog in ((0, 10, 10), (2, 30, 10), (4, 30, 0), (6, 5, 5)):
        history.add(sample(second, sent, backlog))
    assert [(p.seconds, p.value) for p in history.backlog("orders").points] == [(-6, 10), (-4, 10), (-2, 0), (0, 5)]
    sent, done = history.rates("orders")
    assert [p.value for p in sent.points] == [10, 0, 0], "a destination that was made again sends nothing backwards"
    assert [p.value for p in done.points] == [10, 5, 0]
    assert history.backlog("unknown").points == ()


def test_charts_cover_what_has_been_seen() -> None:
    """M8"""
    history = History()
    spans = []
    for second in (0, 20, 40, 200, 1000, 5000):
        history.add(sample(second, 0, 0))
        spans.append(history.span_s)
    assert spans == [30, 30, 60, 300, 1800, 1800]


def test_history_is_bounded() -> None:
    """M8"""
    history = History()
    for second in range(MAX_SAMPLES + 10):
        history.add(sample(second, 0, 0))
    assert len(history.backlog("orders").points) == MAX_SAMPLES


def test_chart_stays_in_its_frame() -> None:
    """M8: also with one value, with none, and with values older than the span."""
    points = tuple(Point(float(s), float(v)) for s, v in ((-900, 5), (-300, 0), (-10, 1000), (0, 3)))
    for series in (Series("backlog", points), Series("x", ()), Series("y", (Point(0, 0),))):
        drawn = chart([series], 300)
        for places in re.findall(r'points="([^"]*)"', drawn):
            for x, y in (map(float, place.split(",")) for place in places.split()):
                assert 56 <= x <= 420
                assert 0 <= y <= 92


def test_page_shows_everything_and_escapes_it() -> None:
    """M8: names come from clients, so none may become markup."""
    history = History()
    assert "No sample yet" in page(history, 2, error=HOSTILE)
    history.add(sample(1, 3, 2))
    history.add(replace(sample(2, 3, 2), root=HOSTILE))
    shown = page(history, 2, error=HOSTILE)
    assert "<script" not in shown
    assert shown.count("&lt;script&gt;") >= 5
    for word in (
        "Destinations",
        "Subscriptions",
        "Claims",
        "Servers",
        "Daemons",
        "Regions",
        "in doubt",
        "SINGLE",
        "<svg",
    ):
        assert word in shown


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_needs_no_token(host: str) -> None:
    """M8"""
    check_exposure(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "db.example"])
def test_other_addresses_need_a_token(host: str) -> None:
    """M8"""
    with pytest.raises(OptionError, match="--token-file"):
        check_exposure(host, None)
    check_exposure(host, "secret")


def test_page_shows_pauses() -> None:
    """M8, T14: of the destination and of its members."""
    now = sample(0, 1, 1)
    since = datetime.now(timezone.utc)
    rows = (PauseRow("production", None, since), PauseRow("insertion", 2, since))
    history = History()
    history.add(replace(now, destinations=(replace(now.destinations[0], paused=rows),)))
    assert "<td>production, insertion of member 2</td>" in page(history, 1)


def test_page_shows_what_cannot_be_read() -> None:
    """M8, M5: a damaged destination, quota or part of the domain, beside what can be read."""
    history = History()
    history.add(
        replace(sample(0, 1, 1), unread={"torn": HOSTILE}, unread_quotas={"q": "QuotaError"}, problems={"servers": "x"})
    )
    shown = page(history, 1)
    assert "torn: &lt;script&gt;" in shown
    assert "quota q: QuotaError" in shown
    assert "servers: x" in shown
    assert "<td>orders</td>" in shown
    assert "<script" not in shown


def test_page_shows_quotas_servers_flow_and_expired_messages() -> None:
    """M8, T1, T5, T6, D4"""
    now = sample(0, 1, 1)
    quota = QuotaRow("small", True, "FIFO", ("orders", HOSTILE), 10, -1, 7, 4096, 2, 200, 3)
    servers = (ServerRow("east", "file", ("orders/0",), "down", None, None, None, HOSTILE),)
    one = replace(now.destinations[0], expired=12_345, exceeds_threshold=True)
    history = History()
    history.add(replace(now, quotas=(quota,), servers=servers, destinations=(one,)))
    shown = page(history, 1)
    for cell in ("7 of 10", "4,096", "orders/0", '<td class="bad">down</td>', '<td class="bad">slowed</td>', "12,345"):
        assert cell in shown
    assert '<td class="n">2</td><td class="n">3</td>' in shown
    assert "<script" not in shown


def test_page_shows_services_and_open_transactions() -> None:
    """M8, C14, T16"""
    at = datetime.now(timezone.utc)
    service = {"service": "expiration", "state": "failing", "rounds": 4_321, "done": {}, "error": HOSTILE}
    silent = {**service, "service": "lag", "state": "ok", "error": ""}
    reports = (ServiceReport("h-1", "x", at, False, (service,), ()), ServiceReport("h-2", "x", at, True, (silent,), ()))
    transaction = TransactionRow("t1", "committed", at, HOSTILE, False, ("orders",), (), ("append to orders",))
    history = History()
    history.add(replace(sample(0, 1, 1), services=reports, transactions=(transaction,)))
    shown = page(history, 1)
    for cell in (
        "4,321",
        '<td class="bad">failing</td>',
        '<td class="bad">no sign of life</td>',
        "append to orders",
        "(dead)",
    ):
        assert cell in shown
    assert "<script" not in shown
