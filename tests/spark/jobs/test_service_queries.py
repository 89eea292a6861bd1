"""Services as Structured Streaming queries (T3, T6, C13). tests/process/admin/test_services.py kills them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JNetworkError

from spark_jms import connect
from spark_jms.admin.services import USAGE, DomainServices, ServiceLoop, ServiceRound, ServiceRunner
from spark_jms.claims.upkeep.usage import usage_history
from spark_jms.claims.upkeep.views import opened_store
from spark_jms.jobs import services
from spark_jms.jobs.services import ServiceQueries, ServiceQuery
from spark_jms.testing import wait_until

if TYPE_CHECKING:
    from tests.spark.conftest import Bench

LIMIT_S = 60


def test_each_service_is_a_query_that_is_started_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """T3, C13: by its name; a failing one holds up no other; one that has ended is named and continues from its checkpoint, as
    does a new process."""
    monkeypatch.setattr(services, "SHORTEST_TRIGGER_S", 0.2)
    with connect(bench.root, housekeeping=False) as context:
        context.producer("orders").send_many({"text": f"{n}"} for n in range(5))

    def fails() -> dict[str, ServiceRound]:
        raise OSError("the disk is on fire")

    with opened_store(bench.domain) as store:
        work = DomainServices(bench.domain, store)
        failing = ServiceLoop(("lag",), 0.2, fails)
        loops = [*work.loops([USAGE]), failing]
        runner = ServiceRunner(loops)
        made = [
            ServiceQuery(
                loop.services[0], 0.2, lambda loop=loop: runner.tick(loop), lambda e, loop=loop: runner.failed(loop, e)
            )
            for loop in loops
        ]
        queries = ServiceQueries(bench.spark, made, str(bench.path / "checkpoint"))
        queries.start()
        try:
            wait_until(lambda: all(one.rounds for one in runner.status()), LIMIT_S)
            states = {one.service: (one.state, one.error) for one in runner.status()}
            assert states == {"usage": ("ok", ""), "lag": ("failing", "OSError: the disk is on fire")}
            assert {query.name for query in bench.spark.streams.active} >= {"jmsq usage", "jmsq lag"}
            assert sum(row.sent for row in usage_history(bench.domain, ["orders"])) == 5
            ended = next(query for query in bench.spark.streams.active if query.name == "jmsq usage")
            ended.stop()
            queries.start()  # as the command does now and then
            error = next(one.error for one in runner.status() if one.service == USAGE)
            assert error == "its query has ended, and is started again: stopped"
            again = next(query for query in bench.spark.streams.active if query.name == "jmsq usage")
            assert (again.id == ended.id, again.runId == ended.runId) == (True, False)
            rounds = runner.status()[0].rounds
            wait_until(lambda: runner.status()[0].rounds > rounds and runner.status()[0].state == "ok", LIMIT_S)
        finally:
            queries.stop()
        assert not [query for query in bench.spark.streams.active if query.name in ("jmsq usage", "jmsq lag")]
        work.close()


def test_query_that_cannot_start_is_named(bench: Bench) -> None:
    """C13: and tried again, while the others run."""
    blocked = bench.path / "file"
    blocked.write_text("")
    problems: list[str] = []
    queries = ServiceQueries(bench.spark, [ServiceQuery("lag", 5.0, lambda: None, problems.append)], f"file:{blocked}")
    queries.start()
    queries.start()
    queries.stop()
    assert [problem.startswith("its query cannot start: ") for problem in problems] == [True, True]
    assert "\n" not in problems[0]


@pytest.mark.parametrize("error", [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("no answer")])
def test_java_process_that_has_ended_is_named(tmp_path: Any, error: Exception) -> None:
    """C13: so `jmsq services` ends, and whatever started it starts it again."""

    class Query:
        @property
        def isActive(self) -> bool:
            raise error

        def stop(self) -> None:
            raise error

    queries = ServiceQueries(None, [ServiceQuery("lag", 5.0, lambda: None, print)], str(tmp_path))  # type: ignore[arg-type]
    queries._queries["lag"] = Query()  # type: ignore[assignment]
    with pytest.raises(ConnectionError, match="Java process has ended: start the services again"):
        queries.start()
    queries.stop()
