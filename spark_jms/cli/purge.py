"""`jmsq purge`: drop a backlog, or remove finished files (C13, C14)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_jms.cli.settings import (
    CommandSettings,
    command,
    destination_argument,
    wait_option,
)

if TYPE_CHECKING:
    from spark_jms.admin.purge import Purged


@command("purge", short_help="Drop the backlog of a destination, or only what is acknowledged.")
@destination_argument
@click.option("--member", type=click.IntRange(0), help="Only this member.")
@click.option("--subscription", help="Only this subscription of a topic.")
@click.option(
    "--acknowledged-only", is_flag=True, help="Drop no backlog: only delete files that every subscription has finished."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@wait_option
def purge(
    settings: CommandSettings,
    destination: str,
    member: int | None,
    subscription: str | None,
    acknowledged_only: bool,
    yes: bool,
    wait_s: float,
) -> None:
    """Drop the backlog of a destination: no consumer gets those messages any more.

    Claimed messages stay with their consumers; `jmsq claims --release` revokes them first. The acknowledgement table
    gets a row for every dropped message, with `jmsq purge` as the consumer. Files whose messages are all finished are
    deleted at once, or when the destination's retention has passed.
    """
    from spark_jms.admin.purge import backlog, drop_backlog, purge_files

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
        settings.out.say(f"left {purged.claimed:,} message(s) that consumers have claimed (jmsq claims {destination})")
    settings.out.say(f"deleted {report.purged_files:,} file(s) with {report.purged_messages:,} finished message(s)")


def _members(count: int, member: int | None, destination: str) -> range:
    if member is None:
        return range(count)
    if member >= count:
        raise click.BadParameter(f"{destination} has the members 0 to {count - 1}", param_hint="--member")
    return range(member, member + 1)


COMMANDS = (purge,)
