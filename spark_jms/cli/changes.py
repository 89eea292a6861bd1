"""`jmsq changes`: the change feed.

Features: C14, M12 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from spark_jms.cli.command import CommandSettings, command, complete_destination, every_option

if TYPE_CHECKING:
    from spark_jms.cli.command import Output
    from spark_jms.core.changes.change import MessageChange

_KINDS = ["sent", "finished", "expired", "dropped", "moved", "aside", "purged", "skipped", "ended", "gone"]
_COLUMNS = (
    "minute",
    "kind",
    "destination",
    "member",
    "messages",
    "first",
    "last",
    "subscription",
    "consumer",
    "detail",
)


@command("changes", short_help="Show what happened to messages: the change feed.")
@click.argument("destination", metavar="[DEST]", required=False, shell_complete=complete_destination)
@click.option(
    "--since",
    metavar="POSITION",
    help="Where to begin: earliest, latest, or a position that an earlier call with --json has printed. Without it earliest, and "
    "with --follow latest.",
)
@click.option("--kind", "kinds", multiple=True, type=click.Choice(_KINDS), help="Only these kinds.")
@click.option("--follow", is_flag=True, help="Continue until interrupted, with what happens from now on.")
@click.option(
    "--limit",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="How many of the newest rows to show, 0 for all. Not with --follow or --json.",
)
@every_option("1s", 0.1)
def changes(
    settings: CommandSettings,
    destination: str | None,
    since: str | None,
    kinds: tuple[str, ...],
    follow: bool,
    limit: int,
    every_s: float,
) -> None:
    """Show what happened to the messages of DEST, or of all destinations: sent, finished, expired, dropped, moved, set aside, purged,
    skipped, left by a subscription that ended, or gone before they were read. A row is a range of messages of a member.

    It consumes nothing. With --json a row is a line; behind the rows of a round a line has the `position` to continue from.
    """
    from spark_jms.log.changes.feed import EARLIEST, LATEST, ChangeFeed

    feed = ChangeFeed(settings.domain(), destination, since or (LATEST if follow else EARLIEST))
    out, shown, before = settings.out, deque[Any](maxlen=None if limit == 0 else limit), None
    while True:
        for change in feed:
            if kinds and change.kind not in kinds:
                continue
            if settings.as_json:
                out.record(_record(change))
            elif follow:
                _say(out, change)
            else:
                shown.append([_cells(change)[name] for name in _COLUMNS])
        position = json.loads(feed.position)
        if settings.as_json and (before is None or position["t"] != before["t"]):
            out.record({"position": position})
        before = position
        if not follow:
            break
        time.sleep(every_s)
    if not settings.as_json:
        out.table(f"Changes of {destination or 'all destinations'}", _COLUMNS, shown, "nothing has happened")


def _record(change: MessageChange) -> dict[str, Any]:
    """As the columns of the view `changes`, but for times, which are in ms."""
    found = {field.name: getattr(change, field.name) for field in fields(change)}
    return {**found, "minute_ms": change.minute_ms, "ranges": change.ranges and json.loads(change.ranges)}


def _cells(change: MessageChange) -> dict[str, Any]:
    from spark_jms.claims.upkeep.views import moment

    known = {name: getattr(change, name) for name in _COLUMNS if name != "minute"}
    return {**known, "minute": None if change.at_ms is None else moment(change.at_ms)}


def _say(out: Output, change: MessageChange) -> None:
    cells = _cells(change)
    at = cells["minute"]
    who = " ".join(str(cells[name]) for name in ("subscription", "consumer", "detail") if cells[name])
    numbers = f"{change.first}" if change.first == change.last else f"{change.first}-{change.last or '?'}"
    count = "?" if change.messages is None else f"{change.messages:,}"
    shown_at = "-" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"
    out.say(f"{shown_at} {change.kind} {change.destination}/{change.member} {numbers} ({count}) {who}".rstrip())
