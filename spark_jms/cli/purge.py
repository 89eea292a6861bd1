"""`jmsq purge`: drop a backlog, or remove finished files.

Features: C13, C14 (docs/FEATURES.md)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from spark_jms.cli.settings import (
    CommandSettings,
    announce,
    command,
    destination_argument,
    dry_run_option,
    wait_option,
)
from spark_jms.errors import InvalidDestinationError

if TYPE_CHECKING:
    from spark_jms.admin.purge import PurgePlan
    from spark_jms.core.address import DestinationAddress
    from spark_jms.core.destination import Destination


@command("purge", short_help="Drop the backlog of a destination, or only what is acknowledged.")
@destination_argument
@click.option("--member", type=click.IntRange(0), help="Only this member.")
@click.option("--subscription", help="Only this subscription of a topic.")
@click.option(
    "--acknowledged-only", is_flag=True, help="Drop no backlog: only delete files that every subscription has finished."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@dry_run_option
@wait_option
def purge(
    settings: CommandSettings,
    destination: str,
    member: int | None,
    subscription: str | None,
    acknowledged_only: bool,
    yes: bool,
    dry_run: bool,
    wait_s: float,
) -> None:
    """Drop the backlog of a destination: no consumer gets those messages any more.

    Of a replicated topic, `server@topic` drops the backlog of the subscriptions on that server, and no other's.

    Claimed messages stay with their consumers; `jmsq claims --release` revokes them first. The acknowledgement table
    gets a row for every dropped message, with `jmsq purge` as the consumer. Files whose messages are all finished are
    deleted at once, or when the destination's retention has passed.
    """
    from spark_jms.admin.purge import Purged, drop_backlog, plan_purge, purge_files
    from spark_jms.core.address import DestinationAddress

    if acknowledged_only and (member is not None or subscription is not None or "@" in destination):
        raise click.UsageError(
            "--acknowledged-only deletes the finished files of all members and subscriptions: name the whole destination, and "
            "leave out --member and --subscription"
        )
    address = DestinationAddress.parse(destination)
    destination = address.destination
    with settings.opened() as (domain, store):
        members = _members(address, domain.log(destination).refresh().destination, member)
        plan = plan_purge(
            domain, store, destination, subscription, () if acknowledged_only else members, address.server
        )
        what = f"{plan.dropped:,} message(s) of {address}"
        what += "" if subscription is None else f", subscription {subscription}"
        what += "" if member is None else f", member {member}"
        if dry_run:
            _report_plan(settings, destination, what, plan)
            return
        if plan.dropped and not yes:
            click.confirm(f"Drop {what}?", abort=True, err=True)
        elif plan.dropped:
            announce(settings, f"dropping {what}")
        purged = Purged(0, 0)
        if not acknowledged_only:
            purged = drop_backlog(domain, store, destination, subscription, members, wait_s, address.server)
        report = purge_files(domain, store, destination)
    if settings.as_json:
        settings.out.document(
            {
                "destination": destination,
                "dropped": purged.dropped,
                "claimed": purged.claimed,
                "deleted_messages": report.purged_messages,
                "deleted_files": report.purged_files,
            }
        )
        return
    if not acknowledged_only:
        settings.out.say(f"dropped {purged.dropped:,} message(s) of {destination}")
    if purged.claimed:
        settings.out.say(f"left {purged.claimed:,} message(s) that consumers have claimed (jmsq claims {destination})")
    settings.out.say(f"deleted {report.purged_files:,} file(s) with {report.purged_messages:,} finished message(s)")


def _report_plan(settings: CommandSettings, destination: str, what: str, plan: PurgePlan) -> None:
    from dataclasses import asdict

    if settings.as_json:
        settings.out.document({"destination": destination, **asdict(plan), "dry_run": True})
        return
    settings.out.say(f"would drop {what}")
    if plan.claimed:
        settings.out.say(
            f"would leave {plan.claimed:,} message(s) that consumers have claimed (jmsq claims {destination})"
        )
    settings.out.say(f"would delete {plan.deleted_files:,} file(s) with {plan.deleted_messages:,} finished message(s)")


def _members(address: DestinationAddress, destination: Destination, member: int | None) -> list[int]:
    try:
        return address.consumed(destination, None if member is None else [member])
    except InvalidDestinationError as error:
        if member is None:
            raise
        raise click.BadParameter(str(error), param_hint="--member") from None
