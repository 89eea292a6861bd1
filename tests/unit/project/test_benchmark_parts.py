"""What the parts of the benchmark measure, with little to measure: their tables, cells and targets."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from rich.console import Console

from benchmarks import (
    blocked_backlog,
    calls,
    client,
    competing,
    counting_daemon,
    growth,
    quotas,
    ranking,
    report,
    scaling,
    selective_backlog,
    send_modes,
    services,
    subscriptions,
)
from benchmarks.recorder import Recorder
from benchmarks.results import Results, from_lines
from benchmarks.workbench import Workbench
from spark_jms.log.destinations.domain import Domain
from spark_jms.store.regions.core.actions import ToClient, ToPeer
from spark_jms.store.regions.protocol.messages import Ack, DaemonHeartbeat, encode
from tests.harness.benchmark_options import OPTIONS

pytestmark = pytest.mark.unit


def no_spark() -> None:
    """The calls that would use it are faked."""


class FakeCalls:
    """Destinations that count their commits; at version `refuse_at` the next one is refused."""

    def __init__(self, refuse_at: int | None = None) -> None:
        self.versions: dict[Path, int] = {}
        self.swept: set[Path] = set()
        self.refuse_at = refuse_at

    def apply(self, root: Path, destinations: object) -> None:
        self.versions[root] = 0

    @contextlib.contextmanager
    def committer(self, root: Path, destination: str, *, housekeeping: bool) -> Iterator[Callable[[], None]]:
        def commit() -> None:
            if self.versions[root] == self.refuse_at:
                raise ValueError("refused")
            self.versions[root] += 1

        yield commit

    @contextlib.contextmanager
    def planner(
        self, root: Path, destination: str, limit: int | None, *, housekeeping: bool
    ) -> Iterator[Callable[[], int]]:
        yield lambda: 1

    def housekeep(self, root: Path, destination: str) -> None:
        self.swept.add(root)

    def fill(self, spark: object, root: Path, destination: str, messages: int, tasks: int) -> None:
        self.versions[root] = 1

    def delay(self, root: Path, destination: str, messages: int) -> None:
        self.versions[root] = 1

    def version_and_files(self, root: Path, destination: str) -> tuple[int, int]:
        return self.versions[root], 7


def scaled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fake: FakeCalls) -> Results:
    for name in ("apply", "committer", "planner", "housekeep", "fill", "delay", "version_and_files"):
        monkeypatch.setattr(calls, name, getattr(fake, name))
    options = replace(OPTIONS, parts=("commit", "planning"), versions=(3, 5), files=(4, 8), backlogs=(10, 20), rounds=2)
    with Recorder(tmp_path / "results.jsonl", Console(file=io.StringIO())) as recorder:
        scaling.run(Workbench(no_spark, tmp_path, tmp_path, options, recorder))
    return recorder.results


def test_scaling_samples_every_mark_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeCalls()
    results = scaled(monkeypatch, tmp_path, fake)
    assert results.absences == []
    cells = results.cells(scaling.COMMIT_VERSIONS)
    assert cells == [f"version {size}, housekeeping {on}" for on in ("on", "off") for size in (3, 5)]
    order = [(s.run, s.cell) for s in results.samples if s.table == scaling.COMMIT_VERSIONS]
    assert order == [(run, cell) for run in range(3) for cell in cells]
    assert results.note(scaling.COMMIT_VERSIONS, cells[1]) == "at version 5, 7 active files"
    assert len(fake.swept) == 2 + 2 + 2 + 2 + 2  # versions, files, backlogs, whole backlogs, delayed
    bounds = [(c.cell, c.against, c.bound) for c in results.comparisons if c.table == scaling.COMMIT_VERSIONS]
    assert bounds == [(cells[1], cells[0], 1.3), (cells[3], cells[2], None)]
    with (tmp_path / "results.jsonl").open(encoding="utf-8") as lines:
        assert from_lines(lines).samples == results.samples


def test_a_mark_that_cannot_be_built_is_a_target_not_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    results = scaled(monkeypatch, tmp_path, FakeCalls(refuse_at=4))
    assert results.absence(scaling.COMMIT_VERSIONS, "version 5, housekeeping on") == "ValueError: refused"
    verdicts = {(table, what): verdict for table, what, _, _, verdict in report.targets(results)}
    what = "version 5, housekeeping on ÷ version 3, housekeeping on"
    assert verdicts[scaling.COMMIT_VERSIONS, what] == "not measured"
    assert verdicts[scaling.PLAN_VERSIONS, what] == "not measured"


def test_the_ranking_measures_each_store_that_can_be_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """R20: the same objects on each, at 1, 8 and 64 in flight; figures of so short a run mean nothing."""

    def no_daemons(directory: Path) -> NoReturn:
        raise RuntimeError("no daemons here")

    monkeypatch.setattr(ranking, "daemons", no_daemons)
    monkeypatch.setattr(ranking, "QUICK_WINDOW_S", 0.2)  # a store on a busy machine needs that for one commit
    monkeypatch.setattr("spark_jms.testing.postgresql.PrivatePostgresql", None)
    options = replace(OPTIONS, parts=("ranking",), runs=1, quick=True)
    with Recorder(tmp_path / "results.jsonl", Console(file=io.StringIO())) as recorder:
        ranking.run(Workbench(no_spark, tmp_path, tmp_path, options, recorder))
    results = recorder.results
    for table in map(ranking.table_of, (1, 8, 64)):
        assert results.cells(table)[:4] == [ranking.NONE, ranking.FILE, ranking.SLOW_FILE, ranking.SQLITE]
        assert "no daemons here" in str(results.absence(table, ranking.REPLICATED))
        assert all(results.by_run(table, cell).keys() == {0, 1} for cell in results.cells(table)[:3])
        verdicts = {what: verdict for name, what, _, _, verdict in report.targets(results) if name == table}
        assert verdicts["replicated ÷ none (memory)"] == "not measured"
        assert verdicts["jdbc, SQLite ÷ file"] in ("met", "missed")
    assert results.absence(ranking.OBJECTS, "64 in flight")


def test_the_client_is_measured_without_artemis(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """C11: every cell of ours has a figure, and what Artemis's absence affects is named."""

    @contextlib.contextmanager
    def no_broker(*_: object) -> Iterator[NoReturn]:
        raise OSError("no broker here")
        yield

    monkeypatch.setattr(client, "artemis", no_broker)
    monkeypatch.setattr(client, "QUICK_WINDOW_S", 0.05)
    monkeypatch.setattr(client, "QUICK_MESSAGES", 200)
    monkeypatch.setattr(client, "WARM_CALLS", 1)
    console = Console(file=io.StringIO())
    options = replace(OPTIONS, parts=("client",), runs=1, quick=True, rate=10, warm_s=0.2, latency_s=0.5)
    with Recorder(tmp_path / "lines.jsonl", console) as recorder:
        client.run(Workbench(no_spark, tmp_path, tmp_path, options, recorder))
    results = recorder.results
    assert [absence.cell for absence in results.absences] == [client.ARTEMIS] * 3
    assert "no broker here" in str(results.absence(client.SEND, client.ARTEMIS))
    for comparison in results.comparisons:
        ratio = results.ratio(comparison)
        assert (ratio is not None) == (comparison.against != client.ARTEMIS), comparison
        judged = ratio is not None and comparison.bound is not None
        assert (comparison.verdict(ratio) in ("met", "missed")) == judged, comparison
    assert results.figure(client.P99, client.JMSQ)


