"""`jmsq store`: the group of the commands that look after stores, in one module per family."""

from __future__ import annotations

import click

from spark_jms.cli.settings import CommandGroup
from spark_jms.cli.store_cluster import admin, daemon, daemons, down, regions, up
from spark_jms.cli.store_data import check, compact, create, ddl, dump, lock, migrate, resolve


@click.group("store", cls=CommandGroup, short_help="Stores: create, check, move, and the daemons of a replicated one.")
def store() -> None:
    """Manage the stores that keep positions and claims: file, jdbc, replicated."""


for _command in (create, ddl, check, dump, compact, migrate, lock, resolve, up, down, daemons, regions, daemon, admin):
    store.add_command(_command)
