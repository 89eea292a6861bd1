"""Services as Structured Streaming queries (T3, T6, C13). tests/process/admin/test_services.py kills them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JNetworkError

from spark_jms import connect
from spark_jms.admin.services import EXPIRATION, HOUSEKEEPING, USAGE, DomainServices, ServiceRunner
from spark_jms.claims.upkeep import usage_history as upkeep
from spark_jms.claims.upkeep.usage_history import usage_history
from spark_jms.claims.upkeep.views import opened_store
from spark_jms.jobs import services
from spark_jms.jobs.services import DomainQueries, ServiceQueries, ServiceQuery, check_operators
from spark_jms.log.upkeep.usage_history import UsageHistoryTable
from spark_jms.settings.table import MissingExtraError
from spark_jms.testing import wait_until

if TYPE_CHECKING:
    from tests.spark.conftest import Bench

LIMIT_S = 60


def send(bench: Bench, count: int) -> None:
    with connect(bench.root, housekeeping=False) as context:
        context.producer("orders").send_many({"text": f"{n}"} for n in range(count))


def test_usage_is_a_query_that_is_started_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """T3, C13: one that has ended is named and continues from its checkpoint; one whose run was replaced stands by, then begins a run
    of its own; nothing is counted twice. What is no aggregation stays with the threads."""
    send(bench, 5)

    def sent() -> int:
        return sum(row.sent for row in usage_history(bench.domain, ["orders"]))

    with opened_store(bench.domain) as store:
        work = DomainServices(bench.domain, store, queries=[EXPIRATION, USAGE])
        assert [loop.services for loop in work.loops([HOUSEKEEPING, USAGE])] == [(EXPIRATION, HOUSEKEEPING)]
        runner = ServiceRunner([], others=[USAGE])
        made = DomainQueries(bench.spark, bench.domain, store, runner, shortest_s=0.2).made([USAGE])
        queries = ServiceQueries(made, str(bench.path / "checkpoint"))
        queries.start()
        try:
            wait_until(lambda: sent() == 5, LIMIT_S)
            first = queries.running[USAGE]
            first.stop()
            queries.start()  # as the command does now and then
            again = queries.running[USAGE]
            assert runner.status()[0].error == "its query has ended, and is started again: stopped"
            assert (again.id == first.id, again.runId == first.runId) == (True, False)
            wait_until(lambda: queries.start() or runner.status()[0].state == "ok", LIMIT_S)
            run, _ = UsageHistoryTable(bench.domain).begin()
            send(bench, 2)
            wait_until(lambda: again.exception() is not None, LIMIT_S)
            queries.start()
            assert "UsageRunReplacedError: " in runner.status()[0].error
            queries.start()
            assert not queries.running, "it stands by"
            assert UsageHistoryTable(bench.domain).known().owner == run
            monkeypatch.setattr(upkeep, "STAND_BY_S", 0.0)
            queries.start()
            wait_until(lambda: sent() == 7, LIMIT_S)
            assert queries.running[USAGE].id != first.id
        finally:
            queries.stop()
        work.close()


def test_query_that_cannot_start_is_named(tmp_path: Any) -> None:
    """C13: and tried again, while the others run."""
    problems, looks = list[str](), list[object]()

    class Query:
        isActive = True

        def stop(self) -> None:
            looks.append("stopped")

    def fails(_checkpoint: str) -> Any:
        raise services.Py4JError("the checkpoint cannot be written\n\tat java.base/…")

    def starts(checkpoint: str) -> Any:
        looks.append(checkpoint)
        return Query()

    made = [
        ServiceQuery("usage", fails, looks.append, problems.append),
        ServiceQuery("expiration", starts, lambda query: looks.append("looked"), problems.append),
    ]
    queries = ServiceQueries(made, str(tmp_path))
    queries.start()
    queries.start()
    queries.stop()
    assert [problem.startswith("its query cannot start: the checkpoint") for problem in problems] == [True, True]
    assert "\n" not in problems[0]
    assert looks == [f"{tmp_path}/expiration", "looked", "stopped"]


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("no answer")])
def test_java_process_that_has_ended_is_named(tmp_path: Any, error: Exception) -> None:
    """C13: so `jmsq services` ends, and whatever started it starts it again."""

    class Query:
        @property
        def isActive(self) -> bool:
            raise error

        def stop(self) -> None:
            raise error

    queries = ServiceQueries([ServiceQuery("usage", lambda checkpoint: Query(), print, print)], str(tmp_path))  # type: ignore[arg-type, return-value]
    queries.start()
    with pytest.raises(ConnectionError, match="Java process has ended: start the services again"):
        queries.start()
    queries.stop()


@pytest.mark.parametrize("package", ["google.protobuf", "pandas"])
def test_package_that_the_operators_need_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    """T6: Spark would tell of it when the first batch runs in a worker."""

    def missing(name: str) -> object:
        if name == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

    monkeypatch.setattr(services, "import_module", missing)
    with pytest.raises(MissingExtraError, match="spark"):
        check_operators()
