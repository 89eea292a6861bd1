"""Services as Structured Streaming queries (T3, T6, C13). tests/process/admin/test_services.py kills them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from py4j.protocol import Py4JNetworkError

from spark_jms import apply, connect
from spark_jms.admin.services import EXPIRATION, HOUSEKEEPING, USAGE, DomainServices, ServiceRunner
from spark_jms.claims.failures.due_expiration import ExpirationProblems
from spark_jms.claims.upkeep import usage_history as upkeep
from spark_jms.claims.upkeep.usage_history import UsageSink, usage_history
from spark_jms.claims.upkeep.views import opened_store
from spark_jms.client import Context
from spark_jms.core.changes.change import NOTHING_READ
from spark_jms.core.changes.usage_fold import UsageFold
from spark_jms.jobs import services
from spark_jms.jobs.services import DomainQueries, ServiceQueries, ServiceQuery, check_operators
from spark_jms.log.changes.feed import ChangeFeed
from spark_jms.log.changes.positions import FeedTables
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.usage_history import UsageHistoryTable
from spark_jms.settings.table import MissingExtraError
from spark_jms.store import StoreBusyError
from spark_jms.testing import wait_until
from spark_jms.testing.inside import records_of

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
        assert [loop.services for loop in work.loops([HOUSEKEEPING, USAGE])] == [(HOUSEKEEPING,)]
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


def test_query_whose_start_meets_a_full_disk_is_named(tmp_path: Any) -> None:
    """C13: an error of the domain or of its storage ends no process; Java's end does, also while no query runs."""
    problems = list[str]()
    errors: list[Exception] = [
        OSError(28, "No space left on device"),
        StoreBusyError("away"),
        ConnectionRefusedError(111, "refused"),
    ]

    def fails(_checkpoint: str) -> Any:
        raise errors.pop(0)

    queries = ServiceQueries([ServiceQuery("usage", fails, print, problems.append)], str(tmp_path))
    queries.start()
    queries.start()
    assert problems[0] == "its query cannot start: OSError: [Errno 28] No space left on device"
    assert problems[1].startswith("its query cannot start: StoreBusyError: away")
    with pytest.raises(ConnectionError, match="Java process has ended"):
        queries.start()


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


class FakeQuery:
    """A query that runs and is idle, until it has ended with an error."""

    id, runId, recentProgress, isActive = "2d1b", "1", (), True
    status: ClassVar = {"isTriggerActive": False}
    error = ""

    def exception(self) -> Exception:
        return RuntimeError(f"traceback\nspark_jms.errors.{self.error}")

    def ends(self, error: str) -> None:
        self.isActive, self.error = False, error

    def stop(self) -> None:
        self.ends("stopped")


@pytest.fixture
def faked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakedQueries]:
    root = str(tmp_path / "messages")
    apply(root, {"destinations": {name: {"kind": "queue"} for name in ("orders", "others")}})
    with connect(root, housekeeping=False) as context:
        yield FakedQueries(context, monkeypatch, str(tmp_path / "checkpoint"))


class FakedQueries:
    """Those of a domain, without Spark: what they are told, and what they do."""

    def __init__(self, context: Context, monkeypatch: pytest.MonkeyPatch, checkpoint: str) -> None:
        self.started, self.deleted = list[str](), list[str]()
        self.context, self.checkpoint, self.domain = context, checkpoint, Domain(context.root)
        self._monkeypatch = monkeypatch
        self.runner = ServiceRunner([], others=[EXPIRATION, USAGE])
        conf = SimpleNamespace(set=lambda *_: None)
        spark: Any = SimpleNamespace(newSession=lambda: SimpleNamespace(conf=conf))
        of_domain = DomainQueries(spark, self.domain, records_of(context), self.runner)
        monkeypatch.setattr(services, "start_usage", self._usage)
        monkeypatch.setattr(services, "start_expiration", lambda *_: self._start(EXPIRATION))
        monkeypatch.setattr(services, "delete_checkpoint", lambda _, place: self.deleted.append(place))
        self.sinks = list[UsageSink]()
        self.queries = ServiceQueries(of_domain.made([EXPIRATION, USAGE]), checkpoint)

    def again(self) -> FakedQueries:
        """Those of a process that begins."""
        return FakedQueries(self.context, self._monkeypatch, self.checkpoint)

    def _start(self, name: str) -> Any:
        self.started.append(name)
        return FakeQuery()

    def _usage(self, _spark: Any, _domain: Any, sink: UsageSink, *_: Any) -> Any:
        sink.table.create()
        self.sinks.append(sink)
        sink.follow(sink.table.begin()[0])
        return self._start(USAGE)

    def look(self) -> dict[str, str]:
        """What fails, by service."""
        self.queries.start()
        return {one.service: one.error for one in self.runner.status() if one.failing_since}

    def query(self, name: str) -> Any:
        return self.queries.running[name]


def test_destination_that_cannot_be_read_is_named(faked: FakedQueries, caplog: pytest.LogCaptureFixture) -> None:
    """C13, T3, T6: of both services, in the log once, as long as that lasts; the queries are not touched."""
    table = Path(faked.context.root, "orders")
    table.rename(table.with_name("elsewhere"))
    assert faked.look() == {}, "they start"
    for _ in range(2):
        found = faked.look()
        assert found.keys() == {EXPIRATION, USAGE}
        assert all(text.startswith("orders: InvalidDestinationError: ") for text in found.values())
    assert caplog.text.count("expiration and usage continue without it") == 1
    table.with_name("elsewhere").rename(table)
    assert faked.look() == {}
    assert faked.started == [EXPIRATION, USAGE]


