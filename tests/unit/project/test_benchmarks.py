"""The pure parts of the benchmark: figures, ratios, verdicts, the lines they are kept in and the tables they become."""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from benchmarks import (
    jars,
    latency,
    report,
)
from benchmarks.errors import CellFailedError
from benchmarks.forced_writes import appends, locked_writes
from benchmarks.measure import BROKER, DRIVER, ProcessTime, SteadyCpu, spent_s
from benchmarks.results import Absence, Noise, Results, Sample, TargetComparison, from_lines, to_line
from benchmarks.stats import Spread, counted, pair_ratios, percentile, spread, steady
from tests.harness.benchmark_options import OPTIONS

pytestmark = pytest.mark.unit

QUIET = Noise(0.1, 0.02)


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


def test_a_difference_is_told_in_the_unit_of_its_table() -> None:
    """C11: the seconds that a query takes more than another one, pair by pair."""
    start = TargetComparison("sink", "jmsq", "generator", 0.5, at_least=False, unit="s")
    found = Results(options=asdict(OPTIONS), comparisons=[start])
    for cell, values in (("jmsq", (9, 1.0, 1.5, 1.25)), ("generator", (1, 0.75, 1.0, 0))):
        found.samples += [sample(cell, run, value) for run, value in enumerate(values)]
    assert report.targets(found) == [("sink", "jmsq − generator", "0.50 s (0.25–1.25)", "≤ 0.5 s", "met")]
    assert found.comparisons == from_lines([to_line("comparison", start)]).comparisons
    assert "| 0.50 s (0.25–1.25) | generator | ≤ 0.5 s | met |" in report.markdown(found, "2026-01-01")


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