def test_competing_consumers_are_measured_beside_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """C9: threads and processes, on each kind of store that can be started, and without Artemis."""

    @contextlib.contextmanager
    def missing(*_: object) -> Iterator[NoReturn]:
        raise OSError("not here")
        yield

    monkeypatch.setattr(competing, "artemis", missing)
    monkeypatch.setattr(competing, "WORKS", competing.WORKS[:1])
    monkeypatch.setattr(competing, "QUICK_BACKLOG", 1_000)
    monkeypatch.setattr(competing, "QUICK_WINDOW_S", 0.2)
    monkeypatch.setattr(competing, "daemons", missing)
    options = replace(OPTIONS, parts=("competing",), runs=1, quick=True)
    with Recorder(tmp_path / "results.jsonl", Console(file=io.StringIO())) as recorder:
        competing.run(Workbench(no_spark, tmp_path, tmp_path, options, recorder))
    found = recorder.results
    for work in competing.WORKS:
        for cell in ("1", "4 threads", "4 processes"):
            assert found.absence(work.table, cell) is None
            assert found.by_run(work.table, cell)[1] > 0
            assert found.by_run(f"{work.table}: longest gap", cell)[1] > 0
            assert found.by_run(f"{work.table}: processor time", cell)[1] > 0
    assert found.absence(competing.WORKS[0].table, "1, Artemis") == "OSError: not here"
    assert found.by_run(competing.BY_STORE, "jdbc, SQLite, 4 processes")[1] > 0
    assert found.absence(competing.BY_STORE, "replicated") == "OSError: not here"


