"""Messages that move, each exactly once: `jmsq forward` to members that have consumers, `jmsq move` to another destination or member,
`jmsq redrive` from an error destination back to where they failed.

Features: C8, C14, C18, D5, M2 (docs/FEATURES.md)
"""

from __future__ import annotations

import time

import click

from spark_jms.cli.command import (
    MOMENT,
    CommandSettings,
    announce,
    command,
    complete_destination,
    destinations_argument,
    dry_run_option,
    every_option,
    names_or_all,
    wait_option,
)


@command("forward", short_help="Forward messages of members without consumers.")
@destinations_argument
@every_option("1s", 0.05)
@click.option("--times", type=click.IntRange(1), help="Stop after this many rounds.")
def forward(settings: CommandSettings, destinations: tuple[str, ...], every_s: float, times: int | None) -> None:
    """Forward messages between the members of distributed queues that have `forwardDelay`, until interrupted: all of
    them, or those named.

    If a member has had no consumers for that time, its messages go to members that have some. Housekeeping does the same, so
    the command is for domains without it, or for shorter delays: it looks every second. Each message is in one member at any
    time, even if this command is killed: start it again. The command itself measures how long members are idle, so a restart
    begins to measure again.
    """
    from spark_jms.claims.upkeep.move import STORE_LIMIT_S, Forwarders

    with settings.opened(STORE_LIMIT_S) as (domain, store):
        names_or_all(domain, destinations)  # a wrong name ends the command now, and one that is dropped later does not
        forwarders = Forwarders(domain, store)
        rounds = 0
        told: dict[str, set[str]] = {}
        while True:
            for done in forwarders.run(destinations):
                if settings.as_json:
                    if done.moves or done.problems:
                        settings.out.record(done)
                    continue
                for step in done.moves:
                    settings.out.say(
                        f"forwarded {step.messages:,} message(s) of {done.destination}, member {step.source}, to member "
                        f"{step.target}"
                    )
                for problem in sorted(set(done.problems) - told.get(done.destination, set())):  # not in every round
                    click.echo(f"jmsq: {done.destination}: {problem}", err=True)
                told[done.destination] = set(done.problems)
            rounds += 1
            if times is not None and rounds >= times:
                return
            time.sleep(every_s)


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
    from spark_jms.claims.upkeep.views import moment

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
