"""`jmsq server`: the servers of a domain (D1, D4, M10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_jms.cli.settings import CommandSettings, command

if TYPE_CHECKING:
    from spark_jms.admin.servers import ServerRow
    from spark_jms.log.domain import Domain


@click.group("server", short_help="The servers of the domain: list, stop, start.")
def server() -> None:
    """Servers: names with stores of their own, declared in the module file. A destination has one member on each of its
    servers."""


@command("list", short_help="The servers, their members, and whether their stores answer.")
def list_all(settings: CommandSettings) -> None:
    """List the servers of the domain. `home` is the domain's own store."""
    from spark_jms.admin.servers import list_servers

    found = list_servers(settings.domain())
    if settings.as_json:
        settings.out.document([asdict(row) for row in found])
        return
    rows = [(row.server, row.store, ", ".join(row.members), _state(row)) for row in found]
    settings.out.table("", ("server", "store", "members", "state"), rows, "")


def _state(row: ServerRow) -> str:
    stopped = f"stopped since {row.stopped:%Y-%m-%d %H:%M:%SZ}" if row.stopped else ""
    return "; ".join(filter(None, (stopped, row.away))) or "answers"


@command("stop", short_help="Take a server out of use.")
@click.argument("name", metavar="SERVER")
def stop(settings: CommandSettings, name: str) -> None:
    """Stop a server: senders route to the other servers, a unit of order that belongs to it fails with ServerDownError, and
    consumers hand its members back and continue with the others. Its messages wait until `jmsq server start`."""
    from spark_jms.log.server_state import stop_server

    _change(settings, stop_server, name, "down")


@command("start", short_help="Take a stopped server back into use.")
@click.argument("name", metavar="SERVER")
def start(settings: CommandSettings, name: str) -> None:
    """Start a server that `jmsq server stop` has stopped: its messages return, and senders use it again."""
    from spark_jms.log.server_state import start_server

    _change(settings, start_server, name, "up")


def _change(settings: CommandSettings, change: Callable[[Domain, str], list[str]], name: str, state: str) -> None:
    destinations = change(settings.domain(), name)
    if settings.as_json:
        settings.out.document({"server": name, "state": state, "changed": destinations})
        return
    settings.out.say(f"server {name} is {state}; changed: {', '.join(destinations) or 'nothing'}")


for _command in (list_all, stop, start):
    server.add_command(_command)

COMMANDS = (server,)
