"""What every command of `jmsq` has: the root, options, arguments, and its output for people or as JSON.

`--root` and `--json` may stand before the command or after it. The one after it wins, then the one before it, then the
environment variable JMSQ_ROOT. Only a terminal gets ANSI codes. This module imports nothing heavy: `jmsq --help` and the shell's
completion load it.

Features: C14 (docs/FEATURES.md)
"""

from __future__ import annotations

import codecs
import dataclasses
import errno
import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click
from click.shell_completion import CompletionItem

from spark_jms.settings.environment import ROOT_VARIABLE

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from spark_jms.admin.administrator import Administrator
    from spark_jms.log.destinations.domain import Domain
    from spark_jms.store import Store

EXIT_USAGE = 2
LOG_BYTES, LOGS_KEPT = 10 * 2**20, 9
_LOGS_TO_FILE = "spark_jms.logs_to_file"
_REGISTER = "_jmsq/destinations"
_Function = TypeVar("_Function", bound=Callable[..., Any])
_MIN_COLUMN = 6
_LEAST_TEXT = 12  # characters that a narrow table shows of a text, before columns are left out
_PIPE_COLUMNS = 1000  # a table in a file or pipe is never cut
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@dataclass
class CommandSettings:
    given_root: str | None = None
    as_json: bool = False

    @property
    def root(self) -> str:
        root = self.given_root or os.environ.get(ROOT_VARIABLE)
        if not root:
            raise click.UsageError(f"which domain? Give --root ROOT, or set {ROOT_VARIABLE}")
        return root

    @property
    def out(self) -> Output:
        return Output(self.as_json)

    def domain(self) -> Domain:
        from spark_jms.claims.upkeep.power_loss import open_domain

        return open_domain(self.root)

    def administrator(self, limit_s: float | None = None) -> Administrator:
        """For a `with` statement. `limit_s`: as of `opened`."""
        from spark_jms.admin.administrator import Administrator

        return Administrator(self.domain(), limit_s)

    @contextmanager
    def opened(self, limit_s: float | None = None) -> Iterator[tuple[Domain, Store]]:
        """The domain and its store. `limit_s`: how long one call of a server's store may take."""
        from spark_jms.claims.upkeep import views

        domain = self.domain()
        with views.opened_store(domain, limit_s) as store:
            yield domain, store


def names_or_all(domain: Domain, given: tuple[str, ...], *, addresses: bool = False) -> list[str]:
    """As spark_jms.admin.destinations has it, which is imported when a command runs."""
    from spark_jms.admin.destinations import names_or_all as found

    return found(domain, given, addresses=addresses)


def name_silent_servers(domain: Domain, store: Store, names: Iterable[str]) -> None:
    """On stderr: the servers of these destinations that do not answer, so that what is shown lacks their part."""
    from spark_jms.admin.servers import silent_servers
    from spark_jms.core.destinations.routing import DestinationAddress

    plain = dict.fromkeys(DestinationAddress.parse(name).destination for name in names)
    for server, why in silent_servers(domain, store, plain).items():
        click.echo(f"jmsq: server {server} is away, and what only its store knows is not shown: {why}", err=True)


# -- options and arguments ---------------------------------------------------------------------------------------------


