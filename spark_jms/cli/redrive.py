"""`jmsq redrive`: messages of an error destination go back to where they failed, exactly once.

Features: C8, C14, M2 (docs/FEATURES.md)
"""

from __future__ import annotations

import click

from spark_jms.cli.settings import (
    MOMENT,
    CommandSettings,
    announce,
    command,
    complete_destination,
    dry_run_option,
    wait_option,
)


@command("redrive", short_help="Bring messages back from an error destination.")
@click.argument("source", shell_complete=complete_destination)
@click.option(
    "--to", "target", shell_complete=complete_destination, help="Send to this destination, not to where they failed."
)
@click.option("--selector", help="Only messages that this selector takes, such as \"JMS_JMSQ_ErrorFrom = 'orders'\".")
@click.option("--since", "since_ms", type=MOMENT, help="Only messages that failed then or later: '2 h' ago, or a time.")
@click.option("--until", "until_ms", type=MOMENT, help="Only messages that failed then or earlier.")
@click.option("--limit", type=click.IntRange(1), help="At most this many messages.")
@dry_run_option
@wait_option
def redrive(
    settings: CommandSettings,
    source: str,
    target: str | None,
    selector: str | None,
    since_ms: int | None,
    until_ms: int | None,
    limit: int | None,
    dry_run: bool,
    wait_s: float,
) -> None:
    """Send the messages of the error destination SOURCE again, to the destinations where they failed.

    They arrive as they were first sent, without the properties about the failure, and are delivered as new ones. Like
    `jmsq move`, this neither loses nor duplicates a message, whichever process dies in between.
    """
    from spark_jms.claims.views import moment

    with settings.administrator() as admin:
        if not dry_run:
            announce(settings, f"bringing messages of {source} back")
        done = admin.redrive(
            source,
            to=target,
            selector=selector,
            since=None if since_ms is None else moment(since_ms),
            until=None if until_ms is None else moment(until_ms),
            limit=limit,
            dry_run=dry_run,
            wait=wait_s,
        )
    if settings.as_json:
        settings.out.document(
            {"source": source, "target": target, "moved": done.messages, "claimed": done.claimed, "dry_run": dry_run}
        )
        return
    for origin, count in done.messages.items():
        there = target if target is not None else origin
        where = there if there == origin else f"{there} (from {origin})"
        settings.out.say(f"{'would move' if dry_run else 'moved'} {count:,} message(s) of {source} to {where}")
    if not done.messages:
        settings.out.say(f"{source} has no messages to bring back")
    if done.claimed:
        settings.out.say(f"{done.claimed:,} claimed message(s) stay with their consumers: see `jmsq claims {source}`")