def test_daemon_counts_what_it_sends_to_peers_and_its_file_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """R20: each frame once, heartbeats apart; calls on files of the interpreter and the system do not count."""
    monkeypatch.setattr(counting_daemon.daemon.Daemon, "_perform", lambda self, actions: None)
    counts = counting_daemon.CountingDaemon.counts
    counts.clear()
    beat = DaemonHeartbeat(0, 0, False, 0, 0, 0, 0, 0, 0, 0.0, 0.0)
    ack = Ack("s", 1)
    counting_daemon.CountingDaemon._perform(
        object.__new__(counting_daemon.CountingDaemon), [ToPeer(1, beat), ToPeer(2, ack), ToClient(1, ack)]
    )
    assert counts == {"peer_frames": 2, "heartbeats": 1, "peer_bytes": len(encode(0, beat)) + len(encode(0, ack))}
    for path in ("/proc/self/stat", "/dev/shm/rs"):
        counting_daemon.audit("open", (path, "r", 0))
    counting_daemon.audit("socket.connect", ("/directory",))
    assert "file_calls" not in counts
    counting_daemon.audit("open", ("/directory/daemons", "r", 0))
    counting_daemon.audit("os.scandir", ())
    assert counts["file_calls"] == 2
    counts.clear()


def test_commits_without_housekeeping_stay_as_they_were_sent(tmp_path: Path) -> None:
    """C13: a destination "housekeeping off" keeps every file, behind 100 commits too, where senders would compact."""
    calls.apply(tmp_path, {"plain": {"kind": "queue"}})
    with calls.committer(tmp_path, "plain", housekeeping=False) as commit:
        for _ in range(110):
            commit()
    log = Domain(str(tmp_path)).log("plain")
    assert len(log.refresh().files) == 110


