"""`jmsq subscriptions`: list durable subscriptions, or drop one (C10, C14)."""

from __future__ import annotations

import click

from spark_jms.cli.settings import (
    CommandSettings,
    command,
    complete_destination,
    names_or_all,
    wait_option,
)


@command("subscriptions", short_help="List subscriptions, or drop one.")
@click.argument("destination", metavar="[DEST]", required=False, shell_complete=complete_destination)
@click.option("--drop", metavar="DEST/NAME", help="Drop this durable subscription and its backlog.")
@wait_option
def subscriptions(settings: CommandSettings, destination: str | None, drop: str | None, wait_s: float) -> None:
    """List subscriptions with position, backlog and holder; the subscription of a queue is called '-'.

    --drop removes a topic's durable subscription. It is refused while a consumer uses it.
    """
    from spark_jms.claims import views

    with settings.opened() as (domain, store):
        if drop is not None:
            from spark_jms.admin.subscriptions import drop_subscription

            topic, slash, name = drop.partition("/")
            if not slash or not name or (destination or topic) != topic:
                raise click.BadParameter(f"{drop!r} is not DEST/NAME, such as prices/billing", param_hint="--drop")
            dropped = drop_subscription(domain, store, topic, name, wait_s)
            if settings.as_json:
                settings.out.document({"dropped": drop, "backlog": dropped})
            else:
                settings.out.say(f"dropped subscription {name} of {topic} with a backlog of {dropped:,} message(s)")
            return
        rows = []
        for found in names_or_all(domain, (destination,) if destination else ()):
            rows += views.subscriptions(domain, store, found)
    if settings.as_json:
        settings.out.document(rows)
        return
    columns = ("destination", "subscription", "member", "floor", "last", "backlog", "claimed", "holder", "epoch")
    settings.out.table("", columns, [views.as_row(row) for row in rows], "there are no subscriptions")


COMMANDS = (subscriptions,)
