"""What every command of `jmsq` knows: the root, and whether to print JSON.

`--root` and `--json` may stand before the command or after it. The one after it wins, then the one before it, then the
environment variable JMSQ_ROOT. This module imports nothing heavy: `jmsq --help` and the shell's completion load it.

Features: C14 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from spark_jms.settings.environment import ROOT_VARIABLE

if TYPE_CHECKING:
    from spark_jms.admin.administrator import Administrator
    from spark_jms.cli.output import Output
    from spark_jms.log.domain import Domain
    from spark_jms.store import Store
EXIT_USAGE = 2
_REGISTER = "_jmsq/destinations"
_Function = TypeVar("_Function", bound=Callable[..., Any])


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
        from spark_jms.cli.output import Output

        return Output(self.as_json)

    def domain(self) -> Domain:
        from spark_jms.claims.opened_domain import open_domain

        return open_domain(self.root)

    def administrator(self, limit_s: float | None = None) -> Administrator:
        """For a `with` statement. `limit_s`: as of `opened`."""
        from spark_jms.admin.administrator import Administrator

        return Administrator(self.domain(), limit_s)

    @contextmanager
    def opened(self, limit_s: float | None = None) -> Iterator[tuple[Domain, Store]]:
        """The domain and its store. `limit_s`: how long one call of a server's store may take."""
        from spark_jms.claims import views

        domain = self.domain()
        with views.opened_store(domain, limit_s) as store:
            yield domain, store


def names_or_all(domain: Domain, given: tuple[str, ...], *, addresses: bool = False) -> list[str]:
    """As spark_jms.admin.names has it, which is imported when a command runs."""
    from spark_jms.admin.names import names_or_all as found

    return found(domain, given, addresses=addresses)


def name_silent_servers(domain: Domain, store: Store, names: Iterable[str]) -> None:
    """On stderr: the servers of these destinations that do not answer, so that what is shown lacks their part."""
    from spark_jms.admin.servers import silent_servers
    from spark_jms.core.address import DestinationAddress

    plain = dict.fromkeys(DestinationAddress.parse(name).destination for name in names)
    for server, why in silent_servers(domain, store, plain).items():
        click.echo(f"jmsq: server {server} is away, and what only its store knows is not shown: {why}", err=True)


class DurationParameter(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.2 on
    """A duration in seconds, written with its unit: 10s, '500 ms', 15min."""

    name = "duration"

    def __init__(self, low_s: float = 0, hint: str = "") -> None:
        self._low_s, self._hint = low_s, hint

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from spark_jms.settings.duration import parse_duration_ms, show_duration

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

        from spark_jms.settings.duration import parse_duration_ms

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


# -- options and arguments --------------------------------------------------------------------------------------------
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
        help="How long to wait for a record that a running consumer has to hand over.",
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


def dry_run_option(function: _Function) -> _Function:
    return click.option("--dry-run", is_flag=True, help="Only show what would go; change nothing.")(function)


def announce(settings: CommandSettings, text: str) -> None:
    """Tell a person on stderr what is about to go. A script reads it from the JSON result."""
    if not settings.as_json:
        click.echo(f"jmsq: {text}", err=True)


# -- completion -------------------------------------------------------------------------------------------------------
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
