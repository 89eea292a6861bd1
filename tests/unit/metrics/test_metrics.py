"""M5: the metrics of a domain, from a sample; their names, their number, and the page that lists them."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric

from spark_jms.admin.domain_sample import PARTS, ClusterSample, DomainSample
from spark_jms.admin.quota import QuotaRow
from spark_jms.admin.servers import ServerRow, TransactionRow
from spark_jms.admin.services import ServiceReport
from spark_jms.admin.statistics import DestinationStatistics, MemberStatistics
from spark_jms.claims.upkeep.views import RefusalRow, SubscriptionRow
from spark_jms.client.context.metrics import CLIENT_METRICS
from spark_jms.log.upkeep.health import BackgroundFailure
from spark_jms.metrics import DomainCollector
from spark_jms.metrics.declared import DOMAIN_METRICS, NOT_DURABLE
from spark_jms.store import SessionInfo
from spark_jms.store.contract import ConnectionInfo, StoreInfo
from spark_jms.store.regions.admin.port import DaemonInfo, RegionInfo
from tests.harness.project import PROJECT

PAGE = (PROJECT / "docs" / "MONITORING.md").read_text(encoding="utf-8")
MOMENT = datetime(2026, 1, 1, tzinfo=timezone.utc)
NAMES = [*(metric.name for metric in DOMAIN_METRICS), *(metric.name for metric in CLIENT_METRICS)]


def topic(*rows: SubscriptionRow, refusals: tuple[RefusalRow, ...] = ()) -> DestinationStatistics:
    members = [MemberStatistics(0, 20, 20, 1, 100, 14, 3, 10, 4)]
    failure = BackgroundFailure("purge", "OSError: x", 3, 0, 0, 0)
    return DestinationStatistics(
        "prices",
        "topic",
        7,
        2,
        1,
        100,
        20,
        20,
        14,
        3,
        members,
        list(rows),
        "failing",
        (failure,),
        refusals=refusals,
    )


def row(name: str, backlog: int, *consumers: str, durable: bool = True, away: bool = False) -> SubscriptionRow:
    return SubscriptionRow("prices", name, 0, 0, 20, backlog, 0, consumers, 1, 0, 5, durable=durable, away=away)


def quota(name: str, *, shared: bool, destinations: tuple[str, ...], messages: int = 100) -> QuotaRow:
    return QuotaRow(name, shared, "FIFO", destinations, messages, -1, 7, 700, 2, 200, 1)


SAMPLE = DomainSample(
    5_000,
    "root",
    "file",
    (topic(row("a", 4, "x", "y"), row("t1", 5, durable=False), row("t2", 6, durable=False)),),
    (),
    (SessionInfo("s1", "x"),),
    ClusterSample((DaemonInfo(0, "h", 1, 1, 100, True), DaemonInfo(1, "h", 2, 1, 100, False)), ()),
    (
        ServerRow("home", "file", (), "up", None, None, 1.5, ""),
        ServerRow("east", "file", (), "up", None, None, None, "does not answer"),
    ),
    (quota("all", shared=True, destinations=("a", "b")), quota("each", shared=False, destinations=("a",), messages=-1)),
    StoreInfo("s", 9, (ConnectionInfo("c", 1, 2, 3, 4, 5),)),
    unread={"broken": "x"},
    unread_quotas={"torn": "x"},
    problems={"servers": "x"},
)


def values(sample: DomainSample | Callable[[], DomainSample]) -> dict[str, dict[tuple[str, ...], float]]:
    """Metric -> values of its labels -> value."""
    registry = CollectorRegistry()
    registry.register(DomainCollector(sample if callable(sample) else lambda: sample))
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for one in (one for family in registry.collect() for one in family.samples):
        series = found.setdefault(one.name, {})
        key = tuple(one.labels.values())
        assert key not in series, f"{one.name}{key} twice"
        series[key] = one.value
    return found


def test_sample_gives_each_figure() -> None:
    """M5"""
    found = values(SAMPLE)
    assert found["jmsq_domain_up"] == {(): 1}
    assert found["jmsq_sample_timestamp_seconds"] == {(): 5}
    assert found["jmsq_part_up"] == {(part,): float(part != "servers") for part in PARTS} | {("daemons",): 1}
    assert found["jmsq_destination_up"] == {("broken",): 0, ("prices",): 1}
    assert found["jmsq_destination_messages"] == {("prices", "0", "current"): 10, ("prices", "0", "pending"): 4}
    assert found["jmsq_destination_sent_messages_total"] == {("prices", "0"): 20}
    assert found["jmsq_destination_background_failures"] == {("prices", "purge"): 3}
    assert found["jmsq_quota_up"] == {("all",): 1, ("each",): 1, ("torn",): 0}
    assert found["jmsq_quota_messages_limit"] == {("all", ""): 100}
    assert found["jmsq_quota_used_messages"] == {("all", ""): 7, ("each", "a"): 7}
    assert found["jmsq_quota_used_bytes"] == {("all", ""): 700, ("each", "a"): 700}
    assert found["jmsq_quota_reserved_messages"][("all", "")] == 2
    assert found["jmsq_quota_waiting_sends"][("all", "")] == 1
    assert found["jmsq_server_up"] == {("home",): 1, ("east",): 0}
    assert found["jmsq_server_lease_age_seconds"] == {("home",): 1.5}
    assert found["jmsq_store_sessions"] == {(): 1}
    assert found["jmsq_store_operations_total"] == {("create",): 1, ("read",): 2, ("update",): 3, ("delete",): 4}
    assert found["jmsq_daemon_up"] == {("0",): 1, ("1",): 0}
    assert "jmsq_quota_bytes_limit" not in found
    assert "jmsq_destination_exceeds_threshold" not in found
    slowed = replace(SAMPLE, destinations=(replace(SAMPLE.destinations[0], exceeds_threshold=True),))
    assert values(slowed)["jmsq_destination_exceeds_threshold"] == {("prices",): 1}


def test_subscriptions_that_are_not_durable_are_one_series() -> None:
    """M5: their names are never used again. They have no counters: one that ends would take its count away."""
    found = values(SAMPLE)
    assert found["jmsq_subscription_messages"] == {("prices", "a", "0"): 4, ("prices", NOT_DURABLE, "0"): 11}
    assert found["jmsq_subscription_expired_messages_total"] == {("prices", "a", "0"): 5}
    assert found["jmsq_subscription_finished_messages_total"] == {("prices", "a", "0"): 16}
    assert found["jmsq_subscription_consumers"] == {("prices", "a", "0"): 2, ("prices", NOT_DURABLE, "0"): 0}


def test_subscription_on_an_away_server_counts_nothing() -> None:
    """M5: all of the table counts as unfinished then, so its counters would seem to begin again."""
    away = values(replace(SAMPLE, destinations=(topic(row("a", 20, away=True)),)))
    assert "jmsq_subscription_finished_messages_total" not in away
    assert "jmsq_subscription_messages" not in away
    assert "jmsq_subscription_consumers" not in away


def test_regions_are_counted_by_status() -> None:
    """M5: no series for each region."""
    regions = tuple(
        RegionInfo(f"r{n}", 1, status, 1, 0, None, "", 0, 0) for n, status in enumerate(("OPEN", "OPEN", "LOST"))
    )
    assert SAMPLE.cluster is not None
    found = values(replace(SAMPLE, cluster=replace(SAMPLE.cluster, regions=regions)))
    assert found["jmsq_regions"] == {("OPEN",): 2, ("LOST",): 1}


def test_daemons_that_cannot_be_asked_are_a_part_that_is_down() -> None:
    """M5"""
    found = values(replace(SAMPLE, cluster=ClusterSample(error="x")))
    assert found["jmsq_part_up"]["daemons",] == 0
    assert "daemons" not in {part for (part,) in values(replace(SAMPLE, cluster=None))["jmsq_part_up"]}


def test_services_are_counted_by_state_of_their_processes() -> None:
    """M5, C14: one process without an error is enough. Processes are no labels."""

    def report(silent: bool, **states: str) -> ServiceReport:
        return ServiceReport("h", "x", MOMENT, silent, tuple({"service": n, "state": s} for n, s in states.items()), ())

    reports = (
        report(False, lag="ok", usage="failing"),
        report(False, lag="failing"),
        report(True, lag="ok", housekeeping="ok"),
    )
    found = values(replace(SAMPLE, services=reports))
    assert found["jmsq_service_up"] == {("lag",): 1, ("usage",): 0, ("housekeeping",): 0}
    states = found["jmsq_service_processes"]
    assert [states["lag", state] for state in ("ok", "failing", "silent")] == [1, 1, 1]
    assert [states["usage", state] for state in ("ok", "failing", "silent")] == [0, 1, 0]
    assert [states["housekeeping", state] for state in ("ok", "failing", "silent")] == [0, 0, 1]
    assert "jmsq_service_up" not in values(SAMPLE)


def test_open_transactions_are_counted_by_state() -> None:
    """M5, T16"""

    def row(state: str, seconds: int, lives: bool) -> TransactionRow:
        return TransactionRow("t", state, datetime.fromtimestamp(seconds, timezone.utc), "o", lives, (), (), ())

    found = values(
        replace(SAMPLE, transactions=(row("committed", 9, True), row("committed", 5, False), row("open", 7, True)))
    )
    assert found["jmsq_transactions"] == {("committed", "dead"): 1, ("committed", "live"): 1, ("open", "live"): 1}
    assert found["jmsq_oldest_transaction_timestamp_seconds"] == {(): 5}


def test_scrapes_share_a_sample_until_it_is_old() -> None:
    """M5: a scrape more does not cost a sample more."""
    now, taken = [100.0], []

    def take() -> DomainSample:
        taken.append(now[0])
        return SAMPLE

    collector = DomainCollector(take, every_s=10, monotonic_s=lambda: now[0])
    assert list(collector.describe()) == []
    for moment in (100, 101, 109.9, 110, 119, 120):
        now[0] = moment
        assert len(list(collector.collect())) > len(DOMAIN_METRICS)
    assert taken == [100, 110, 120]


def test_failing_sample_is_a_metric() -> None:
    """M5: and the next scrape tries again."""
    broken = [True]

    def take() -> DomainSample:
        if broken[0]:
            raise OSError("the disk is on fire")
        return SAMPLE

    collector = DomainCollector(take)

    def ups() -> list[Metric]:
        return list(collector.collect())

    assert [(one.name, one.samples[0].value) for one in ups()] == [("jmsq_domain_up", 0)]
    broken[0] = False
    assert ups()[0].samples[0].value == 1


def test_scrape_does_not_wait_for_a_sample_that_hangs() -> None:
    """M5: neither the scrape that began it nor the next one, which begins none; the one after it returned has it."""
    released, taken = threading.Event(), []

    def take() -> DomainSample:
        taken.append(1)
        assert released.wait(60)
        return SAMPLE

    collector = DomainCollector(take, every_s=3600, wait_s=0.01)
    for _ in range(2):
        (only,) = collector.collect()
        assert (only.name, only.samples[0].value) == ("jmsq_domain_up", 0)
    released.set()
    assert collector._newest is not None
    collector._newest.result(60)
    assert len(list(collector.collect())) > len(DOMAIN_METRICS)
    assert taken == [1]


def test_names_follow_prometheus() -> None:
    """M5: base units, counters end with _total, each has a help text, none is there twice."""
    assert len(set(NAMES)) == len(NAMES)
    for metric in (*DOMAIN_METRICS, *CLIENT_METRICS):
        assert re.fullmatch(r"jmsq_[a-z]+(_[a-z]+)*", metric.name)
        assert not re.search(r"_(ms|milliseconds|kib|mib|percent|count)(_|$)", metric.name)
        assert metric.help.endswith(".")
    text = generate_latest(_registry()).decode()
    assert {line.split()[2] for line in text.splitlines() if line.startswith("# HELP")} >= {
        m.name for m in DOMAIN_METRICS
    }


def test_refused_messages_are_counted_by_the_rule_that_they_break() -> None:
    """M5, C8: subscriptions that are not durable together."""
    rows = [row("a", 4), row("t1", 5, durable=False), row("t2", 6, durable=False)]
    refusals = tuple(
        RefusalRow("prices", name, 0, count, "1", "errors", "failed", rule, "", MOMENT)
        for name, count, rule in (
            ("a", 2, "maxMessageSize"),
            ("a", 3, "maxMessageSize"),
            ("t1", 1, "quota"),
            ("t2", 4, "quota"),
        )
    )
    found = values(replace(SAMPLE, destinations=(topic(*rows, refusals=refusals),)))
    assert found["jmsq_subscription_refused_messages"] == {
        ("prices", "a", "0", "maxMessageSize"): 5,
        ("prices", NOT_DURABLE, "0", "quota"): 5,
    }


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(DomainCollector(lambda: SAMPLE))
    return registry


def test_labels_are_few() -> None:
    """M5: no message, consumer, session or claim is a label."""
    assert {label for metric in DOMAIN_METRICS for label in metric.labels} == {
        *("destination", "member", "subscription", "state", "operation", "what"),
        *("part", "quota", "server", "daemon", "status", "service", "owner"),
    }


@pytest.mark.parametrize("metric", [*DOMAIN_METRICS, *CLIENT_METRICS], ids=lambda metric: metric.name)
def test_page_lists_each_metric(metric: object) -> None:
    """M5: docs/MONITORING.md, with its labels and its help text."""
    labels = ", ".join(f"`{label}`" for label in getattr(metric, "labels", ())) or "–"
    if not hasattr(metric, "labels"):
        assert re.search(rf"^\| `{metric.name}` \| {re.escape(metric.help)} \|$", PAGE, re.MULTILINE)  # type: ignore[attr-defined]
        return
    assert f"| `{metric.name}` | {labels} | {metric.help} |" in PAGE  # type: ignore[attr-defined]


def test_page_lists_nothing_else() -> None:
    """M5"""
    own = {"jmsq_domain_up", "jmsq_sample_timestamp_seconds", "jmsq_sample_duration_seconds"}
    assert sorted(re.findall(r"^\| `(jmsq_\w+)` \|", PAGE, re.MULTILINE)) == sorted([*NAMES, *own])


def test_alert_rules_name_metrics_that_exist() -> None:
    """M5: those of the page."""
    (rules,) = re.findall(r"```yaml\ngroups:.*?```", PAGE, re.DOTALL)
    named = set(re.findall(r"jmsq_\w+", rules))
    assert named
    assert named <= {*NAMES, "jmsq_domain_up"}
