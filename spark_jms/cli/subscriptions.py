"""`jmsq subscriptions`: list subscriptions, or drop a durable one.

Features: C10, C14 (docs/FEATURES.md)
"""

from __future__ import annotations

import click

from spark_jms.cli.settings import (
    CommandSettings,
    announce,
    command,
    complete_destination,
    dry_run_option,
    names_or_all,
    wait_option,
)


@command("subscriptions", short_help="List subscriptions, or drop one.")
@click.argument("destination", metavar="[DEST]", required=False, shell_complete=complete_destination)
@click.option("--drop", metavar="DEST/NAME", help="Drop this durable subscription and its backlog.")
@dry_run_option
@wait_option
def subscriptions(
    settings: CommandSettings, destination: str | None, drop: str | None, dry_run: bool, wait_s: float
) -> None:
    """List subscriptions with position, backlog and holder; the subscription of a queue is called '-'. One called '~…' is not
    durable: it ends with its last consumer. One called 'east@…' is on the server east, of a replicated distributed topic.

    A topic with messagesLimitOverride has the columns limit (SubscriptionMessagesLimit) and deleted
    (SubscriptionLimitDeletedCount).

    DEST may be server@destination, for the subscriptions on that server. --drop east@prices/billing and --drop
    prices/east@billing are the same.

    --drop removes a topic's durable subscription. It is refused while a consumer uses it.
    """
    from spark_jms.claims import views
    from spark_jms.core.address import DestinationAddress
    from spark_jms.core.subscription_place import kept_at

    if dry_run and drop is None:
        raise click.UsageError("--dry-run goes with --drop")
    with settings.opened() as (domain, store):
        if drop is not None:
            from spark_jms.claims.subscriptions import drop_subscription, droppable_subscription

            given, slash, name = drop.partition("/")
            if not slash or not name or (destination or given) != given:
                raise click.BadParameter(f"{drop!r} is not DEST/NAME, such as prices/billing", param_hint="--drop")
            address = DestinationAddress.parse(given)
            topic = address.destination
            name = kept_at(domain.log(topic).refresh().destination, address.server, name)
            found = droppable_subscription(domain, store, topic, name)
            backlog = sum(row.backlog for row in found)
            what = f"subscription {name} of {topic} with a backlog of {backlog:,} message(s)"
            if not dry_run:
                announce(settings, f"dropping {what}")
                drop_subscription(domain, store, found, wait_s)
            if settings.as_json:
                settings.out.document({"dropped": drop, "backlog": backlog, **({"dry_run": True} if dry_run else {})})
            else:
                settings.out.say(f"would drop {what}" if dry_run else f"dropped {what}")
            return
        rows = []
        for shown in names_or_all(domain, (destination,) if destination else (), addresses=True):
            address = DestinationAddress.parse(shown)
            address.members(domain.log(address.destination).refresh().destination)
            rows += views.subscriptions(domain, store, address.destination, server=address.server)
    if settings.as_json:
        settings.out.document(rows)
        return
    columns: tuple[str, ...] = (
        "destination",
        "subscription",
        "member",
        "floor",
        "last",
        "backlog",
        "claimed",
        "holder",
        "epoch",
        "delayed",
        "expired",
    )
    if any(row.has_limit for row in rows):
        columns = (*columns, "limit", "deleted")
    shown_rows = [views.as_row(row)[: len(columns)] for row in rows]
    if any(row.refused for row in rows):
        columns = (*columns, "refused")
        shown_rows = [(*shown, row.refused) for shown, row in zip(shown_rows, rows, strict=True)]
    settings.out.table("", columns, shown_rows, "there are no subscriptions")
