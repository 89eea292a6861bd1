"""`jmsq store`: the group of all commands that look after stores; each family of them is a module of its own."""

from __future__ import annotations

import click

from spark_jms.cli import store_cluster, store_data


@click.group("store", short_help="Stores: create, check, move, and the daemons of a replicated one.")
def store() -> None:
    """The stores behind the checkpoint layer: file, jdbc, replicated."""


for _command in (*store_data.COMMANDS, *store_cluster.COMMANDS):
    store.add_command(_command)

COMMANDS = (store,)