def test_errors_of_the_expiration_sink_are_shown(faked: FakedQueries) -> None:
    """C13, T6: from the file that the sink's commit writes, without those of destinations that are no more."""
    faked.look()
    problems = ExpirationProblems(faked.domain, FakeQuery.id)
    problems.note({"orders": "StoreBusyError: away", "dropped": "StoreBusyError: away"})
    assert faked.look() == {EXPIRATION: "orders: StoreBusyError: away"}
    problems.note({"orders": ""})
    assert faked.look() == {}


def test_levels_and_differences_need_no_batch(faked: FakedQueries, monkeypatch: pytest.MonkeyPatch) -> None:
    """C13, T3: a level that could not be read is read again, and queues at rest are compared, while the query is idle."""
    faked.look()
    faked.context.producer("orders").send_many({"text": f"{n}"} for n in range(3))
    (sink,) = faked.sinks
    owner = sink.table.known().owner
    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "state_of", lambda *_: (_ for _ in ()).throw(StoreBusyError("away")))
        sink.take(owner, 0, UsageFold().batch(ChangeFeed(faked.domain)))
        assert faked.look()[USAGE].startswith("orders: StoreBusyError: ")
        assert not [row for row in usage_history(faked.domain, ["orders"]) if row.messages_used is not None]
    assert faked.look() == {}
    assert usage_history(faked.domain, ["orders"])[-1].messages_used == 3
    faked.context.producer("orders").send(text="x")
    faked.look()
    sink.take(owner, 1, replace(UsageFold().batch(ChangeFeed(faked.domain)), totals={}))  # as if its totals were lost
    faked.look()
    assert "orders must hold 3 messages, and it holds 4" in faked.look()[USAGE]


@pytest.mark.parametrize("error", ["StaleDomainError", "StaleCheckpointError"])
def test_query_whose_checkpoint_does_not_fit_begins_with_a_fresh_one(faked: FakedQueries, error: str) -> None:
    """C13: it alone, and once."""
    faked.look()
    faked.query(EXPIRATION).ends(f"{error}: a reason")
    assert faked.look()[EXPIRATION].endswith(f"{error}: a reason")
    assert faked.deleted == [f"{faked.checkpoint}/{EXPIRATION}"]
    faked.query(EXPIRATION).ends("UnreadableTableError: torn")
    faked.look()
    assert len(faked.deleted) == 1
    assert faked.started == [EXPIRATION, USAGE, EXPIRATION, EXPIRATION]


def test_queries_begin_with_fresh_checkpoints_when_a_table_was_restored(faked: FakedQueries) -> None:
    """C13, T3, T6: the usage history names it and is lowered; the offset of a query tells it too."""
    table, copy = Path(faked.context.root, "orders"), Path(faked.context.root, "copy")
    shutil.copytree(table, copy)
    faked.look()
    faked.context.producer("orders").send(text="x")
    newest = FeedTables(faked.domain, "*").newest(NOTHING_READ)
    (sink,) = faked.sinks
    sink.take(sink.table.known().owner, 0, UsageFold().batch(ChangeFeed(faked.domain)))
    assert faked.look() == {}
    shutil.rmtree(table)
    copy.rename(table)
    faked = faked.again()
    faked.look()
    assert "was ahead of its table" in faked.look()[USAGE]
    for _ in range(2):
        faked.look()
    assert sorted(faked.deleted) == [f"{faked.checkpoint}/{name}" for name in (EXPIRATION, USAGE)]
    assert faked.look() == {}
    ends = (newest.to_text(), None, "null")
    faked.query(EXPIRATION).recentProgress = [
        SimpleNamespace(sources=[SimpleNamespace(endOffset=end)], batchId=0, observedMetrics={}) for end in ends
    ]
    for _ in range(2):
        faked.look()
    assert faked.started.count(EXPIRATION) == 3
    assert faked.look() == {}


def test_query_that_has_read_while_a_clock_was_wrong_begins_again(faked: FakedQueries) -> None:
    """C13, T3: its time never falls, and would be that of all that follows."""
    faked.look()
    newest = FeedTables(faked.domain, "*").newest(NOTHING_READ)
    for ahead_ms, fresh in ((3_600_000, 0), (31_536_000_000, 1)):
        end = replace(newest, at_ms=now_ms() + ahead_ms).to_text()
        faked.query(USAGE).recentProgress = [SimpleNamespace(sources=[SimpleNamespace(endOffset=end)])]
        for _ in range(2):
            faked.look()
        assert faked.deleted == [f"{faked.checkpoint}/{USAGE}"] * fresh
    assert faked.look() == {}


def test_replaced_query_takes_over_only_what_stays_unrecorded(
    faked: FakedQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T3: two processes do not take turns while nothing happens."""
    now_s = [0.0]
    monkeypatch.setattr(services, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    faked.look()
    run, _ = UsageHistoryTable(faked.domain).begin()
    faked.query(USAGE).ends("UsageRunReplacedError: a newer run")
    for _ in range(3):
        faked.look()
        now_s[0] += upkeep.STAND_BY_S + 1
    assert USAGE not in faked.queries.running
    faked.context.producer("orders").send(text="x")
    faked.look()
    now_s[0] += upkeep.STAND_BY_S - 1
    faked.look()
    assert (faked.deleted, UsageHistoryTable(faked.domain).known().owner) == ([], run)
    now_s[0] += 1
    faked.look()
    assert faked.deleted == [f"{faked.checkpoint}/{USAGE}"]
    assert faked.started.count(USAGE) == 2


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
