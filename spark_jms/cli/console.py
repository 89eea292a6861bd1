"""`jmsq console`.

Features: M8 (docs/FEATURES.md)
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from spark_jms.cli.settings import CommandSettings, command, served_at


@command("console", short_help="Serve a read-only web page about the domain.")
@served_at(8850)
def console(settings: CommandSettings, host: str, port: int, token_file: Path | None) -> None:
    """Serve a read-only page with destinations, backlog and rates over time, subscriptions, claims, servers, and the daemons
    and regions of a replicated store. Ctrl-C ends it."""
    import asyncio

    from spark_jms.settings.extras import needs

    with needs("console"):
        from spark_jms.admin.domain_sample import take
        from spark_jms.console.server import serve

    from spark_jms.admin.exposure import read_token

    token = read_token(token_file) if token_file else None
    with settings.opened() as (domain, store):
        asyncio.run(serve(partial(take, domain, store), host, port, token, _announce))


def _announce(address: str) -> None:
    click.echo(f"the console is at {address}")
