"""The pure parts of the benchmark: figures, ratios, verdicts, the lines they are kept in and the tables they become."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks import (
    calls,
    client,
    competing,
    counting_daemon,
    growth,
    jars,
    latency,
    quotas,
    ranking,
    report,
    scaling,
    selective_backlog,
    send_modes,
    services,
    subscriptions,
)
from benchmarks.errors import CellFailedError
from benchmarks.forced_writes import appends, locked_writes
from benchmarks.measure import BROKER, DRIVER, ProcessTime, SteadyCpu, spent_s
from benchmarks.recorder import Recorder
from benchmarks.results import Absence, Noise, Results, Sample, TargetComparison, from_lines, to_line
from benchmarks.stats import Spread, counted, pair_ratios, percentile, spread, steady
from benchmarks.workbench import BenchmarkOptions, Workbench
from spark_jms.log.destinations.domain import Domain
from spark_jms.store.regions.core.actions import ToClient, ToPeer
from spark_jms.store.regions.protocol.messages import Ack, DaemonHeartbeat, encode

pytestmark = pytest.mark.unit

QUIET = Noise(0.1, 0.02)
OPTIONS = BenchmarkOptions(
    rows=1_000_000,
    runs=3,
    parts=("sink",),
    only=("jmsq", "kafka"),
    quick=False,
    latency_s=30,
    warm_s=10,
    rate=100,
    versions=(10,),
    files=(10,),
    backlogs=(1000,),
    rounds=20,
    build_budget_s=900,
    commits=300_000,
    large_rows=3_000_000,
)


def sample(cell: str, run: int, value: float, noise: Noise = QUIET) -> Sample:
    return Sample("sink", cell, run, value, "messages/s", 4.2, noise)


@pytest.fixture
def results() -> Results:
    """jmsq 1.5, 2.0 and 1.0 times Kafka in the counted runs, ten times in the cold one."""
    found = Results(machine={"CPU": "a | b", "cores": "2"}, options=asdict(OPTIONS))
    for run, ours, theirs in ((0, 1000, 100), (1, 150, 100), (2, 240, 120), (3, 90, 90)):
        found.samples += [sample("jmsq", run, ours), sample("spark-kafka", run, theirs)]
    found.comparisons.append(TargetComparison("sink", "jmsq", "spark-kafka", 1.25))
    return found


@given(st.lists(st.floats(-1e9, 1e9), min_size=1), st.floats(0, 100))
def test_percentile_is_between_smallest_and_largest(values: list[float], percent: float) -> None:
    assert min(values) <= percentile(values, percent) <= max(values)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([3], 99, 3), ([1, 2, 3], 50, 2), ([4, 1, 3, 2], 50, 2.5), ([0, 10], 99, 9.9), ([5, 1], 0, 1), ([5, 1], 100, 5)],
)
def test_percentile_known(values: list[float], percent: float, expected: float) -> None:
    assert percentile(values, percent) == pytest.approx(expected)


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], -1), ([1.0], 101)])
def test_percentile_refuses(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="percent"):
        percentile(values, percent)


def test_spread_of_nothing_is_none_and_a_wrong_one_is_refused() -> None:
    assert spread([]) is None
    assert spread([3, 1, 2]) == Spread(2, 1, 3, 3)
    with pytest.raises(ValueError, match="not a spread"):
        Spread(median=5, low=1, high=3, count=3)


def test_cold_run_is_not_counted() -> None:
    assert counted({2: 20.0, 0: 1.0, 1: 10.0}) == {1: 10.0, 2: 20.0}


def test_ratios_are_pairs_of_the_same_run() -> None:
    assert pair_ratios({0: 9, 1: 2, 2: 9, 4: 1}, {0: 1, 1: 1, 2: 3, 3: 1}) == [2, 3]
    assert pair_ratios({1: 2}, {1: 0}) == []


def test_steady_drops_the_warm_up() -> None:
    assert steady([(0, 9.0), (1_999_999_999, 8.0), (2_000_000_000, 1.0)], 0, 2) == [1.0]


def test_ratio_and_verdict(results: Results) -> None:
    comparison = results.comparisons[0]
    ratio = results.ratio(comparison)
    assert ratio == Spread(1.5, 1.0, 2.0, 3)
    assert comparison.verdict(ratio) == "met"
    assert replace(comparison, bound=1.6).verdict(ratio) == "missed"
    assert replace(comparison, bound=1.2, at_least=False).verdict(ratio) == "missed"
    assert replace(comparison, bound=None).verdict(ratio) == "no target"
    assert comparison.verdict(None) == "not measured"


def test_rows_tell_figures_cold_run_ratio_and_noise(results: Results) -> None:
    results.samples.append(sample("spark-kafka", 4, 100, Noise(3.4, 0.5)))
    jmsq, kafka = report.rows(results, "sink")
    assert (jmsq.median, jmsq.low_high, jmsq.cold) == ("150", "90.0–240", "1,000")
    assert (jmsq.ratio, jmsq.against, jmsq.target) == ("1.50 × (1.00–2.00)", "spark-kafka", "≥ 1.25 ×")
    assert (jmsq.verdict, jmsq.noise) == ("met", "0.1 / 2%")
    assert (kafka.ratio, kafka.noise) == ("", "3.4 / 50%")


def test_an_absent_peer_stays_in_its_table_and_its_target_is_not_measured(results: Results) -> None:
    results.samples = [s for s in results.samples if s.cell == "jmsq"]
    results.absences.append(Absence("sink", "spark-kafka", "missing: no jars"))
    rows = {row.cell: row for row in report.rows(results, "sink")}
    assert rows["spark-kafka"].median == "missing: no jars"
    assert rows["jmsq"].verdict == "not measured"
    assert "missing: no jars" in report.markdown(results, "2026-01-01")


def test_a_cell_that_failed_later_keeps_its_figure_and_tells(results: Results) -> None:
    results.absences.append(Absence("sink", "jmsq", "CellFailedError: moved 1 of 2 rows"))
    assert report.rows(results, "sink")[0].median == "150 (3 runs; then CellFailedError: moved 1 of 2 rows)"


def test_lines_bring_back_the_results(results: Results) -> None:
    results.absences.append(Absence("source", "spark-kafka", "missing: x"))
    lines = [to_line("machine", results.machine), to_line("options", results.options), ""]
    for kind, entries in (
        ("sample", results.samples),
        ("absence", results.absences),
        ("comparison", results.comparisons),
    ):
        lines += [to_line(kind, entry) for entry in entries]
    again = from_lines(lines)
    assert again.samples == results.samples
    assert again.comparisons == results.comparisons
    assert report.markdown(again, "2026-01-01") == report.markdown(results, "2026-01-01")


def test_an_unknown_line_is_an_error_with_its_number() -> None:
    with pytest.raises(ValueError, match="line 1: kind 'guess'"):
        from_lines(['{"kind": "guess"}'])


def test_markdown_is_whole(results: Results) -> None:
    text = report.markdown(results, "2026-01-01")
    assert "- CPU: a | b" in text
    assert "1,000,000 messages" in text
    assert "| sink | jmsq ÷ spark-kafka | 1.50 × (1.00–2.00) | ≥ 1.25 × | met |" in text
    assert "| jmsq | 150 | 90.0–240 | 1,000 | 1.50 × (1.00–2.00) | spark-kafka | ≥ 1.25 × | met | 0.1 / 2% |" in text
    assert report.QUICK not in text
    quick = replace(OPTIONS, quick=True)
    assert report.QUICK in report.markdown(Results(options=asdict(quick)), "2026-01-01")


def test_terminal_tables_render_what_looks_like_markup(results: Results) -> None:
    results.absences.append(Absence("source", "spark-kafka", "missing: [/red] in a reason"))
    out = io.StringIO()
    console = Console(file=out, width=200)
    for table in report.terminal_tables(results):
        console.print(table)
    assert "[/red] in a reason" in out.getvalue()
    assert "sink (messages/s)" in out.getvalue()


@pytest.mark.parametrize(
    ("value", "text"), [(123_456.7, "123,457"), (99.94, "99.9"), (9.876, "9.88"), (0.0, "0.00"), (100.0, "100")]
)
def test_number(value: float, text: str) -> None:
    assert report.number(value) == text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parts": ("sink", "drain")}, "--parts: drain"),
        ({"only": ("rabbit",)}, "--only: rabbit"),
        ({"rows": 0}, "--rows"),
        ({"rounds": 0}, "--rounds"),
    ],
)
def test_options_are_refused_by_name(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(OPTIONS, **change)  # type: ignore[arg-type]


def test_a_quick_run_is_small_and_never_published(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks import run

    quick = run._options(run._parser().parse_args(["--quick"]))
    full = run._options(run._parser().parse_args([]))
    assert (full.rows, full.runs, full.backlogs[-1], full.versions[-1]) == (1_000_000, 3, 1_000_000, 5000)
    assert quick.quick
    assert quick.rows < full.rows
    with pytest.raises(SystemExit, match="2"):
        run.main(["--quick", "--write-docs"])
    assert "not honest" in capsys.readouterr().err


def test_payload_is_one_kib_and_carries_its_time() -> None:
    for due in (latency.PRIME, 1_700_000_000_000_000_000):
        payload = latency.payload(due)
        assert len(payload) == 1024
        assert int(payload.split(b" ")[0]) == due


def test_connector_is_resolved_without_what_its_modules_depend_on() -> None:
    module = ElementTree.fromstring(jars.ivy_module(jars.CONNECTOR))
    found = module.findall("dependencies/dependency")
    assert {entry.get("transitive") for entry in found} == {"false"}
    assert len(found) == len(jars.CONNECTOR.modules)


def test_parser_refuses_a_number_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks import run

    parser = run._parser()
    assert isinstance(parser, argparse.ArgumentParser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--versions", "ten"])
    assert "--versions" in capsys.readouterr().err


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
        scaling.run(Workbench(None, tmp_path, tmp_path, options, recorder))
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
        ranking.run(Workbench(None, tmp_path, tmp_path, options, recorder))
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
        client.run(Workbench(None, tmp_path, tmp_path, options, recorder))
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
        competing.run(Workbench(None, tmp_path, tmp_path, options, recorder))
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
        growth.run(Workbench(None, tmp_path, tmp_path, options, recorder))
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
        selective_backlog.run(Workbench(None, tmp_path, tmp_path, options, recorder))
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


def test_subscriptions_are_measured_by_time_and_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """C10: a message is stored once for all of them."""
    monkeypatch.setattr(subscriptions, "SENDS", 2)
    monkeypatch.setattr(subscriptions, "QUICK_MANY", 5)
    options = replace(OPTIONS, parts=("subscriptions",), runs=1, quick=True)
    with Recorder(tmp_path / "lines.jsonl", Console(file=io.StringIO())) as recorder:
        subscriptions.run(Workbench(None, tmp_path, tmp_path, options, recorder))
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
        services.run(Workbench(None, tmp_path, tmp_path, options, recorder))
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
        quotas.run(Workbench(None, tmp_path, tmp_path, options, recorder))
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
        send_modes.run(Workbench(None, tmp_path, tmp_path, options, recorder))
    results = recorder.results
    assert results.absences == []
    cells = results.cells(send_modes.TABLE)
    assert cells == [send_modes.BLOCKING, send_modes.ASYNCHRONOUS, *send_modes.ONE_WAY, send_modes.COROUTINES]
    assert all(results.by_run(send_modes.TABLE, cell).keys() == {0, 1} for cell in cells)
    assert {c.against for c in results.comparisons} == {send_modes.BLOCKING}


def test_a_run_of_some_parts_replaces_only_their_sections() -> None:
    """C11: figures come into docs/BENCHMARKS.md from a run, not by hand; those of other parts and the notes stay."""
    whole, part = Results(machine={"CPU": "x"}, options=asdict(OPTIONS)), Results(options=asdict(OPTIONS))
    whole.samples += [sample("jmsq", 1, 150), sample("spark-kafka", 1, 100)]
    whole.samples += [replace(sample(cell, 1, 9), table="client, send") for cell in ("one thread", "8 threads")]
    whole.comparisons += [
        TargetComparison("sink", "jmsq", "spark-kafka", 1.25),
        TargetComparison("client, send", "8 threads", "one thread", 4),
    ]
    part.samples += [
        replace(sample(cell, 1, v), table="client, send") for cell, v in (("one thread", 2), ("8 threads", 9))
    ]
    part.samples.append(replace(sample("jmsq", 1, 3), table="client latency p50"))
    part.comparisons.append(whole.comparisons[1])
    before = report.markdown(whole, "2026-01-01").replace("# Benchmarks\n", "# Benchmarks\n\n> A note.\n", 1)
    after = report.updated(before, report.markdown(part, "2026-02-02"))
    assert "> A note." in after
    assert "- CPU: x" in after
    assert "| sink | jmsq ÷ spark-kafka | 1.50 × (1.50–1.50) | ≥ 1.25 × | met |" in after
    assert "| client, send | 8 threads ÷ one thread | 4.50 × (4.50–4.50) | ≥ 4 × | met |" in after
    assert after.count("8 threads ÷ one thread") == 1
    assert "## client, send (messages/s)\n\nMeasured 2026-02-02.\n\n| cell" in after
    assert after.index("## client, send") < after.index("## client latency p50")
    assert after.count("Measured 2026-02-02.") == 2
    assert report.updated(after, report.markdown(part, "2026-02-02")) == after


def test_steady_cpu_counts_the_work_after_the_warm_up() -> None:
    with SteadyCpu(0.0) as cpu:
        assert cpu.warm.wait(30)
        before = time.process_time()
        while time.process_time() - before < 0.2:
            sum(range(10_000))
    spent = cpu.ms_per_message(1000)
    assert spent[DRIVER] > 0


def test_steady_cpu_leaves_out_the_servers_of_other_peers() -> None:
    """A broker that stands by during our window costs us nothing; nor do our daemons in Kafka's."""
    code = "import time\nwhile time.process_time() < 60: pass  # kafka.Kafka"
    other = subprocess.Popen([sys.executable, "-c", code])
    try:
        counted, left_out = SteadyCpu(0.0), SteadyCpu(0.0, {BROKER})
        with counted, left_out:
            assert counted.warm.wait(30)
            assert left_out.warm.wait(30)
            before = psutil.Process(other.pid).cpu_times().user
            while psutil.Process(other.pid).cpu_times().user - before < 0.1:
                time.sleep(0.01)
    finally:
        other.kill()
        other.wait()
    assert counted.ms_per_message(1000)[BROKER] > 0
    assert BROKER not in left_out.ms_per_message(1000)


