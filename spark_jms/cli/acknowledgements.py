"""`jmsq acks`: the acknowledgement table of a destination.

Features: C14 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import asdict

import click

from spark_jms.cli.settings import (
    CommandSettings,
    command,
    destination_argument,
)


@command("acks", short_help="Show the state of the acknowledgement table.")
@destination_argument
@click.option(
    "--limit", type=click.IntRange(0), default=10, show_default=True, help="How many of the newest rows to show."
)
def acks(settings: CommandSettings, destination: str, limit: int) -> None:
    """Show the acknowledgement table: which consumer finished what, and what waits in the outbox."""
    from spark_jms.admin.acknowledgements import acknowledgement_states
    from spark_jms.claims import views

    with settings.opened() as (domain, store):
        domain.log(destination)
        rows = views.acknowledgements(domain, store, destination)
        states = acknowledgement_states(domain, store, destination, rows)
        version = domain.acknowledgements(destination).snapshot.version
    newest = rows[-limit:] if limit else []
    if settings.as_json:
        settings.out.document(
            {
                "destination": destination,
                "version": version,
                "members": states,
                "rows": [asdict(row) for row in newest],
            }
        )
        return
    columns = ("subscription", "member", "rows", "messages", "waiting", "last consumer", "last acknowledged")
    settings.out.table(f"Acknowledgements of {destination}", columns, [views.as_row(s) for s in states], "nothing yet")
    if newest:
        shown = [
            (r.acknowledged, r.subscription, r.member, r.messages, r.first, r.last, r.consumer, r.claim)
            for r in reversed(newest)
        ]
        fields = ("acknowledged", "subscription", "member", "messages", "first", "last", "consumer", "claim")
        settings.out.table("Newest", fields, shown, "")
