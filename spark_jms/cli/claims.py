"""`jmsq claims`, `acks`, `events`, `explain` and `subscriptions`: who has which messages, and what became of them.

Features: C7, C10, C14, C16, T6 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_jms.cli.command import (
    CommandSettings,
    announce,
    command,
    complete_destination,
    destination_argument,
    destinations_argument,
    dry_run_option,
    name_silent_servers,
    names_or_all,
    wait_option,
)
from spark_jms.settings.fields import LifeEvent

if TYPE_CHECKING:
    from spark_jms.admin.administrator import Administrator
    from spark_jms.claims.upkeep.views import ClaimRow
    from spark_jms.log.destinations.domain import Domain
    from spark_jms.store import Store


@command("claims", short_help="List claims, or revoke one.")
@destinations_argument
@click.option(
    "--release",
    metavar="CLAIM",
    help="Revoke this claim now: other consumers get its messages, flagged as redelivered.",
)
@dry_run_option
@wait_option
def claims(
    settings: CommandSettings, destinations: tuple[str, ...], release: str | None, dry_run: bool, wait_s: float
) -> None:
    """List claims. The claim of a dead consumer is in doubt until the consumer returns or inDoubtTimeout has passed. The
    time starts when another consumer notices the death; until then, "in doubt since" is "not noticed yet".

    "attempts" counts how often a query's sink got the batch, and how many of these attempts ended because the driver
    died. "withheld" messages come with the next batch: the query narrows this one to find a poison message.

    --release revokes a claim, live or in doubt: its consumer can no longer acknowledge it, and other consumers may
    repeat the work it has done on the messages.
    """
    from spark_jms.admin.servers import LOOK_S
    from spark_jms.claims.upkeep import views

    if dry_run and release is None:
        raise click.UsageError("--dry-run goes with --release")
    if release is not None:
        with settings.administrator() as admin:
            _release(settings, admin, destinations, release, dry_run, wait_s)
        return
    with settings.opened(LOOK_S) as (domain, store):
        names = names_or_all(domain, destinations)
        rows = [row for name in names for row in views.claims(domain, store, name)]
        name_silent_servers(domain, store, names)
    if settings.as_json:
        settings.out.document([{**asdict(row), "state": _state(row.live)} for row in rows])
        return
    columns = (
        "claim",
        "state",
        "destination",
        "subscription",
        "member",
        "consumer",
        "messages",
        "first",
        "last",
        "made",
        "in doubt since",
        "attempts",
        "withheld",
    )
    settings.out.table(
        "",
        columns,
        [
            (
                r.claim,
                _state(r.live),
                r.destination,
                r.subscription,
                r.member,
                r.consumer,
                r.messages,
                r.first,
                r.last,
                r.made,
                r.in_doubt_since or (None if r.live else "not noticed yet"),
                f"{r.attempts} ({r.deaths} died)" if r.deaths else r.attempts,
                r.withheld or None,
            )
            for r in rows
        ],
        "no message is claimed",
    )


def _release(
    settings: CommandSettings,
    admin: Administrator,
    names: tuple[str, ...],
    claim: str,
    dry_run: bool,
    wait_s: float,
) -> None:
    rows = admin.release_claim(claim, *names, dry_run=True)
    if dry_run:
        if settings.as_json:
            settings.out.document({**_released(claim, rows), "dry_run": True})
        else:
            settings.out.say(f"would release claim {claim} of {rows[0].consumer}: {_extent(rows)}")
        return
    announce(settings, f"releasing claim {claim} of {rows[0].consumer}: {_extent(rows)}")
    rows = admin.release_claim(claim, *names, wait=wait_s)
    if settings.as_json:
        settings.out.document(_released(claim, rows))
    else:
        settings.out.say(f"released claim {claim}: {_extent(rows)} are available again")


def _released(claim: str, rows: Sequence[ClaimRow]) -> dict[str, object]:
    return {"released": claim, "messages": sum(row.messages for row in rows), "claims": rows}


def _extent(rows: Sequence[ClaimRow]) -> str:
    where = ", ".join(f"{row.destination} member {row.member}" for row in rows)
    return f"{sum(row.messages for row in rows):,} message(s) of {where}"


def _state(live: bool) -> str:
    return "live" if live else "in doubt"


# -- acks --------------------------------------------------------------------------------------------------------------


@command("acks", short_help="Show the state of the acknowledgement table.")
@destination_argument
@click.option(
    "--limit", type=click.IntRange(0), default=10, show_default=True, help="How many of the newest rows to show."
)
def acks(settings: CommandSettings, destination: str, limit: int) -> None:
    """Show the acknowledgement table: which consumer finished what, and what waits in the outbox."""
    from spark_jms.admin.claims import acknowledgement_states
    from spark_jms.claims.upkeep import views

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


# -- events ------------------------------------------------------------------------------------------------------------


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
    from spark_jms.claims.upkeep import life_cycle_view

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


# -- explain -----------------------------------------------------------------------------------------------------------


@command("explain", short_help="Show what a selector reads and what it skips.")
@click.argument("destination", shell_complete=complete_destination)
@click.argument("selector")
@click.option("--subscription", help="Of a topic: the subscription whose messages to examine.")
def explain(settings: CommandSettings, destination: str, selector: str, subscription: str | None) -> None:
    """Show what a consumer of DESTINATION with this SELECTOR reads of the unfinished messages, and what it skips.

    Consumers skip a file when its statistics prove that the selector takes none of its messages: by conditions on
    JMSPriority, JMSTimestamp, JMSXGroupID and promoted properties that are joined with AND. Of every other file they
    read the columns of the selector. This command does the same, and claims nothing.

    In a queue, a message that the selector refuses holds back the later ones of its unit of order: the last line says
    how many matching messages wait for that reason, and what to do.
    """
    from spark_jms.admin.claims import explain as explained
    from spark_jms.core.selector import Selector

    wanted = Selector.parse(selector)
    if wanted is None:
        raise click.UsageError("the selector is empty: a consumer without a selector takes every message unread")
    with settings.opened() as (domain, store):
        plan = explained(domain, store, destination, wanted, subscription)
    if settings.as_json:
        settings.out.document(plan)
        return
    from spark_jms.claims.batches.units_of_order import told as told_of

    rows = [(r.member, r.files, r.messages, r.skipped_files, r.skipped, r.parsed, r.matching) for r in plan.members]
    columns = ("member", "files", "messages", "files skipped", "skipped", "read", "matching")
    settings.out.table(destination, columns, rows, "no message was ever sent")
    for condition, skipped in plan.prunes.items():
        settings.out.say(f"{condition}: skips {skipped:,} message(s) by statistics")
    if not plan.prunes:
        settings.out.say("no condition of the selector can be judged by statistics: every file is read")
    settings.out.say(f"columns read of the other files: {', '.join(plan.columns) or 'none'}")
    for name, reading in plan.promoted.items():
        told = f"{name}: read from its column for {reading.by_column:,} message(s)"
        if reading.by_properties:
            told += (
                f", from the properties for {reading.by_properties:,}: their files were written before it was promoted, or hold "
                "a value of another type"
            )
        settings.out.say(told)
    if plan.parses:
        settings.out.say(f"without statistics: {', '.join(plan.parses)}")
    if plan.held_back:
        settings.out.say(told_of(plan.held_back))


# -- subscriptions -----------------------------------------------------------------------------------------------------


@command("subscriptions", short_help="List subscriptions, or drop one.")
@click.argument("destination", metavar="[DEST]", required=False, shell_complete=complete_destination)
@click.option("--drop", metavar="DEST/NAME", help="Drop this durable subscription and its backlog.")
@dry_run_option
@wait_option
def subscriptions(
    settings: CommandSettings, destination: str | None, drop: str | None, dry_run: bool, wait_s: float
) -> None:
    """List subscriptions with position, backlog and consumers; the subscription of a queue is called '-'. One called '~…' is not
    durable: it ends with its last consumer. One called 'east@…' is on the server east, of a replicated distributed topic.

    A topic with messagesLimitOverride has the columns limit (SubscriptionMessagesLimit) and deleted
    (SubscriptionLimitDeletedCount).

    DEST may be server@destination, for the subscriptions on that server. --drop east@prices/billing and --drop
    prices/east@billing are the same.

    --drop removes a topic's durable subscription. It is refused while a consumer uses it.
    """
    from spark_jms.claims.upkeep import views
    from spark_jms.core.destinations.routing import DestinationAddress

    if dry_run and drop is None:
        raise click.UsageError("--dry-run goes with --drop")
    with settings.opened() as (domain, store):
        if drop is not None:
            _drop_subscription(settings, domain, store, destination, drop, dry_run=dry_run, wait_s=wait_s)
            return
        rows = []
        for shown in names_or_all(domain, (destination,) if destination else (), addresses=True):
            address = DestinationAddress.parse(shown)
            declared = domain.log(address.destination).refresh().destination
            address.members(declared)
            only, server = address.read_members(declared), address.server_in(declared)
            found_rows = views.subscriptions(domain, store, address.destination, server=server)
            rows += [row for row in found_rows if only is None or row.member in only]
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
        "consumers",
        "epoch",
        "delayed",
        "expired",
    )
    if any(row.has_limit for row in rows):
        columns = (*columns, "limit", "deleted")
    at = columns.index("consumers")
    all_shown = [(views.as_row(row), row.consumers_shown) for row in rows]
    shown_rows = [(*row[:at], consumers, *row[at + 1 : len(columns)]) for row, consumers in all_shown]
    if any(row.refused for row in rows):
        columns = (*columns, "refused")
        shown_rows = [(*shown, row.refused) for shown, row in zip(shown_rows, rows, strict=True)]
    settings.out.table("", columns, shown_rows, "there are no subscriptions")


def _drop_subscription(
    settings: CommandSettings,
    domain: Domain,
    store: Store,
    destination: str | None,
    drop: str,
    *,
    dry_run: bool,
    wait_s: float,
) -> None:
    """`drop`: DEST/NAME as given; `destination` is None, or the same DEST."""
    from spark_jms.claims.upkeep.views import drop_subscription, droppable_subscription
    from spark_jms.core.destinations.routing import DestinationAddress
    from spark_jms.core.destinations.subscriptions import kept_at

    given, slash, name = drop.partition("/")
    if not slash or not name or (destination or given) != given:
        raise click.BadParameter(f"{drop!r} is not DEST/NAME, such as prices/billing", param_hint="--drop")
    address = DestinationAddress.parse(given)
    topic = address.destination
    declared = domain.log(topic).refresh().destination
    name = kept_at(declared, address.server_in(declared), name)
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
