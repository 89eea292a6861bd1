"""`jmsq services`: the services of a domain in one process (T6, C13, C14, D5)."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from spark_jms import apply, connect
from spark_jms.admin.destinations import drop_destination
from spark_jms.admin.services import (
    SERVICES_FOLDER,
    DomainServices,
    LagRow,
    ServiceLoop,
    ServiceReporter,
    ServiceRound,
    ServiceRunner,
    service_reports,
)
from spark_jms.claims.upkeep import views
from spark_jms.claims.upkeep.move import Forwarders
from spark_jms.cli import services as services_command
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import NamedFiles, now_ms
from spark_jms.setup.machine import JavaNotFoundError
from spark_jms.testing import wait_until
from tests.harness.domains.commands import Jmsq


def by_name(document: Mapping[str, Any]) -> dict[str, Any]:
    return {service["service"]: service for service in document["services"]}


def test_one_round_of_each_service(domain: str, js: Callable[..., Any]) -> None:
    """C14, T6: what each has done, and the lag."""
    with connect(domain, housekeeping=False) as context:
        gone = context.producer("invoices").send(text="gone", time_to_live=0.001)
        context.producer("orders").send(text="waits")
        wait_until(lambda: now_ms() > gone.expiration_ms)
    found = js("services", "--once")
    services = by_name(found)
    assert {name: one["state"] for name, one in services.items()} == dict.fromkeys(
        ("expiration", "housekeeping", "forwarding", "lag", "usage"), "ok"
    )
    assert services["expiration"]["done"] == {"expired": 1}
    assert services["housekeeping"]["done"]["purged"] == 1
    assert {row["destination"]: row["backlog"] for row in found["lag"]} == {"invoices": 0, "orders": 1, "prices": 0}


def test_only_some_services_of_some_destinations(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """C14: a wrong name ends the command; people get tables."""
    found = js("services", "orders", "--only", "lag", "--once")
    assert list(by_name(found)) == ["lag"]
    assert [row["destination"] for row in found["lag"]] == ["orders"]
    assert "nothing" in jmsq("services", "nothing", "--once", code=1).stderr
    shown = jmsq("services", "--once").stdout
    assert "Services" in shown
    assert "Lag" in shown


def test_failing_service_holds_up_no_other(
    domain: str, jmsq: Jmsq, js: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C13, C14: its error is shown, and the exit code is 1."""

    def fails(self: Forwarders, destinations: object = ()) -> list[Any]:
        raise OSError("the disk is on fire")

    monkeypatch.setattr(Forwarders, "run", fails)
    services = by_name(js("services", "--once", code=1))
    assert services["forwarding"]["error"] == "OSError: the disk is on fire"
    assert {name: one["state"] for name, one in services.items() if name != "forwarding"} == dict.fromkeys(
        ("expiration", "housekeeping", "lag", "usage"), "ok"
    )


def test_dropped_destination_is_no_failure(domain: str) -> None:
    """C18: the services continue with the others."""
    opened = Domain(domain)
    with views.opened_store(opened) as store:
        work = DomainServices(opened, store)
        runner = ServiceRunner(work.loops())
        runner.run_once()
        drop_destination(opened, store, "prices")
        apply(domain, {"destinations": {"new": {"kind": "queue"}}})
        runner.run_once()
        assert [one.state for one in runner.status()] == ["ok"] * 5
        assert [row.destination for row in work.lag] == ["invoices", "new", "orders"]
        work.close()


def test_loop_survives_its_errors_and_remembers_the_last() -> None:
    """C13: it continues at its own pace, and stops behind its round."""
    rounds: list[int] = []

    def work() -> dict[str, ServiceRound]:
        rounds.append(1)
        if len(rounds) == 1:
            raise ValueError("once")
        return {"lag": ServiceRound({"looks": 1})}

    runner = ServiceRunner([ServiceLoop(("lag",), 0.001, work)])
    assert runner.status()[0].state == "starting"
    runner.run_once()
    failed = runner.status()[0]
    assert (failed.state, failed.error, failed.failing_since is None) == ("failing", "ValueError: once", False)
    runner.start()
    wait_until(lambda: runner.status()[0].rounds > 2)
    assert runner.stop() == []
    healthy = runner.status()[0]
    assert (healthy.state, healthy.error, healthy.failing_since) == ("ok", "ValueError: once", None)
    assert healthy.error_at == failed.error_at
    assert healthy.done == {"looks": healthy.rounds - 1}
    assert json.dumps(healthy.done)


