"""The demo's output: stages, bars and the queue's depth; with rich on a terminal, as plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

PLAIN_EVERY_S = 5.0
PLAIN_UNCHANGED_EVERY_S = 30.0
_BLOCKS = " ▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """The values as a row of blocks, each the maximum of its slice, so that peaks stay visible."""
    if not values:
        return ""
    top, size = max(*values, 1), min(width, len(values))
    slices = [values[len(values) * i // size : len(values) * (i + 1) // size] for i in range(size)]
    return "".join(_BLOCKS[-(-max(part) * 8 // top).__int__()] for part in slices)


class Screen:
    """A context manager. Thread-safe."""

    def __init__(self, plain: bool = False) -> None:
        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = 120
        self.plain = plain or not self.console.is_terminal
        self._progress = Progress(
            TextColumn("  {task.description:<22}"),
            BarColumn(30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._tasks: dict[str, TaskID] = {}
        self._totals: dict[str, int] = {}
        self._footer = Text("")
        self._live: Live | None = None
        self._started_s = self._said_s = time.monotonic()
        self._said = ""
        self._stage = 0

    def __enter__(self) -> Screen:
        if not self.plain:
            self._live = Live(Group(self._progress, self._footer), console=self.console, refresh_per_second=5)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.settle()

    def settle(self) -> None:
        """Stop moving: later output appears below the final state of the bars."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def stage(self, title: str, explanation: str) -> None:
        self._stage += 1
        elapsed = time.monotonic() - self._started_s
        self.console.print(f"\n[bold]{self._stage}. {title}[/bold]  [dim]({elapsed:.0f} s)[/dim]")
        self.console.print(f"   {explanation}", style="dim" if not self.plain else None, soft_wrap=True)

    def say(self, text: str) -> None:
        self.console.print(f"   {text}", soft_wrap=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        made = Table(box=None, padding=(0, 2))
        for column in columns:
            right = all(isinstance(row[columns.index(column)], int | float | None) for row in rows)
            made.add_column(column, justify="right" if right else "left")
        for row in rows:
            made.add_row(*map(_shown, row))
        self.console.print(f"\n[bold]{title}[/bold]", soft_wrap=True)
        self.console.print(made)

    def bar(self, name: str, done: int, total: int, note: str = "") -> None:
        """Show `done` of `total` on the bar of this name, and create the bar if it is new."""
        self._totals[name] = total
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total, note=note)
        self._progress.update(self._tasks[name], completed=min(done, total), total=total, note=note)

    def depth(self, values: Sequence[int], now: int) -> None:
        """The queue's depth so far. In plain mode this also prints the bars now and then."""
        line = f"  waiting in the queue: {now:>8,}  {sparkline(values, 60)}"
        self._footer.plain = line
        if not self.plain:
            return
        bars = ", ".join(f"{task.description} {task.completed:,.0f}" for task in self._progress.tasks)
        said, silent_s = f"waiting {now:,}; {bars}", time.monotonic() - self._said_s
        if silent_s > (PLAIN_UNCHANGED_EVERY_S if said == self._said else PLAIN_EVERY_S):
            self._said, self._said_s = said, time.monotonic()
            self.console.print(f"   [{self._said_s - self._started_s:4.0f} s] {said}", markup=False)


def _shown(value: object) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
