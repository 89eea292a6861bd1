"""`jmsq purge`: drop a backlog, or remove finished files.

Features: C13, C14 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_jms.cli.command import CommandSettings, announce, command, destination_argument, dry_run_option, wait_option

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

    For a replicated topic, `server@topic` drops only the backlog of the subscriptions on that server.

    Claimed messages stay with their consumers; `jmsq claims --release` revokes them first. The acknowledgement table
    gets a row for every dropped message, with `jmsq purge` as the consumer. Files whose messages are all finished are
    deleted at once, or when the destination's retention has passed.
    """
    if acknowledged_only and (member is not None or subscription is not None or "@" in destination):
        raise click.UsageError(
            "--acknowledged-only deletes the finished files of all members and subscriptions: name the whole destination, and "
            "leave out --member and --subscription"
        )
    with settings.administrator() as admin:

        def run(*, dry_run: bool) -> Purged:
            if acknowledged_only:
                return admin.purge_finished(destination, dry_run=dry_run)
            members = None if member is None else [member]
            return admin.purge(destination, subscription=subscription, members=members, dry_run=dry_run, wait=wait_s)

        plan = run(dry_run=True)
        what = f"{plan.dropped:,} message(s) of {destination}"
        what += "" if subscription is None else f", subscription {subscription}"
        what += "" if member is None else f", member {member}"
        if dry_run:
            _report_plan(settings, destination, what, plan)
            return
        if plan.dropped and not yes:
            click.confirm(f"Drop {what}?", abort=True, err=True)
        elif plan.dropped:
            announce(settings, f"dropping {what}")
        purged = run(dry_run=False)
    name = destination.rpartition("@")[2]
    if settings.as_json:
        settings.out.document({"destination": name, **asdict(purged)})
        return
    if not acknowledged_only:
        settings.out.say(f"dropped {purged.dropped:,} message(s) of {name}")
    if purged.claimed:
        settings.out.say(f"left {purged.claimed:,} message(s) that consumers have claimed (jmsq claims {name})")
    settings.out.say(f"deleted {purged.deleted_files:,} file(s) with {purged.deleted_messages:,} finished message(s)")


def _report_plan(settings: CommandSettings, destination: str, what: str, plan: Purged) -> None:
    name = destination.rpartition("@")[2]
    if settings.as_json:
        settings.out.document({"destination": name, **asdict(plan), "dry_run": True})
        return
    settings.out.say(f"would drop {what}")
    if plan.claimed:
        settings.out.say(f"would leave {plan.claimed:,} message(s) that consumers have claimed (jmsq claims {name})")
    settings.out.say(f"would delete {plan.deleted_files:,} file(s) with {plan.deleted_messages:,} finished message(s)")
