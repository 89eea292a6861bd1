"""`jmsq metrics`: the domain's figures for Prometheus (M5, C14)."""

from __future__ import annotations

import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from spark_jms import apply, connect
from spark_jms.admin.domain_sample import take
from spark_jms.admin.servers import LOOK_S
from spark_jms.admin.services import ServiceReporter, ServiceStatus
from spark_jms.claims.upkeep import views
from spark_jms.errors import OptionError
from spark_jms.log.destinations.domain import Domain
from spark_jms.metrics import DomainCollector, MetricsServer
from spark_jms.testing import wait_until
from tests.harness.domains.commands import MODULE, Jmsq

Figures = dict[tuple[str, ...], float]


def parsed(text: str) -> dict[str, Figures]:
    """Metric -> values of its labels, in the order of their names -> value."""
    found: dict[str, Figures] = {}
    for one in (one for family in text_string_to_metric_families(text) for one in family.samples):
        found.setdefault(one.name, {})[tuple(value for _, value in sorted(one.labels.items()))] = one.value
    return found


def test_metrics_are_what_stat_shows(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """M5: the text, read as Prometheus reads it, against `jmsq stat`, `jmsq claims` and `jmsq server list`."""
    with connect(domain, housekeeping=False) as context:
        context.producer("orders").send_many([{"text": str(n)} for n in range(10)])
        with context.consumer("orders", prefetch=4) as consumer:
            message = consumer.receive(10)
            assert message is not None
            message.acknowledge()
            shown = jmsq("metrics", "--once").stdout
            stat, claims = js("stat"), js("claims", "orders")
    found = parsed(shown)
    for one in stat["destinations"]:
        name = one["destination"]
        assert found["jmsq_destination_up"][(name,)] == 1
        assert found["jmsq_destination_log_version"][(name,)] == one["version"]
        for member in one["members"]:
            key = (name, str(member["member"]))
            assert found["jmsq_destination_messages"][(*key, "current")] == member["current"]
            assert found["jmsq_destination_messages"][(*key, "pending")] == member["pending"]
            assert found["jmsq_destination_sent_messages_total"][key] == member["last_sequence"]
            assert found["jmsq_destination_stored_messages"][key] == member["stored_messages"]
            assert found["jmsq_destination_stored_bytes"][key] == member["bytes"]
            assert found["jmsq_destination_files"][key] == member["files"]
            assert found["jmsq_destination_claimed_messages"][key] == member["claimed"]
        for row in one["subscriptions"]:
            labels = (name, str(row["member"]), row["subscription"])
            assert found["jmsq_subscription_messages"][labels] == row["backlog"]
            assert found["jmsq_subscription_finished_messages_total"][labels] == row["last_sequence"] - row["backlog"]
            assert found["jmsq_subscription_consumers"][labels] == len(row["consumers"])
    assert sum(found["jmsq_subscription_consumers"].values()) == 2  # of both members
    assert sum(found["jmsq_subscription_finished_messages_total"].values()) == 1
    assert found["jmsq_destination_claims"][("orders", "live")] == len(claims) > 0
    assert found["jmsq_server_up"] == {(row["server"],): 1 for row in js("server", "list")}
    assert all(f"# HELP {name.removesuffix('_total')}" in shown for name in found)


def test_pauses_quotas_and_expired_messages_are_metrics(root: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """M5, T1, T14: a quota that is not shared has a series for each destination."""
    quota = {"messagesMaximum": 10, "shared": False}
    destinations = {
        name: {"kind": "queue", "quota": "small", "messagesThresholdHigh": 2, "messagesThresholdLow": 1}
        for name in ("orders", "invoices")
    }
    apply(root, {"quotas": {"small": quota}, "destinations": destinations})
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send_many([{"text": "x"}] * 3)
    jmsq("pause", "orders", "--production")
    found = parsed(jmsq("metrics", "--once").stdout)
    assert found["jmsq_destination_exceeds_threshold"] == {("orders",): 1, ("invoices",): 0}
    assert found["jmsq_destination_paused"] == {("orders", "", "production"): 1}
    assert found["jmsq_quota_messages_limit"] == {("orders", "small"): 10, ("invoices", "small"): 10}
    rows = {row["destinations"][0]: row for row in js("quota", "list")}
    assert found["jmsq_quota_used_messages"] == {(name, "small"): row["messages_used"] for name, row in rows.items()}
    assert found["jmsq_quota_used_messages"]["orders", "small"] == 3


def test_damaged_destination_is_a_metric(domain: str, jmsq: Jmsq) -> None:
    """M5: 0 for this one, and all figures of the others."""
    (Path(domain) / "orders" / "_delta_log" / f"{0:020}.json").write_text("{")
    found = parsed(jmsq("metrics", "--once").stdout)
    assert found["jmsq_destination_up"] == {("orders",): 0, ("prices",): 1, ("invoices",): 1}
    assert {name for name, _ in found["jmsq_destination_files"]} == {"prices", "invoices"}
    assert found["jmsq_domain_up"] == {(): 1}


def test_damaged_quota_is_a_metric(root: str, jmsq: Jmsq) -> None:
    """M5: 0 for this one, and all figures of the others."""
    quotas = {name: {"messagesMaximum": 10} for name in ("small", "large")}
    apply(root, {"quotas": quotas, "destinations": {"orders": {"kind": "queue", "quota": "small"}}})
    (Path(root) / "_jmsq" / "quotas" / "large").write_text("{")
    found = parsed(jmsq("metrics", "--once").stdout)
    assert found["jmsq_quota_up"] == {("small",): 1, ("large",): 0}
    assert found["jmsq_quota_messages_limit"] == {("", "small"): 10}


def test_server_that_is_away_is_a_metric(servers: str, jmsq: Jmsq) -> None:
    """M5, M10"""
    journals = Path(servers) / "_jmsq" / "stores" / "a"
    journals.rename(journals.with_name("lost"))
    jmsq("server", "stop", "b")
    found = parsed(jmsq("metrics", "--once").stdout)
    assert found["jmsq_server_up"] == {("home",): 1, ("a",): 0, ("b",): 0}
    assert found["jmsq_destination_up"] == {("orders",): 1, ("plain",): 1}


def test_figures_that_only_an_away_server_knows_are_absent(servers: str, jmsq: Jmsq) -> None:
    """M5, M10: what was finished there would count as backlog, and an alert would begin."""
    with connect(servers, housekeeping=False) as context:
        context.producer("orders").send_many([{"text": str(n)} for n in range(10)])
        with context.consumer("orders", acknowledge="auto") as consumer:
            assert all(consumer.receive(10) for _ in range(10))
    before = parsed(jmsq("metrics", "--once").stdout)
    store = Path(servers) / "_jmsq" / "stores" / "a"
    store.rename(store.with_name("lost"))
    found = parsed(jmsq("metrics", "--once").stdout)
    for name in before:
        if name.startswith(("jmsq_subscription_", "jmsq_destination_messages", "jmsq_destination_claimed")):
            of_a = {labels for labels in before[name] if labels[:2] == ("orders", "0")}
            assert found.get(name, {}) == {labels: n for labels, n in before[name].items() if labels not in of_a}, name
    assert found["jmsq_destination_sent_messages_total"] == before["jmsq_destination_sent_messages_total"]


def test_services_of_running_processes_are_metrics(domain: str, jmsq: Jmsq) -> None:
    """M5, C14: as `jmsq services --status` shows them."""
    ServiceReporter(Domain(domain), "threads").report([ServiceStatus("lag", 1), ServiceStatus("usage", 0)], [])
    found = parsed(jmsq("metrics", "--once").stdout)
    assert found["jmsq_service_up"] == {("lag",): 1, ("usage",): 1}
    assert found["jmsq_part_up"][("services",)] == found["jmsq_part_up"][("transactions",)] == 1


def test_metrics_as_json(domain: str, js: Callable[..., Any]) -> None:
    """M5, C14"""
    found = {(one["name"], *one["labels"].values()): one["value"] for one in js("metrics", "--once")}
    assert found["jmsq_destination_up", "orders"] == 1


def test_root_without_a_domain_ends_the_command(jmsq: Jmsq) -> None:
    """M5: a wrong root is an error, not a metric."""
    assert "domain" in jmsq("metrics", "--once", code=1).stderr


def test_part_that_cannot_be_read_is_named(domain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """M5: and the other parts are read."""

    def fails(self: Domain) -> list[str]:
        raise OSError("the disk is on fire")

    opened = Domain(domain)
    with views.opened_store(opened, LOOK_S) as store:
        sample = take(opened, store)
        assert not sample.problems
        monkeypatch.setattr(Domain, "destinations", fails)
        sample = take(opened, store)
    assert sample.problems["destinations"] == "OSError: the disk is on fire"
    assert "sessions" not in sample.problems
    assert not sample.unread


@pytest.fixture
def served(domain: str, request: pytest.FixtureRequest) -> Any:
    opened, registry = Domain(domain), CollectorRegistry()
    with views.opened_store(opened, LOOK_S) as store:
        registry.register(DomainCollector(lambda: take(opened, store)))
        server = MetricsServer(registry, "127.0.0.1", 0, request.param)
        thread = threading.Thread(target=server.serve)
        thread.start()
        yield server.address
        server.stop()
        server.close()
        thread.join()


def got(address: str, **headers: str) -> tuple[str, str]:
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


@pytest.mark.parametrize("served", [None], indirect=True)
def test_server_serves_the_text_format(served: str) -> None:
    """M5"""
    kind, text = got(served)
    assert kind.startswith("text/plain")
    assert parsed(text)["jmsq_destination_up"] == {(name,): 1 for name in MODULE["destinations"]}
    assert got(served, Accept="application/openmetrics-text; version=1.0.0")[0].startswith(
        "application/openmetrics-text"
    )


@pytest.mark.parametrize("served", ["secret"], indirect=True)
def test_server_with_a_token_asks_for_it(served: str) -> None:
    """M5"""
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            got(served, **headers)
    assert "jmsq_domain_up 1.0" in got(served, Authorization="Bearer secret")[1]


@pytest.mark.parametrize(
    ("stored", "problem"),
    [(b"\xff\xfe", "byte 0xff at 0"), ("schlüssel".encode(), "0xc3"), (b"a b\n", "one word"), (b" \n", "empty")],
)
def test_token_that_no_request_can_carry_is_named(
    domain: str, jmsq: Jmsq, tmp_path: Path, stored: bytes, problem: str
) -> None:
    """M5, M8: before anything is served; the console has the same file."""
    file = tmp_path / "token"
    file.write_bytes(stored)
    for command in ("metrics", "console"):
        done = jmsq(command, "--port", "0", "--token-file", str(file), code=1)
        assert problem in done.stderr
        assert str(file) in done.stderr


@pytest.mark.parametrize("served", [None], indirect=True)
def test_clients_that_hang_up_leave_no_traceback(served: str, capfd: pytest.CaptureFixture[str]) -> None:
    """M5"""

    def requests() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if "process_request" in thread.name]

    for begun in (b"", b"GET /", b"GET /metrics HTTP/1.1\r\n"):
        with socket.create_connection(("127.0.0.1", urlsplit(served).port or 0)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close sends a reset
            client.sendall(begun)
    assert got(served)[0]
    wait_until(lambda: not requests(), what="all requests have ended")
    assert capfd.readouterr().err == ""


def test_other_address_needs_a_token() -> None:
    """M5"""
    with pytest.raises(OptionError, match="--token-file"):
        MetricsServer(CollectorRegistry(), "0.0.0.0", 0)
