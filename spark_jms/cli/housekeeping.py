"""`jmsq housekeep`: housekeeping for domains without running jobs.

Features: C13, C14 (docs/FEATURES.md)
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from spark_jms.cli.settings import (
    CommandSettings,
    command,
    destinations_argument,
    every_option,
    names_or_all,
)

if TYPE_CHECKING:
    from spark_jms.admin.housekeeping import Round


@command("housekeep", short_help="Expire, purge, compact, checkpoint and clean up.")
@destinations_argument
@click.option("--once", is_flag=True, help="One round, with clean-up, then stop.")
@every_option("5s", 0.1)
def housekeep(settings: CommandSettings, destinations: tuple[str, ...], once: bool, every_s: float) -> None:
    """Search for expired messages, purge finished ones, compact small files, write Delta checkpoints and clean up, until
    interrupted.

    Running jobs also do this; the command is for domains without jobs. One process at a time does it for a destination;
    this command waits while another process does. With --once, the exit code is 1 when a step failed.
    """
    from spark_jms.admin.housekeeping import Rounds

    with settings.opened() as (domain, store):
        rounds = Rounds(domain, store, clean_up=once)
        try:
            while True:
                done = rounds.run(names_or_all(domain, destinations))
                if settings.as_json:
                    (settings.out.document if once else settings.out.record)(done)
                elif once or any(d.busy is False and d.did_something for d in done):
                    columns = (
                        "destination",
                        "expired messages",
                        "purged messages",
                        "purged files",
                        "compacted files",
                        "checkpoints",
                        "deleted files",
                        "",
                    )
                    settings.out.table("", columns, [_row(d) for d in done], "there are no destinations")
                if once:
                    if any(d.failures for d in done):
                        raise click.exceptions.Exit(1)
                    return
                time.sleep(every_s)
        finally:
            rounds.close()


def _row(done: Round) -> tuple[object, ...]:
    if done.busy:
        result = f"another process does it{done.holder and f': {done.holder}'}"
    else:
        result = "; ".join(f"{failure.what} failed: {failure.error}" for failure in done.failures) or "done"
    return (
        done.destination,
        done.expired_messages,
        done.purged_messages,
        done.purged_files,
        done.compacted_files,
        done.checkpoints,
        done.deleted_files,
        result,
    )
