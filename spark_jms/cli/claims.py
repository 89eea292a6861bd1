"""`jmsq claims`: list claims, or revoke one (C14, C16)."""

from __future__ import annotations

from dataclasses import asdict

import click

from spark_jms.cli.settings import (
    CommandSettings,
    command,
    destinations_argument,
    names_or_all,
    wait_option,
)


@command("claims", short_help="List claims, or revoke one.")
@destinations_argument
@click.option(
    "--release",
    metavar="CLAIM",
    help="Revoke this claim now: other consumers get its messages, flagged as redelivered.",
)
@wait_option
def claims(settings: CommandSettings, destinations: tuple[str, ...], release: str | None, wait_s: float) -> None:
    """List claims. The claim of a dead consumer is in doubt until the consumer returns or inDoubtTimeout has passed.

    --release revokes a claim, live or in doubt: its consumer can no longer acknowledge it, and other consumers may
    repeat the work it has done on the messages.
    """
    from spark_jms.claims import views

    with settings.opened() as (domain, store):
        names = names_or_all(domain, destinations)
        if release is not None:
            from spark_jms.admin.claims import release_claim

            rows = release_claim(domain, store, names, release, wait_s)
            messages = sum(row.messages for row in rows)
            if settings.as_json:
                settings.out.document({"released": release, "messages": messages, "claims": rows})
            else:
                where = ", ".join(f"{row.destination} member {row.member}" for row in rows)
                settings.out.say(f"released claim {release}: {messages:,} message(s) of {where} are available again")
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
        "no message is claimed",
    )


def _state(live: bool) -> str:
    return "live" if live else "in doubt"


COMMANDS = (claims,)
