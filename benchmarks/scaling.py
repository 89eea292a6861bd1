"""Commit time against versions and active files, planning time against backlog and versions, housekeeping on and off.

All destinations of a table are built first; then they are sampled in turn, round by round, the first round cold. So the
ratio of a mark to the first mark has pairs and a spread like every other ratio, and a drift hits all marks.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks import calls
from benchmarks.errors import CellFailedError
from benchmarks.measure import Meter
from benchmarks.results import Sample, TargetComparison
from benchmarks.workbench import Workbench

COMMIT_VERSIONS, COMMIT_FILES = "commit time by version", "commit time by active files"
PLAN_BACKLOG, PLAN_VERSIONS = "planning time by backlog", "planning time by version"
PLAN_WHOLE, PLAN_DELAYED = "planning of the whole backlog", "planning beside delayed messages"
FLAT, TWICE = 1.3, 2.0
HOUSEKEEP_EVERY = 100
PLAN_LIMIT = 10
MEMBERS = 4
SEND_MESSAGES = 10_000
DESTINATION = "plain"


@dataclass(frozen=True)
class Mark:
    """One destination to build; `cell` names it in the tables, `size` is its version, files or backlog."""

    cell: str
    series: str
    size: int
    root: Path
    housekeeping: bool


def run(bench: Workbench) -> None:
    """The requested parts; each table stands alone and names its own failures."""
    commit, planning = bench.options.wants("commit"), bench.options.wants("planning")
    versions = [_mark(bench, "version {:,}", size, on) for on in (True, False) for size in bench.options.versions]
    tables = {COMMIT_VERSIONS: (commit, _commit_action), PLAN_VERSIONS: (planning, _plan_after_send)}
    wanted = {table: action for table, (asked, action) in tables.items() if asked}
    for table in wanted:
        _compare(bench, table, versions, FLAT)
    built = _build(bench, list(wanted), versions, _grow)
    for table, action in wanted.items():
        _sample(bench, table, built, action)
    if commit:
        files = [_mark(bench, "{:,} files sent", size, on) for on in (False, True) for size in bench.options.files]
        _compare(bench, COMMIT_FILES, files, None)
        _sample(bench, COMMIT_FILES, _build(bench, [COMMIT_FILES], files, _scatter), _commit_action)
    if planning:
        backlogs = [_mark(bench, "{:,} messages", size, True) for size in bench.options.backlogs]
        _compare(bench, PLAN_BACKLOG, backlogs, FLAT)
        _sample(bench, PLAN_BACKLOG, _build(bench, [PLAN_BACKLOG], backlogs, _pile), _plan_action)
        _whole(bench)
        delayed = [_mark(bench, "{:,} delayed", size, True) for size in bench.options.backlogs]
        _compare(bench, PLAN_DELAYED, delayed, TWICE)
        _sample(bench, PLAN_DELAYED, _build(bench, [PLAN_DELAYED], delayed, _delay), _plan_after_send)


def _mark(bench: Workbench, name: str, size: int, housekeeping: bool) -> Mark:
    series = f"housekeeping {'on' if housekeeping else 'off'}"
    return Mark(f"{name.format(size)}, {series}", series, size, bench.new_path("scaling"), housekeeping)


def _compare(bench: Workbench, table: str, marks: list[Mark], bound: float | None) -> None:
    """Compare each mark with the first of its series. Announced before the build, so that a failure shows."""
    first: dict[str, str] = {}
    for mark in marks:
        against = first.setdefault(mark.series, mark.cell)
        if against != mark.cell:
            limit = bound if mark.housekeeping else None
            bench.recorder.compare(TargetComparison(table, mark.cell, against, limit, at_least=False))


def _build(
    bench: Workbench, tables: list[str], marks: list[Mark], build: Callable[[Workbench, Mark], None]
) -> list[Mark]:
    """The marks that could be built; the tables of the others name the reason."""
    bench.recorder.part("building", len(marks))
    built = []
    for mark in marks if tables else []:

        def one(mark: Mark = mark) -> None:
            build(bench, mark)
            if mark.housekeeping:
                calls.housekeep(mark.root, DESTINATION)

        bench.recorder.doing(f"building {mark.cell}")
        if bench.recorder.attempt([(table, mark.cell) for table in tables], one):
            built.append(mark)
        bench.recorder.step()
    return built


def _grow(bench: Workbench, mark: Mark) -> None:
    """Bring a plain queue to its version by single commits, within the time budget."""
    calls.apply(mark.root, {DESTINATION: {"kind": "queue"}})
    deadline = time.monotonic() + bench.options.build_budget_s
    version, _ = calls.version_and_files(mark.root, DESTINATION)
    with calls.committer(mark.root, DESTINATION, housekeeping=mark.housekeeping) as commit:
        for number in range(mark.size - version):
            commit()
            if mark.housekeeping and number % HOUSEKEEP_EVERY == HOUSEKEEP_EVERY - 1:
                calls.housekeep(mark.root, DESTINATION)
            if time.monotonic() > deadline:
                budget = f"{bench.options.build_budget_s:.0f} s"
                raise CellFailedError(f"only {number + 1:,} of {mark.size:,} commits within the budget of {budget}")


def _scatter(bench: Workbench, mark: Mark) -> None:
    """Create this many active files in one commit: one file per task and member."""
    _fill(bench, mark.root, mark.size * 10, max(1, mark.size // MEMBERS))


def _pile(bench: Workbench, mark: Mark) -> None:
    """Build a backlog by sends of 10,000 messages from 2 tasks, so that a larger one also has more files."""
    for start in range(0, mark.size, SEND_MESSAGES):
        _fill(bench, mark.root, min(SEND_MESSAGES, mark.size - start), 2)


def _delay(bench: Workbench, mark: Mark) -> None:
    """Messages that are due tomorrow, in sends of 10,000."""
    calls.apply(mark.root, {DESTINATION: {"kind": "queue"}})
    for start in range(0, mark.size, SEND_MESSAGES):
        calls.delay(mark.root, DESTINATION, min(SEND_MESSAGES, mark.size - start))


def _fill(bench: Workbench, root: Path, messages: int, tasks: int) -> None:
    calls.apply(root, {DESTINATION: {"kind": "distributed-queue", "members": MEMBERS}})
    calls.fill(bench.spark, root, DESTINATION, messages, tasks)


@dataclass(frozen=True)
class MarkUnderTest:
    """A mark ready to be sampled: `before` is not timed."""

    cell: str
    note: str
    before: Callable[[], object]
    timed: Callable[[], object]


Action = Callable[[Mark, contextlib.ExitStack], tuple[Callable[[], object], Callable[[], object]]]
"""Opens what a mark needs and returns (before, timed)."""


def _commit_action(mark: Mark, stack: contextlib.ExitStack) -> tuple[Callable[[], object], Callable[[], object]]:
    commit = stack.enter_context(calls.committer(mark.root, DESTINATION, housekeeping=mark.housekeeping))
    return (lambda: None), commit


def _plan_action(mark: Mark, stack: contextlib.ExitStack) -> tuple[Callable[[], object], Callable[[], object]]:
    plan = calls.planner(mark.root, DESTINATION, PLAN_LIMIT, housekeeping=mark.housekeeping)
    return (lambda: None), stack.enter_context(plan)


def _plan_after_send(mark: Mark, stack: contextlib.ExitStack) -> tuple[Callable[[], object], Callable[[], object]]:
    """Send more, so that the smallest destination always has something to plan."""
    commit = stack.enter_context(calls.committer(mark.root, DESTINATION, housekeeping=mark.housekeeping))
    plan = calls.planner(mark.root, DESTINATION, 1, housekeeping=mark.housekeeping)
    return commit, stack.enter_context(plan)


def _sample(bench: Workbench, table: str, marks: list[Mark], action: Action) -> None:
    """One cold round and `--rounds` counted ones over all marks, in turn."""
    bench.recorder.part(table, (bench.options.rounds + 1) * len(marks))
    with contextlib.ExitStack() as stack:
        opened: list[MarkUnderTest] = []
        for mark in marks:

            def open_one(mark: Mark = mark) -> None:
                version, files = calls.version_and_files(mark.root, DESTINATION)
                note = f"at version {version:,}, {files:,} active files"
                opened.append(MarkUnderTest(mark.cell, note, *action(mark, stack)))

            bench.recorder.attempt([(table, mark.cell)], open_one)
        for number in range(bench.options.rounds + 1):
            opened = _round(bench, table, number, opened)


def _round(bench: Workbench, table: str, number: int, opened: list[MarkUnderTest]) -> list[MarkUnderTest]:
    """One sample of each. Noise is recorded per round, because a single call is too short for it."""
    values: list[tuple[MarkUnderTest, float]] = []
    with Meter() as meter:
        for mark in opened:

            def one(mark: MarkUnderTest = mark) -> None:
                mark.before()
                start = time.perf_counter()
                mark.timed()
                values.append((mark, (time.perf_counter() - start) * 1000))

            bench.recorder.attempt([(table, mark.cell)], one)
            bench.recorder.step()
    for mark, value in values:
        detail: dict[str, float | str] = {"note": mark.note}
        bench.recorder.sample(
            Sample(table, mark.cell, number, value, "ms", value / 1000, meter.noise, detail), show=False
        )
    return [mark for mark, _ in values]


def _whole(bench: Workbench) -> None:
    """Everything in one batch: a single sample, because claimed messages cannot be planned again."""
    bench.recorder.part("the whole backlog", len(bench.options.backlogs))
    for backlog in bench.options.backlogs:
        mark = _mark(bench, "{:,} messages", backlog, True)

        def one(mark: Mark = mark) -> None:
            with Meter() as meter:
                _pile(bench, mark)
                calls.housekeep(mark.root, DESTINATION)
                with calls.planner(mark.root, DESTINATION, None, housekeeping=True) as plan:
                    start = time.perf_counter()
                    plan()
                    value = (time.perf_counter() - start) * 1000
            bench.recorder.sample(Sample(PLAN_WHOLE, mark.cell, 1, value, "ms", value / 1000, meter.noise))

        bench.recorder.attempt([(PLAN_WHOLE, mark.cell)], one)
        bench.recorder.step()