def test_growth_compares_the_last_third_with_the_second(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """C13: window by window; what grows is a target missed, and what stays is met."""

    def windows(commits: int, window: int, directory: Path) -> Iterator[growth.GrowthWindow]:
        for number in range(1, commits // window + 1):
            row = (window * number, 500.0, 1.0, 2.0, 9.0, 1.0, 0.1, 5.0, 10 * number, 5_000, 100, 90)
            yield growth.GrowthWindow(*row)

    monkeypatch.setattr(growth, "measure", windows)
    options = replace(OPTIONS, parts=("growth",), commits=3_000)
    with Recorder(tmp_path / "lines.jsonl", Console(file=io.StringIO())) as recorder:
        growth.run(Workbench(no_spark, tmp_path, tmp_path, options, recorder))
    verdicts = {table: verdict for table, _, _, _, verdict in report.targets(recorder.results)}
    assert verdicts.pop("growth, active files") == "missed"
    assert set(verdicts.values()) == {"met"}
    cells = ["sends 1,001 to 2,000", "sends 2,001 to 3,000"]
    assert recorder.results.cells("growth, send p99") == cells
    assert recorder.results.by_run("growth, active files", cells[0]) == {n: 100.0 + 10 * n for n in range(1, 11)}


def test_selectors_are_measured_beside_counting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """C7: each cell finds the same messages in each run, one in a thousand of them."""
    monkeypatch.setattr(selective_backlog, "SEND_MESSAGES", 500)
    options = replace(OPTIONS, parts=("selectors",), rows=2_500, runs=1)
    with Recorder(tmp_path / "lines.jsonl", Console(file=io.StringIO())) as recorder:
        selective_backlog.run(Workbench(no_spark, tmp_path, tmp_path, options, recorder))
    results = recorder.results
    assert results.absences == []
    cells = [
        selective_backlog.COUNT,
        selective_backlog.COUNT_COLUMN,
        *selective_backlog.FIND,
        *selective_backlog.RECEIVE,
    ]
    assert results.cells(selective_backlog.TABLE) == cells
    assert all(results.by_run(selective_backlog.TABLE, cell).keys() == {0, 1} for cell in cells)
    bounds = {c.cell: c.bound for c in results.comparisons if c.bound}
    assert list(bounds.values()) == [3.0, 1.0, 0.2]
    assert {c.against for c in results.comparisons} == {selective_backlog.COUNT}


def test_blocked_backlogs_are_measured_by_processor_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """C9, C12, T10: of a message and of a waiting consumer, against the same one beside fewer messages."""
    for name, value in (("FEW", 20), ("QUICK_MANY", 60), ("SEND_MESSAGES", 50), ("QUICK_WAIT_S", 0.05), ("WARM", 1)):
        monkeypatch.setattr(blocked_backlog, name, value)
    few_units = tuple(replace(backlog, units=min(backlog.units, 3)) for backlog in blocked_backlog.KINDS)
    monkeypatch.setattr(blocked_backlog, "KINDS", few_units)
    options = replace(OPTIONS, parts=("blocked",), runs=1, quick=True)
    with Recorder(tmp_path / "lines.jsonl", Console(file=io.StringIO())) as recorder:
        blocked_backlog.run(Workbench(no_spark, tmp_path, tmp_path, options, recorder))
    results = recorder.results
    assert results.absences == []
    cells = [f"{size} {backlog.kind}" for backlog in few_units for size in (20, 60)]
    for table in (blocked_backlog.MESSAGE, blocked_backlog.WAITING):
        assert results.cells(table) == cells
        assert all(results.by_run(table, cell).keys() == {0, 1} for cell in cells)
    assert [(c.cell, c.against, c.bound) for c in results.comparisons if c.table == blocked_backlog.MESSAGE] == [
        (many, few, 2.0) for few, many in zip(cells[::2], cells[1::2], strict=True)
    ]


def test_subscriptions_are_measured_by_time_and_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """C10: a message is stored once for all of them."""
    monkeypatch.setattr(subscriptions, "SENDS", 2)
    monkeypatch.setattr(subscriptions, "QUICK_MANY", 5)
    options = replace(OPTIONS, parts=("subscriptions",), runs=1, quick=True)
    with Recorder(tmp_path / "lines.jsonl", Console(file=io.StringIO())) as recorder:
        subscriptions.run(Workbench(no_spark, tmp_path, tmp_path, options, recorder))
    results = recorder.results
    assert results.absences == []
    for table in (subscriptions.SEND_TIME, subscriptions.STORAGE, subscriptions.MAKING):
        assert results.cells(table) == ["1 subscription", "5 subscriptions"]
    (storage,) = [c for c in results.comparisons if c.table == subscriptions.STORAGE]
    assert storage.verdict(results.ratio(storage)) == "met"


class RecordedQuery:
    """A query whose first batch has begun."""

    def __init__(self) -> None:
        self.recentProgress = [SimpleNamespace(timestamp="2026-11-28T10:00:00.000Z", numInputRows=1)]

    def exception(self) -> None:
        return None


def test_services_are_measured_by_rates_and_processor_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """T3, T6, M12: without Spark, whose queries here have done everything at once."""

    @contextlib.contextmanager
    def started(*_: object) -> Iterator[RecordedQuery]:
        yield RecordedQuery()

    @contextlib.contextmanager
    def everything_expired(*_: object) -> Iterator[Callable[[str], int]]:
        yield {services.DUE: 50, services.OTHERS: services.FEW}.__getitem__

    for name in ("expiration", "usage"):
        monkeypatch.setattr(calls, name, started)
    monkeypatch.setattr(calls, "expirations", everything_expired)
    monkeypatch.setattr(services, "reading", started)
    positions = itertools.cycle((1, services.RATE * services.QUICK_FEED_S + 1))
    monkeypatch.setattr(calls, "feed_position", lambda query: next(positions))
    for name, value in {
        "QUICK_DUE_MESSAGES": 50,
        "QUICK_IDLE_S": 0.01,
        "QUICK_IDLE_DESTINATIONS": (1, 2),
    }.items():
        monkeypatch.setattr(services, name, value)
    options = replace(OPTIONS, parts=("services",), runs=1, quick=True)
    with Recorder(tmp_path / "lines.jsonl", Console(file=io.StringIO())) as recorder:
        services.run(Workbench(no_spark, tmp_path, tmp_path, options, recorder))
    results = recorder.results
    assert results.absences == []
    assert results.cells(services.IDLE) == ["1 destinations", "2 destinations"]
    assert sorted(results.cells(services.FEED)) == [services.READ, services.SENT]
    (state,) = {one.value for one in results.samples if one.table == services.STATE}
    assert 5 < state < 32 * 1024


def test_quotas_are_measured_beside_destinations_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """B1: single sends and batches, in pairs with targets."""
    filled: list[str] = []
    monkeypatch.setattr(quotas, "QUICK_WINDOW_S", 0.01)
    monkeypatch.setattr(calls, "fill", lambda spark, root, destination, messages, tasks: filled.append(destination))
    with Recorder(tmp_path / "samples.jsonl", Console(file=io.StringIO())) as recorder:
        options = replace(OPTIONS, parts=("quotas",), quick=True, runs=1)
        quotas.run(Workbench(no_spark, tmp_path, tmp_path, options, recorder))
        results = recorder.results
    for table, bound in ((quotas.SENDS, 0.7), (quotas.BATCHES, 0.9)):
        assert sorted(results.cells(table)) == sorted(quotas.DESTINATIONS)
        assert all(results.by_run(table, cell).keys() == {0, 1} for cell in quotas.DESTINATIONS)
        assert [one.bound for one in results.comparisons if one.table == table] == [bound]
    assert sorted(filled) == ["free", "free", "limited", "limited"]


def test_send_modes_are_measured_beside_blocking_sends(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """T11, M7"""
    monkeypatch.setattr(send_modes, "QUICK_WINDOW_S", 0.01)
    options = replace(OPTIONS, parts=("modes",), runs=1, quick=True)
    with Recorder(tmp_path / "lines.jsonl", Console(file=io.StringIO())) as recorder:
        send_modes.run(Workbench(no_spark, tmp_path, tmp_path, options, recorder))
    results = recorder.results
    assert results.absences == []
    cells = results.cells(send_modes.TABLE)
    assert cells == [send_modes.BLOCKING, send_modes.ASYNCHRONOUS, *send_modes.ONE_WAY, send_modes.COROUTINES]
    assert all(results.by_run(send_modes.TABLE, cell).keys() == {0, 1} for cell in cells)
    assert {c.against for c in results.comparisons} == {send_modes.BLOCKING}
