"""`jmsq server`: the servers of a domain.

Features: D1, D4, M10 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_jms.cli.settings import CommandGroup, CommandSettings, command

if TYPE_CHECKING:
    from spark_jms.admin.servers import ServerRow
    from spark_jms.log.domain import Domain


@click.group("server", cls=CommandGroup, short_help="The servers of the domain: list, stop, start.")
def server() -> None:
    """Servers: names with stores of their own, declared in the module file. A destination has one member on each of its
    servers."""


@command("list", short_help="The servers, their members, and whether their stores answer.")
def list_all(settings: CommandSettings) -> None:
    """List the servers of the domain. `home` is the domain's own store. A server is down while an administrator has stopped it,
    or while it is away: no process that uses its store has renewed its lease. "lease" is the age of the last renewal."""
    from spark_jms.admin.servers import list_servers

    found = list_servers(settings.domain())
    if settings.as_json:
        settings.out.document([asdict(row) for row in found])
        return
    rows = [(row.server, row.store, ", ".join(row.members), row.state, _lease(row), row.reason) for row in found]
    settings.out.table("", ("server", "store", "members", "state", "lease", "reason"), rows, "")


def _lease(row: ServerRow) -> str:
    return "" if row.lease_age_s is None else f"{row.lease_age_s:.0f} s old"


@command("stop", short_help="Take a server out of use.")
@click.argument("name", metavar="SERVER")
def stop(settings: CommandSettings, name: str) -> None:
    """Stop a server: senders route to the other servers, sends of a unit of order that belongs to it fail with
    ServerDownError, and consumers release its members and continue with the others. Its messages wait until `jmsq
    server start`."""
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
