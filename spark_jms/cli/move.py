"""`jmsq move`: messages go to another destination or member, exactly once.

Features: C18 (docs/FEATURES.md)
"""

from __future__ import annotations

import click

from spark_jms.cli.settings import CommandSettings, announce, command, complete_destination, dry_run_option, wait_option


@command("move", short_help="Move messages to another destination or member.")
@click.argument("source", shell_complete=complete_destination)
@click.argument("target", shell_complete=complete_destination)
@click.option("--selector", help="Only messages that this selector takes.")
@click.option("--subscription", help="Of a topic: the subscription whose messages move.")
@click.option("--member", "members", type=click.IntRange(0), multiple=True, help="Only this member. Repeatable.")
@click.option("--to-member", type=click.IntRange(0), help="The member of the target that gets them all.")
@click.option("--limit", type=click.IntRange(1), help="At most this many messages.")
@dry_run_option
@wait_option
def move(
    settings: CommandSettings,
    source: str,
    target: str,
    selector: str | None,
    subscription: str | None,
    members: tuple[int, ...],
    to_member: int | None,
    limit: int | None,
    dry_run: bool,
    wait_s: float,
) -> None:
    """Move available messages of SOURCE to TARGET; a message keeps its id, headers, properties and body. Both may name the
    member on a server, as server@destination.

    Each message ends in exactly one of the two, even if this command, a consumer or the machine dies in between: the
    next process that opens the record finishes the transfer. Claimed messages stay with their consumers, and messages
    that are sent meanwhile stay in SOURCE. Consumers of SOURCE continue to run.
    """
    where = f"{target}, member {to_member}" if to_member is not None else target
    with settings.administrator() as admin:
        if not dry_run:
            announce(settings, f"moving messages of {source} to {where}")
        done = admin.move(
            source,
            target,
            selector=selector,
            subscription=subscription,
            members=members or None,
            to_member=to_member,
            limit=limit,
            dry_run=dry_run,
            wait=wait_s,
        )
    if settings.as_json:
        settings.out.document(
            {"source": source, "target": target, "moved": done.moved, "claimed": done.claimed, "dry_run": dry_run}
        )
        return
    settings.out.say(f"{'would move' if dry_run else 'moved'} {done.moved:,} message(s) of {source} to {where}")
    if done.claimed:
        settings.out.say(f"{done.claimed:,} claimed message(s) stay with their consumers: see `jmsq claims {source}`")
