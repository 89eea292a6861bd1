"""`jmsq purge`, `subscriptions`, `claims`, `acks`, `housekeep`: what an administrator does (C13, C14, C16)."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_jms.cli.settings import (
    CommandSettings,
    command,
    complete_destination,
    destination_argument,
    destinations_argument,
    names_or_all,
)

if TYPE_CHECKING:
    from spark_jms.admin.upkeep import Purged

_WAIT = click.option(
    "--wait",
    "wait_s",
    metavar="SECONDS",
    type=click.FloatRange(0, 3600),
    default=15.0,
    show_default=True,
    help="How long to wait for a record that a running consumer has to hand over.",
)


# -- purge ------------------------------------------------------------------------------------------------------------
@command("purge", short_help="Drop the backlog of a destination, or only what is acknowledged.")
@destination_argument
@click.option("--member", type=click.IntRange(0), help="Only this member.")
@click.option("--subscription", help="Only this subscription of a topic.")
@click.option(
    "--acknowledged-only", is_flag=True, help="Drop no backlog: only delete the files of what everybody has finished."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_WAIT
def purge(
    settings: CommandSettings,
    destination: str,
    member: int | None,
    subscription: str | None,
    acknowledged_only: bool,
    yes: bool,
    wait_s: float,
) -> None:
    """Drop the backlog of a destination: nobody gets those messages any more.

    Messages in a consumer's hands are left to it; `jmsq claims --release` takes them away first. Every dropped message
    is written to the acknowledgement table, with `jmsq purge` as the consumer. Files whose messages are finished are
    deleted at once, or when the destination's retention is over.
    """
    from spark_jms.admin.upkeep import backlog, drop_backlog, purge_files

    with settings.opened() as (domain, store):
        members = _members(domain.log(destination).refresh().destination.members, member, destination)
        purged: Purged | None = None
        if not acknowledged_only:
            waiting = backlog(domain, store, destination, subscription, members)
            if not yes and waiting:
                which = "" if member is None else f", member {member}"
                click.confirm(f"Drop {waiting:,} message(s) of {destination}{which}?", abort=True, err=True)
            purged = drop_backlog(domain, store, destination, subscription, members, wait_s)
        report = purge_files(domain, store, destination)
    if settings.as_json:
        settings.out.document(
            {
                "destination": destination,
                "dropped": purged.dropped if purged else 0,
                "claimed": purged.claimed if purged else 0,
                "deleted_messages": report.purged_messages,
                "deleted_files": report.purged_files,
            }
        )
        return
    if purged:
        settings.out.say(f"dropped {purged.dropped:,} message(s) of {destination}")
    if purged and purged.claimed:
        settings.out.say(f"left {purged.claimed:,} message(s) that are in consumers' hands (jmsq claims {destination})")
    settings.out.say(f"deleted {report.purged_files:,} file(s) with {report.purged_messages:,} finished message(s)")


def _members(count: int, member: int | None, destination: str) -> range:
    if member is None:
        return range(count)
    if member >= count:
        raise click.BadParameter(f"{destination} has the members 0 to {count - 1}", param_hint="--member")
    return range(member, member + 1)


# -- subscriptions ----------------------------------------------------------------------------------------------------
@command("subscriptions", short_help="List subscriptions, or drop one.")
@click.argument("destination", metavar="[DEST]", required=False, shell_complete=complete_destination)
@click.option("--drop", metavar="DEST/NAME", help="Drop this durable subscription: its backlog is gone.")
@_WAIT
def subscriptions(settings: CommandSettings, destination: str | None, drop: str | None, wait_s: float) -> None:
    """List subscriptions with position, backlog and holder; a queue's shared position has the name '-'.

    --drop forgets a topic's durable subscription. It is refused while a consumer uses it.
    """
    from spark_jms.claims import views

    with settings.opened() as (domain, store):
        if drop is not None:
            from spark_jms.admin.upkeep import drop_subscription

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


# -- claims -----------------------------------------------------------------------------------------------------------
@command("claims", short_help="List what is in consumers' hands, or take a claim away.")
@destinations_argument
@click.option(
    "--release", metavar="CLAIM", help="Revoke this claim now: its messages go to others, flagged as redelivered."
)
@_WAIT
def claims(settings: CommandSettings, destinations: tuple[str, ...], release: str | None, wait_s: float) -> None:
    """List what is in consumers' hands. The claim of a dead consumer is in doubt until it returns or time is up.

    --release takes a claim away, live or in doubt: its consumer can acknowledge it no more, and what that has done with
    the messages may be done again by others.
    """
    from spark_jms.claims import views

    with settings.opened() as (domain, store):
        names = names_or_all(domain, destinations)
        if release is not None:
            from spark_jms.admin.upkeep import release_claim

            rows = release_claim(domain, store, names, release, wait_s)
            messages = sum(row.messages for row in rows)
            if settings.as_json:
                settings.out.document({"released": release, "messages": messages, "claims": rows})
            else:
                where = ", ".join(f"{row.destination} member {row.member}" for row in rows)
                settings.out.say(f"released claim {release}: {messages:,} message(s) of {where} are free again")
            return
        rows = [row for name in names for row in views.claims(domain, store, name)]
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
                r.in_doubt_since,
            )
            for r in rows
        ],
        "no message is in a consumer's hands",
    )


def _state(live: bool) -> str:
    return "live" if live else "in doubt"


# -- acknowledgements -------------------------------------------------------------------------------------------------
@command("acks", short_help="Show the state of the acknowledgement table.")
@destination_argument
@click.option(
    "--limit", type=click.IntRange(0), default=10, show_default=True, help="How many of the newest rows to show."
)
def acks(settings: CommandSettings, destination: str, limit: int) -> None:
    """Show the state of the acknowledgement table: who has finished what, and what still waits to be written there."""
    from spark_jms.admin.upkeep import acknowledgement_states
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


# -- housekeeping -----------------------------------------------------------------------------------------------------
@command("housekeep", short_help="Purge, compact, checkpoint and clean up.")
@destinations_argument
@click.option("--once", is_flag=True, help="One round, with clean-up, then stop.")
@click.option(
    "--every",
    "every_s",
    metavar="SECONDS",
    type=click.FloatRange(0.1, 86_400),
    default=5.0,
    show_default=True,
    help="Pause between rounds.",
)
def housekeep(settings: CommandSettings, destinations: tuple[str, ...], once: bool, every_s: float) -> None:
    """Purge finished messages, compact small files, write checkpoints, delete what is expired: until interrupted.

    Running jobs do this beside their work; the command is for domains without any. One process at a time does it for a
    destination; where another one does, this one waits for its turn.
    """
    from spark_jms.admin.upkeep import Rounds

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
                        "purged messages",
                        "purged files",
                        "compacted files",
                        "checkpoints",
                        "deleted files",
                        "",
                    )
                    settings.out.table("", columns, [d.as_row() for d in done], "there are no destinations")
                if once:
                    return
                time.sleep(every_s)
        finally:
            rounds.close()


COMMANDS = (purge, subscriptions, claims, acks, housekeep)