class DurationParameter(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on
    """A duration in seconds, written with its unit: 10s, '500 ms', 15min."""

    name = "duration"

    def __init__(self, low_s: float = 0, hint: str = "") -> None:
        self._low_s, self._hint = low_s, hint

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from spark_jms.settings.types import parse_duration_ms, show_duration

        if isinstance(value, float):
            return value
        try:
            duration_s = parse_duration_ms(value) / 1000
        except ValueError as error:
            self.fail(f"{error}{self._hint}", param, ctx)
        if duration_s < self._low_s:
            self.fail(f"{value} is too short: at least {show_duration(self._low_s * 1000)}", param, ctx)
        return duration_s


DURATION = DurationParameter()


class MomentParameter(click.ParamType):  # type: ignore[type-arg]
    """A point of time in ms since 1970: an ISO time (UTC unless it says otherwise), or a duration before now."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from datetime import datetime, timezone
        from time import time

        from spark_jms.settings.types import parse_duration_ms

        if isinstance(value, int):
            return value
        try:
            return int(time() * 1000) - parse_duration_ms(value)
        except ValueError:
            pass
        try:
            moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            self.fail(f"{value!r} is not a time: write '2 h' for two hours ago, or 2026-03-01T12:00:00", param, ctx)
        return int((moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).timestamp() * 1000)


MOMENT = MomentParameter()


def _remember_root(context: click.Context, _: click.Parameter, value: str | None) -> None:
    settings = context.ensure_object(CommandSettings)
    settings.given_root = value or settings.given_root


def _remember_json(context: click.Context, _: click.Parameter, value: bool) -> None:
    settings = context.ensure_object(CommandSettings)
    settings.as_json = value or settings.as_json


def global_options(function: _Function) -> _Function:
    """--root and --json."""
    as_json = click.option(
        "--json",
        is_flag=True,
        expose_value=False,
        callback=_remember_json,
        help="For scripts: one JSON document, or one a line for messages.",
    )
    root = click.option(
        "--root",
        metavar="ROOT",
        expose_value=False,
        callback=_remember_root,
        help=f"The domain: a directory or an object store's URL.  [env: {ROOT_VARIABLE}]",
    )
    return as_json(root(function))


class _Command(click.Command):
    """Refuses an option that is given twice, unless it may be repeated: the last one would win in silence."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = [word.split("=", 1)[0] for word in (args[: args.index("--")] if "--" in args else args)]
        for option in self.params:
            single = isinstance(option, click.Option) and not (option.multiple or option.is_flag or option.count)
            if single and sum(map(given.count, option.opts)) > 1:
                raise click.UsageError(f"{option.opts[0]} is given twice: it takes one value", ctx)
        return super().parse_args(ctx, args)


class CommandGroup(click.Group):
    """Without a command it prints its help, as `jmsq` does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(EXIT_USAGE)
        return super().parse_args(ctx, args)


def command(name: str, **attributes: Any) -> Callable[[Callable[..., Any]], click.Command]:
    """A command with the global options. Its function takes the CommandSettings first and may return an exit code."""

    def decorate(function: Callable[..., Any]) -> click.Command:
        made: click.Command = click.command(name, cls=_Command, **attributes)(global_options(click.pass_obj(function)))
        return made

    return decorate


def destination_argument(function: _Function) -> _Function:
    return click.argument("destination", metavar="DEST", shell_complete=complete_destination)(function)


def destinations_argument(function: _Function) -> _Function:
    return click.argument("destinations", metavar="[DEST]...", nargs=-1, shell_complete=complete_destination)(function)


def wait_option(function: _Function) -> _Function:
    return click.option(
        "--wait",
        "wait_s",
        type=DURATION,
        default="15s",
        show_default=True,
        help="How long to wait for a record that another administrator has open.",
    )(function)


def served_at(port: int) -> Callable[[_Function], _Function]:
    """Of a command that serves pages: its address, its port, and the file of its token."""

    def add(function: _Function) -> _Function:
        token = click.option(
            "--token-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="Ask for the token in this file. Needed on any address but this machine's own.",
        )
        number = click.option(
            "--port", type=click.IntRange(0, 65535), default=port, show_default=True, help="0: any free port."
        )
        host = click.option("--host", default="127.0.0.1", show_default=True, help="The address to serve.")
        return host(number(token(function)))

    return add


def every_option(default: str, low_s: float) -> Callable[[_Function], _Function]:
    """Of a command that works in rounds."""
    return click.option(
        "--every",
        "every_s",
        type=DurationParameter(low_s),
        default=default,
        show_default=True,
        help="Pause between rounds.",
    )


def log_file_option(function: _Function) -> _Function:
    """Of a command that runs for long. The file is one process's: rotating it is no matter of several."""
    return click.option(
        "--log-file",
        type=click.Path(dir_okay=False, path_type=Path),
        callback=_log_to,
        expose_value=False,
        help="Write the log, with its expired messages, to this file, each entry with its time (UTC). At 10 MiB it is renamed, and "
        "the newest 9 of those are kept.",
    )(function)


def _log_to(context: click.Context, parameter: click.Parameter, file: Path | None) -> None:
    if file is None:
        return
    import logging

    from spark_jms.cli.log_file import LogFile

    try:
        handler = LogFile(file, LOG_BYTES, LOGS_KEPT)
    except OSError as error:
        raise click.BadParameter(f"{file} cannot be written: {error.strerror or error}", context, parameter) from error
    formatter = logging.Formatter("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logger = logging.getLogger("spark_jms")
    logger.addHandler(handler)

    context.meta[_LOGS_TO_FILE] = True

    def end() -> None:
        logger.removeHandler(handler)
        handler.close()

    context.call_on_close(end)


def logs_to_file() -> bool:
    """Of the command that runs."""
    return _LOGS_TO_FILE in click.get_current_context().meta


def dry_run_option(function: _Function) -> _Function:
    return click.option("--dry-run", is_flag=True, help="Only show what would go; change nothing.")(function)


def announce(settings: CommandSettings, text: str) -> None:
    """Tell a person on stderr what is about to go. A script reads it from the JSON result."""
    if not settings.as_json:
        click.echo(f"jmsq: {text}", err=True)


# -- completion --------------------------------------------------------------------------------------------------------


def complete_destination(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Destination names. For a local root this lists a directory, so that the shell waits for no library to load."""
    settings = context.find_object(CommandSettings) or CommandSettings()
    root = settings.given_root or os.environ.get(ROOT_VARIABLE)
    if not root:
        return []
    try:
        local = os.path.join(os.path.expanduser(root.removeprefix("file://")), _REGISTER)
        if "://" not in root.removeprefix("file://"):
            names = sorted(name for name in os.listdir(local) if not name.startswith("."))
        else:
            names = settings.domain().destinations()
    except Exception:  # noqa: BLE001 - a shell that completes a word cannot show an error
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


# -- output ------------------------------------------------------------------------------------------------------------

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


# -- making what is printed --------------------------------------------------------------------------------------------


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
