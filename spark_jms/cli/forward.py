"""`jmsq forward`: messages of members without consumers go to members that have some.

Features: C14, D5 (docs/FEATURES.md)
"""

from __future__ import annotations

import time

import click

from spark_jms.cli.settings import CommandSettings, command, destinations_argument, every_option, names_or_all


@command("forward", short_help="Forward messages of members without consumers.")
@destinations_argument
@every_option("1s", 0.05)
@click.option("--times", type=click.IntRange(1), help="Stop after this many rounds.")
def forward(settings: CommandSettings, destinations: tuple[str, ...], every_s: float, times: int | None) -> None:
    """Forward messages between the members of distributed queues that have `forwardDelay`, until interrupted: all of
    them, or those named.

    If a member has had no consumers for that time, its messages go to members that have some. Each message is in one
    member at any time, even if this command is killed: start it again. The command itself measures how long members are
    idle, so a restart begins to measure again.
    """
    from spark_jms.admin.forward import STORE_LIMIT_S, Forwarders

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
