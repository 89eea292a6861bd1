"""`jmsq services`: the services of a domain in one process (T6, C13, C14, D5)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from spark_jms import apply, connect
from spark_jms.admin.drop import drop_destination
from spark_jms.admin.forward import Forwarders
from spark_jms.admin.services import DomainServices, ServiceLoop, ServiceRound, ServiceRunner
from spark_jms.claims import views
from spark_jms.log.domain import Domain
from spark_jms.log.storage import now_ms
from spark_jms.testing import wait_until
from tests.contract.cli.commands import Jmsq


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
        ("expiration", "housekeeping", "forwarding", "lag"), "ok"
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
        ("expiration", "housekeeping", "lag"), "ok"
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
        assert [one.state for one in runner.status()] == ["ok"] * 4
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
