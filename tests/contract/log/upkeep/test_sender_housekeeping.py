"""Housekeeping of processes that only send: in a thread of its own, and right when they end early (C13)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_jms import connect
from spark_jms.cli.__main__ import cli
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.sending.send import send
from spark_jms.log.upkeep import compaction
from spark_jms.log.upkeep import housekeeping as log_housekeeping
from spark_jms.log.upkeep.housekeeping import SenderHousekeeping
from spark_jms.testing import memory_domain, wait_until
from tests.contract.log.tables.test_delta_log import staged


@pytest.fixture(autouse=True)
def frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_housekeeping, "DUE_VERSIONS", 10)
    monkeypatch.setattr(log_housekeeping, "OVERDUE_VERSIONS", 40)
    monkeypatch.setattr("spark_jms.claims.upkeep.housekeeping.DUE_VERSIONS", 10)
    monkeypatch.setattr("spark_jms.log.upkeep.clean_up.CHECKPOINT_EVERY_VERSIONS", 10)
    monkeypatch.setattr("spark_jms.log.upkeep.clean_up.checkpoint.__kwdefaults__", {"every": 10})


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain(orders="queue") as made:
        yield made


def files(root: str) -> int:
    return len(Domain(root).log("orders").refresh().files)


def since_checkpoint(root: str) -> int:
    return Domain(root).log("orders").versions_since_checkpoint()


def test_send_returns_while_housekeeping_works(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C13: no send waits for compaction or a Delta checkpoint; at most one task waits; close() waits for it."""
    may_go_on, runs = threading.Event(), []
    compact = compaction.compact

    def slow(*arguments: object, **named: object) -> None:
        runs.append(threading.current_thread())
        assert may_go_on.wait(60)
        compact(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(log_housekeeping, "compact", slow)
    with connect(root, housekeeping=False) as context:
        producer = context.producer("orders")
        for n in range(60):
            producer.send(text=str(n))
        wait_until(lambda: len(runs) == 1)
        assert threading.main_thread() not in runs
        may_go_on.set()
    assert 1 <= len(runs) <= 2
    wait_until(lambda: not any(thread.is_alive() for thread in runs))
    assert files(root) < 20
    assert since_checkpoint(root) < 20


@pytest.mark.parametrize("housekeeping", [True, False])
def test_processes_that_send_once_keep_the_table_small(root: str, housekeeping: bool) -> None:
    """C13: a context that is closed after one send does what is due, whoever left it."""
    for n in range(60):
        with connect(root, housekeeping=housekeeping) as context:
            context.producer("orders").send(text=str(n))
    assert files(root) <= 20
    assert since_checkpoint(root) <= 20


def test_process_that_is_killed_after_its_send_leaves_no_endless_backlog(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C13: its thread never gets to work. So the first send of a process does what is long overdue."""
    monkeypatch.setattr(threading.Thread, "start", lambda self: None)
    domain = Domain(root)
    log = domain.log("orders")
    most = 0
    for n in range(100):
        sent = send(log, staged(log, [str(n)]), log.refresh().route_id)
        SenderHousekeeping(domain).sent(log, sent.version)
        most = max(most, since_checkpoint(root))
    assert 39 <= most <= 42
    assert files(root) < 60


def test_failing_housekeeping_of_a_sender_is_shown_and_fails_no_send(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C13, C14: in the context's statistics and in `jmsq stat`, which a later success of another sender clears."""

    def broken(*arguments: object, **named: object) -> None:
        raise OSError("a damaged disk")

    with monkeypatch.context() as patch, connect(root, housekeeping=False) as context:
        patch.setattr(log_housekeeping, "checkpoint", broken)
        producer = context.producer("orders")
        for n in range(30):
            producer.send(text=str(n))
        wait_until(lambda: bool(context.statistics().failures))
        assert [(f.what, f.error) for f in context.statistics().failures] == [
            ("Delta checkpoint of orders", "OSError: a damaged disk")
        ]
        assert context.statistics().failed_attempts == 1
    health = Path(root) / "_jmsq" / "health" / "orders"
    assert health.exists()
    (shown,) = json.loads(CliRunner().invoke(cli, ["stat", "--root", root, "--json"]).output)["destinations"]
    assert shown["health"] == "failing"
    assert [failure["what"] for failure in shown["failures"]] == ["Delta checkpoint of orders"]
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send(text="later")
    assert not health.exists()
    (shown,) = json.loads(CliRunner().invoke(cli, ["stat", "--root", root, "--json"]).output)["destinations"]
    assert (shown["health"], shown["failures"]) == ("ok", [])
