"""Runs cells, records their results (in memory and as JSON lines) and shows the progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks.errors import PeerMissingError
from benchmarks.measure import Meter
from benchmarks.results import Absence, Results, Sample, TargetComparison, to_line
from benchmarks.stats import COLD_RUN

REASON_CHARACTERS = 300


class Recorder:
    """A context manager around one run. A failing cell is recorded as absent by name; only an interrupt ends the run."""

    def __init__(self, path: Path, console: Console) -> None:
        self.path = path
        self.results = Results()
        self.console = console
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("preparing", total=None)
        self._file: TextIO | None = None

    def __enter__(self) -> Recorder:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("w", encoding="utf-8")
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        if self._file is not None:
            self._file.close()

    def head(self, machine: Mapping[str, str], options: Mapping[str, Any]) -> None:
        self.results.machine, self.results.options = machine, options
        self._write("machine", machine)
        self._write("options", options)

    def part(self, name: str, cells: int) -> None:
        """Begin a part: the bar counts its cells."""
        self._progress.reset(self._task, total=cells, description=name)

    def doing(self, text: str) -> None:
        self._progress.update(self._task, description=text)

    def step(self) -> None:
        self._progress.advance(self._task)

    def sample(self, sample: Sample, *, show: bool = True) -> None:
        self.results.samples.append(sample)
        self._write("sample", sample)
        if show:
            run = "cold" if sample.run == COLD_RUN else f"run {sample.run}"
            noise = f"load {sample.noise.load_before:.1f}, others {sample.noise.others_cpu_share:.0%}"
            text = f"{sample.table:<12} {sample.cell:<24} {run:<6} {sample.value:>12,.1f} {sample.unit}"
            self.console.print(f"  {text}  [dim]{sample.seconds:.1f} s, {noise}[/dim]", highlight=False)

    def absent(self, table: str, cell: str, error: BaseException) -> None:
        """Once per table and cell; later reasons for the same cell are only printed."""
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"[:REASON_CHARACTERS]
        if isinstance(error, PeerMissingError):
            reason = f"missing: {str(error)[:REASON_CHARACTERS]}"
        self.console.print(f"  {table:<12} {cell:<24} [red]{reason}[/red]", highlight=False, soft_wrap=True)
        if self.results.absence(table, cell) is None:
            absence = Absence(table, cell, reason)
            self.results.absences.append(absence)
            self._write("absence", absence)

    def compare(self, comparison: TargetComparison) -> None:
        self.results.comparisons.append(comparison)
        self._write("comparison", comparison)

    def attempt(self, cells: Iterable[tuple[str, str]], action: Callable[[], object]) -> bool:
        """Run `action`. If it fails, record each (table, cell) as absent with the reason. True on success."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - recorded by name in the table, never dropped
            for table, cell in cells:
                self.absent(table, cell, error)
            return False
        return True

    def rate(self, table: str, cell: str, run: int, rows: int, action: Callable[[], dict[str, float | str]]) -> bool:
        """Measure one throughput cell: rows over the wall time of the action, the start of its query included."""

        def measured() -> None:
            with Meter() as meter:
                detail = action()
            rate = rows / meter.seconds
            self.sample(Sample(table, cell, run, rate, "messages/s", meter.seconds, meter.noise, detail))

        done = self.attempt([(table, cell)], measured)
        self.step()
        return done

    def _write(self, kind: str, entry: Any) -> None:
        if self._file is None:
            raise RuntimeError("the recorder is not open")
        self._file.write(to_line(kind, entry) + "\n")
        self._file.flush()
