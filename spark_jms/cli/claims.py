"""`jmsq claims`: list claims, or revoke one.

Features: C14, C16 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_jms.cli.settings import (
    CommandSettings,
    announce,
    command,
    destinations_argument,
    dry_run_option,
    name_silent_servers,
    names_or_all,
    wait_option,
)

if TYPE_CHECKING:
    from spark_jms.admin.administrator import Administrator
    from spark_jms.claims.views import ClaimRow


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
    from spark_jms.claims import views

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
