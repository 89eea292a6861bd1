"""What `jmsq` prints: tables for people, JSON for scripts. Only a terminal gets ANSI codes.

Features: C14 (docs/FEATURES.md)
"""

from __future__ import annotations

import codecs
import dataclasses
import errno
import io
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_MIN_COLUMN = 6
_LEAST_TEXT = 12  # characters that a narrow table shows of a text, before columns are left out
_PIPE_COLUMNS = 1000  # a table in a file or pipe is never cut
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


# For an output whose encoding lacks them, with the same width; any other character is escaped as in Python.
_STAND_INS = {"–": "-", "…": "~", "⏎": "|", "·": "."}


def _encodable(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    stand_in = _STAND_INS.get(error.object[error.start])
    if stand_in is not None:
        return stand_in, error.start + 1
    one = UnicodeEncodeError(error.encoding, error.object, error.start, error.start + 1, error.reason)
    return codecs.backslashreplace_errors(one)


codecs.register_error("jmsq", _encodable)


class Output:
    """`document` and `record` print JSON; the other methods print for people. A command asks `as_json` which to use."""

    def __init__(self, as_json: bool, file: TextIO | None = None) -> None:
        self.as_json = as_json
        self._file = file or sys.stdout
        if isinstance(self._file, io.TextIOWrapper):  # a character that its encoding lacks shall not end the command
            self._file.reconfigure(errors="jmsq")

    # -- for scripts --------------------------------------------------------------------------------------------------
    def document(self, value: Any) -> None:
        self._file.write(self._dumps(value, indent=2 if self._file.isatty() else None) + "\n")
        self._file.flush()

    def record(self, value: Any) -> None:
        """Print one line of a stream and flush it: `receive` acknowledges a message after this returns."""
        self._file.write(self._dumps(value) + "\n")
        self._file.flush()

    def _dumps(self, value: Any, indent: int | None = None) -> str:
        unicode = (self._file.encoding or "").lower().replace("-", "") == "utf8"
        return json.dumps(plain(value), ensure_ascii=not unicode, indent=indent, allow_nan=False)

    # -- for people ---------------------------------------------------------------------------------------------------
    def console(self) -> Console:
        from rich.console import Console

        class OneReader(Console):
            def on_broken_pipe(self) -> None:
                raise BrokenPipeError(errno.EPIPE, "the reader of our output has closed it")

        terminal = self._file.isatty()
        return OneReader(
            file=self._file,
            force_terminal=terminal,
            no_color=None if terminal else True,
            markup=False,
            emoji=False,
            highlight=False,
            width=None if terminal else _PIPE_COLUMNS,
        )

    def say(self, text: str = "") -> None:
        self._file.write(visible(text) + "\n")
        self._file.flush()

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
        made = table(title, columns, rows)
        if made.row_count:
            self.show(made)
        else:
            self.say(empty)

    def show(self, made: Table) -> None:
        """Print a table. On a terminal too narrow even for folded text, lines wrap: nothing is cut off."""
        console = self.console()
        needed = console.measure(made, options=console.options.update(width=_PIPE_COLUMNS)).minimum
        if needed > console.width:
            console.print(made, width=needed, crop=False, soft_wrap=True)
        else:
            console.print(made)

    @contextmanager
    def progress(self, label: str, total: int | None) -> Iterator[Progress]:
        """A progress bar, or a count when the total is unknown, if stderr is a terminal and the output is not JSON."""
        if self.as_json or not sys.stderr.isatty():
            yield Progress()
            return
        from rich import progress as bars

        said = bars.TextColumn("{task.description}")
        columns: tuple[bars.ProgressColumn, ...] = (
            (said, bars.BarColumn(), bars.MofNCompleteColumn(), bars.TimeRemainingColumn())
            if total is not None
            else (said, bars.TextColumn("{task.completed:,}"))
        )
        from rich.console import Console

        with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield Progress(lambda n: bar.advance(task, n))


class Progress:
    def __init__(self, advance: Any = None) -> None:
        self._advance = advance
        self.done = 0

    def advance(self, count: int) -> None:
        self.done += count
        if self._advance is not None:
            self._advance(count)


# -- making -----------------------------------------------------------------------------------------------------------
def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Numbers are right-aligned and never cut, text folds on a narrow terminal, absent values are a dash."""
    from rich import box
    from rich.table import Table

    made = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    kept = [list(row) for row in rows]
    for i, name in enumerate(columns):
        numeric = any(isinstance(row[i], (int, float)) for row in kept) and all(
            row[i] is None or isinstance(row[i], (int, float)) for row in kept
        )
        made.add_column(
            name,
            justify="right" if numeric else "left",
            no_wrap=numeric,
            overflow="fold",
            min_width=min(len(name), _MIN_COLUMN),
        )
    for row in kept:
        made.add_row(*(cell(value) for value in row))
    return made


def narrow_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    width: int,
    optional: Sequence[str],
    style: str = "",
) -> Table:
    """A table that fits a terminal of this width, a line for each row: the first of `optional` columns are left out as far
    as needed, then text is cut with an ellipsis. No word of the header is broken, no number cut."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = [[cell(value) for value in row] for row in rows]
    numeric = [any(isinstance(row[i], (int, float)) for row in rows) for i in range(len(columns))]
    longest = [max([0, *(len(row[i]) for row in shown)]) for i in range(len(columns))]
    least = [
        max(len(name), longest[i] if numeric[i] else min(longest[i], _LEAST_TEXT)) for i, name in enumerate(columns)
    ]
    kept = list(range(len(columns)))
    for name in optional:
        if sum(least[i] + 2 for i in kept) > width + 1:  # two blanks between columns
            kept.remove(columns.index(name))
    made = Table(
        title=title or None,
        title_justify="left",
        title_style=style,
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        header_style="cyan",
    )
    for i in kept:
        made.add_column(columns[i], justify="right" if numeric[i] else "left", no_wrap=numeric[i], min_width=least[i])
    for row in shown:
        made.add_row(*(Text(row[i], no_wrap=True, overflow="ellipsis") for i in kept))
    return made


def cell(value: object) -> str:
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
    return visible(str(value))


def visible(text: str) -> str:
    """Escape control characters: a message must not control the reader's terminal."""
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


def clip(text: str, chars: int) -> str:
    line = text.replace("\n", "⏎").replace("\t", " ")
    return line if len(line) <= chars else line[: chars - 1] + "…"


def human_bytes(size: int) -> str:
    amount = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def human_ms(duration_ms: int) -> str:
    for name, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if duration_ms and duration_ms % unit_ms == 0:
            return f"{duration_ms // unit_ms} {name}"
    return f"{duration_ms} ms" if duration_ms else "0"


def plain(value: Any) -> Any:
    """Convert for JSON: dataclasses to objects, times to ISO 8601 in UTC, NaN and infinities to text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, float) and value - value != 0:
        return str(value)
    return value
