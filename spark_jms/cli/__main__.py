"""The `jmsq` command: `python -m spark_jms.cli` where no script was installed.

Exit codes: 0 done · 1 error (one line on stderr) · 2 wrong usage · 3 receive: no message arrived in time · 130
interrupted · 141 the reader of our output has closed it. With --json an error is {"error": {"type", "message"}} on stderr.

Command modules import only click at their top; each command loads pyarrow and rich when it needs them.

Features: C14, C16 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from spark_jms.cli.changes import changes
from spark_jms.cli.claims import acks, claims, events, explain, subscriptions
from spark_jms.cli.command import EXIT_USAGE, CommandSettings, command, global_options
from spark_jms.cli.destinations import apply, describe, drop, list_destinations, pause, rename, resume
from spark_jms.cli.domain import backup, recover, restore, server, transactions, upgrade
from spark_jms.cli.messages import browse, receive, send
from spark_jms.cli.purge import purge
from spark_jms.cli.quota import quota
from spark_jms.cli.services import console, housekeep, metrics, services
from spark_jms.cli.statistics import stat
from spark_jms.cli.store import store
from spark_jms.cli.transfer import forward, move, redrive
from spark_jms.settings.environment import DEBUG_VARIABLE

EXIT_ERROR, EXIT_NOTHING, EXIT_INTERRUPTED, EXIT_PIPE = 1, 3, 130, 141
_VARIABLE = "_JMSQ_COMPLETE"


@command("completion", short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, settings: CommandSettings, shell: str) -> None:
    """Print the completion script of a shell. It completes destination names from --root or JMSQ_ROOT.

    \b
    bash   eval "$(jmsq completion bash)"        in ~/.bashrc
    zsh    eval "$(jmsq completion zsh)"         in ~/.zshrc
    fish   jmsq completion fish | source         in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None, shell
    script = made(context.find_root().command, {}, "jmsq", _VARIABLE).source()
    if settings.as_json:
        settings.out.document({"shell": shell, "script": script})
    else:
        click.echo(script)


SECTIONS = {  # of the help
    "Messages": (send, receive, browse, explain, events, move, redrive, purge),
    "Destinations": (apply, list_destinations, describe, stat, pause, resume, rename, drop, quota),
    "Consumers": (subscriptions, claims, acks, changes, transactions),
    "Servers": (server, forward),
    "Domain": (services, housekeep, metrics, console, backup, restore, recover, upgrade, completion),
    "Stores": (store,),
}

ELSEWHERE = {  # what the command is called at Kafka, RabbitMQ or Artemis -> here
    "consume": "receive",
    "get": "receive",
    "produce": "send",
    "publish": "send",
    "create": "apply",
    "declare": "apply",
    "topics": "list",
    "queues": "list",
    "status": "stat",
    "lag": "stat",
    "groups": "subscriptions",
    "offsets": "subscriptions",
    "peek": "browse",
    "delete": "drop",
}


class _OutputGone(Exception):
    """The reader closed our output. click would end the process with exit code 1 on a BrokenPipeError."""


class Jmsq(click.Group):
    """The group of all commands. Its `main` turns every outcome into an exit code and at most one line of error."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        longest = max(map(len, self.commands))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(str(one.name).ljust(longest), one.get_short_help_str(formatter.width)) for one in commands]
                )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        wanted = ELSEWHERE.get(args[0])
        if wanted is not None:
            ctx.fail(f"there is no command {args[0]!r}: use `jmsq {wanted}`")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as error:
            raise _OutputGone from error
        return result

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        given = list(sys.argv[1:] if args is None else args)
        try:
            result = super().main(given, prog_name or "jmsq", complete_var, False, **extra)
            code = result if isinstance(result, int) else 0
        except _OutputGone:
            _silence_stdout()
            code = EXIT_PIPE
        except Exception as error:  # noqa: BLE001 - _explain raises errors that are not ours
            code = _explain(error, "--json" in given)
        sys.exit(code)


def _explain(error: Exception, as_json: bool) -> int:
    """Print the error and return the exit code."""
    from spark_jms.errors import JmsqError
    from spark_jms.settings.table import MissingExtraError, missing_extra
    from spark_jms.store.errors import StoreError

    if isinstance(error, ModuleNotFoundError):
        error = missing_extra(error) or error
    kind, text, code = type(error).__name__, str(error), EXIT_ERROR
    if isinstance(error, click.Abort):
        code = EXIT_INTERRUPTED if isinstance(error.__cause__, KeyboardInterrupt) else EXIT_ERROR
        kind, text = ("Interrupted", "interrupted") if code == EXIT_INTERRUPTED else ("Aborted", "nothing was done")
    elif isinstance(error, click.ClickException):
        text, code = error.format_message(), error.exit_code
        if isinstance(error, click.UsageError) and error.ctx is not None:
            text += f" (see `{error.ctx.command_path} --help`)"
    elif not isinstance(error, (JmsqError, StoreError, OSError, MissingExtraError)):
        raise error
    if os.environ.get(DEBUG_VARIABLE):
        import traceback

        traceback.print_exception(error)
    if as_json:
        click.echo(json.dumps({"error": {"type": kind, "message": text}}), err=True)
    else:
        click.echo(f"jmsq: {text}", err=True)
    return code


def _silence_stdout() -> None:
    """The interpreter flushes stdout when it exits, so give it a file that accepts the bytes."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # stdout is not a file (tests)
        return


def _version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from spark_jms import __version__

        click.echo(f"jmsq {__version__}")
        context.exit()


@click.group(
    cls=Jmsq,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 1 error, 2 wrong usage, 3 receive: no message arrived in time, 130 interrupted.",
)
@global_options
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show the version.")
@click.pass_context
def cli(context: click.Context) -> None:
    """Message queues whose destinations are Delta tables.

    A domain is a ROOT (a directory or an object store's URL) with destinations; `jmsq apply MODULE.yaml` makes them.
    """
    context.ensure_object(CommandSettings)
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(EXIT_USAGE)


for _commands in SECTIONS.values():
    for _command in _commands:
        cli.add_command(_command)


def main() -> None:
    """The entry point of the `jmsq` script."""
    cli.main()


if __name__ == "__main__":
    main()