def test_processor_time_of_ended_processes_counts_once() -> None:
    """Python's idle workers end in the window of a peer that needs none, which must not get their earlier time as a credit."""

    def time_of(role: str, parent: int, own_s: float, reaped_s: float = 0) -> ProcessTime:
        return ProcessTime(role, "reaped", parent, own_s, reaped_s)

    before = {
        1: time_of("jvm", 0, 10),
        2: time_of("daemon", 1, 3, 5),
        3: time_of("reading", 2, 20),
        4: time_of("helper", 1, 7),
    }
    # The daemon (2) was reaped after 0.5 s more; its worker (3) by init; the helper (4) after 1 s more; 5 is new.
    after = {1: time_of("jvm", 0, 12, 8.5 + 8), 5: time_of("reading", 1, 0.25)}
    assert spent_s(before, after) == {"jvm": 2, "reaped": 1.5, "reading": 0.25}


def test_steady_cpu_refuses_a_window_that_is_all_warm_up() -> None:
    with SteadyCpu(3600) as cpu:
        pass
    with pytest.raises(CellFailedError, match="warm-up"):
        cpu.ms_per_message(100)


@pytest.mark.parametrize("kind", [appends, locked_writes])
def test_forced_writes_of_the_disk_alone_leave_nothing_behind(kind: Callable[..., Any], tmp_path: Path) -> None:
    """C11: what the client's acknowledgements are compared with."""
    with kind(tmp_path / "forced") as write:
        for _ in range(3):
            write()
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())
