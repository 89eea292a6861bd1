"""`jmsq store`: the group of the commands that look after stores, in one module per family."""

from __future__ import annotations

import click

from spark_jms.cli import store_cluster, store_data
from spark_jms.cli.settings import CommandGroup


@click.group("store", cls=CommandGroup, short_help="Stores: create, check, move, and the daemons of a replicated one.")
def store() -> None:
    """The stores that keep positions and claims: file, jdbc, replicated."""


for _command in (*store_data.COMMANDS, *store_cluster.COMMANDS):
    store.add_command(_command)

COMMANDS = (store,)
