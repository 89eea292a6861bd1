"""`jmsq events`: the life-cycle log of a destination.

Features: T6 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import asdict

import click

from spark_jms.cli.settings import (
    CommandSettings,
    command,
    destination_argument,
)
from spark_jms.core.life_event import LifeEvent


@command("events", short_help="Show what became of messages: the life-cycle log.")
@destination_argument
@click.option("--member", type=click.IntRange(0), help="Only this member.")
@click.option("--sequence", type=click.IntRange(1), help="Only events of the message with this sequence.")
@click.option(
    "--event", "kinds", multiple=True, type=click.Choice([e.value for e in LifeEvent]), help="Only these events."
)
@click.option(
    "--limit", type=click.IntRange(1), default=20, show_default=True, help="How many of the newest rows to show."
)
def events(
    settings: CommandSettings,
    destination: str,
    member: int | None,
    sequence: int | None,
    kinds: tuple[str, ...],
    limit: int,
) -> None:
    """Show what became of the messages of a destination with messageLoggingEnabled, oldest first."""
    from spark_jms.claims import life_cycle_view

    def wanted(row: life_cycle_view.EventRow) -> bool:
        return member in (None, row.member) and (not kinds or row.event in kinds) and row.names(sequence)

    with settings.opened() as (domain, store):
        chosen = life_cycle_view.newest_events(domain, store, destination, limit, wanted)
        is_on = domain.log(destination).snapshot.destination.message_logging_enabled
    if settings.as_json:
        settings.out.document({"destination": destination, "on": is_on, "events": [asdict(row) for row in chosen]})
        return
    fields = ("happened", "event", "subscription", "member", "messages", "ranges", "consumer", "claim", "detail")
    shown = [tuple(getattr(row, name) for name in fields) for row in chosen]
    settings.out.table(
        f"Life cycle of {destination}", fields, shown, "nothing" if is_on else "messageLoggingEnabled is off"
    )