def test_term_before_the_services_have_begun_ends_them_cleanly(
    domain: str, jmsq: Jmsq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C13, C14: while Spark starts, which takes seconds; nothing runs a round."""

    def too_late(*_: Any) -> None:
        raise AssertionError("the signal would have ended the process")

    def engine() -> str:
        signal.raise_signal(signal.SIGTERM)
        return services_command.THREADS

    monkeypatch.setattr(services_command, "default_engine", engine)
    before = signal.signal(signal.SIGTERM, too_late)
    try:
        shown = jmsq("services", "--json").stdout
        assert signal.getsignal(signal.SIGTERM) is too_late
    finally:
        signal.signal(signal.SIGTERM, before)
    assert {one["state"] for one in json.loads(shown)["services"]} == {"starting"}
    assert service_reports(Domain(domain)) == []


def test_report_returns_when_its_folder_was_deleted(domain: str, tmp_path: Path) -> None:
    """C14: by hand, under a running process; when the whole root is gone, nothing makes it again."""
    opened = Domain(domain)
    reporter = ServiceReporter(opened, "threads")
    assert reporter.report([], []) == ""
    shutil.rmtree(Path(domain, SERVICES_FOLDER))
    assert reporter.report([], []) == ""
    assert [report.process for report in service_reports(opened)] == [reporter.process]
    away = Path(domain).rename(tmp_path / "away")
    assert "cannot be reached" in reporter.report([], [])
    assert not Path(domain).exists()
    away.rename(domain)
    assert reporter.report([], []) == ""


def test_running_processes_are_shown(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """C14: by their own reports, until they end; one that was killed gives no sign of life, and is forgotten after a day."""
    assert "no process runs services" in jmsq("services", "--status").output
    opened = Domain(domain)
    reporter = ServiceReporter(opened, "threads")
    runner = ServiceRunner([ServiceLoop(("lag",), 1.0, lambda: {"lag": ServiceRound({"looks": 3})})])
    runner.run_once()
    reporter.report(runner.status(), [LagRow("orders", 1234, 5, None)])
    shown = js("services", "--status")[0]
    assert (shown["engine"], shown["silent"], shown["lag"][0]["backlog"]) == ("threads", False, 1234)
    assert shown["services"][0] | {"last_round": ""} == {
        "service": "lag",
        "rounds": 1,
        "done": {"looks": 3},
        "last_round": "",
        "failing_since": None,
        "error": "",
        "error_at": None,
        "state": "ok",
    }
    assert "looks 3" in jmsq("services", "--status").output
    files = NamedFiles(opened.storage, SERVICES_FOLDER)
    report = json.loads(files.get(reporter.process) or b"")
    for age_ms, name in ((120_000, "killed-1"), (2 * 86_400_000, "old-1")):
        files.put(name, json.dumps({**report, "atMs": now_ms() - age_ms}).encode())
    damaged = [b"{", b"", b"[1]", b'{"atMs": 5}', json.dumps({**report, "atMs": 10**20}).encode(), b'{"atMs": 1e999}']
    for number, data in enumerate(damaged):
        files.put(f"damaged-{number}", data)
    assert {one.process for one in service_reports(opened)} == {reporter.process, "killed-1", "old-1"}
    reporter.forget_old()
    reporter.end()
    assert [(one.process, one.silent) for one in service_reports(opened)] == [("killed-1", True)]
    assert "no sign of life" in jmsq("services", "--status").output


def test_process_that_reports_rarely_is_not_silent(domain: str) -> None:
    """C14: `--every 5m` misses no report after a minute."""
    opened = Domain(domain)
    reporter, files = ServiceReporter(opened, "threads", every_s=300.0), NamedFiles(opened.storage, SERVICES_FOLDER)
    silent = []
    for age_s in (0, 800, 1000):
        reporter.report([], [])
        report = json.loads(files.get(reporter.process) or b"")
        files.put(reporter.process, json.dumps({**report, "atMs": report["atMs"] - age_s * 1000}).encode())
        silent += [one.silent for one in service_reports(opened)]
    assert silent == [False, False, True]


def test_services_continue_without_their_reports(domain: str) -> None:
    """C14: when the storage refuses them; the next report is written."""
    opened = Domain(domain)
    blocked = opened.storage.root / SERVICES_FOLDER
    blocked.write_text("")
    reporter = ServiceReporter(opened, "threads")
    assert "cannot be written" in reporter.report([], [])
    reporter.end()
    blocked.unlink()
    assert reporter.report([], []) == ""
    assert [one.process for one in service_reports(opened)] == [reporter.process]
    reporter.end()
    assert service_reports(opened) == []


@pytest.mark.parametrize(
    ("installed", "java", "engine"), [(True, True, "spark"), (True, False, "threads"), (False, True, "threads")]
)
def test_engine_is_spark_where_it_can_run(
    monkeypatch: pytest.MonkeyPatch, engine: str, *, installed: bool, java: bool
) -> None:
    """C13: plain loops where Spark or Java is missing."""

    def found(*_: object) -> object:
        if not java:
            raise JavaNotFoundError
        return object()

    monkeypatch.setattr("importlib.util.find_spec", lambda _: object() if installed else None)
    monkeypatch.setattr("spark_jms.setup.machine.find_java", found)
    assert services_command.default_engine() == engine
