"""`jmsq quota`: the quotas of a domain.

Features: C14, T1, T3 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from spark_jms.cli.command import MOMENT, CommandGroup, CommandSettings, command

if TYPE_CHECKING:
    from spark_jms.admin.quota import QuotaRow


@click.group("quota", cls=CommandGroup, short_help="The quotas of the domain: list, show, entries, history.")
def quota() -> None:
    """Quotas limit what destinations hold; the module file declares them. These commands open no store, so they show a
    moment late which messages consumers have finished."""


@command("list", short_help="List the quotas, their usage, and how many sends wait.")
def list_all(settings: CommandSettings) -> None:
    """List the quotas. A quota that is not shared has a line for each destination."""
    _show(settings, [])


@command("show", short_help="Show one quota, with the sends that wait or have a reservation.")
@click.argument("name", metavar="QUOTA")
def show(settings: CommandSettings, name: str) -> None:
    """Show a quota with its open requests: reservations first, then the sends that wait, in their order. "by" is the process, or
    the query and its batch."""
    found = _show(settings, [name])
    if settings.as_json:
        return
    requests = [
        (one.state, one.destination, f"{one.messages:,}", f"{one.bytes:,}", one.by, one.until)
        for row in found
        for one in row.requests
    ]
    settings.out.table(
        "", ("state", "destination", "messages", "bytes", "by", "until"), requests, "no send waits or has a reservation"
    )


@command("entries", short_help="Show the newest entries of a quota's ledger.")
@click.argument("name", metavar="QUOTA")
def entries(settings: CommandSettings, name: str) -> None:
    """Show the newest entries of a quota's ledger, the oldest first: grants, waits, and what was used and reserved then. A ledger
    keeps few entries; `jmsq quota history` has more."""
    from spark_jms.admin.quota import newest_entries

    found = newest_entries(settings.domain(), name)
    if settings.as_json:
        settings.out.document([asdict(row) for row in found])
        return
    rows = [
        (row.quota, row.number, row.at, row.what, f"{row.messages_used:,}", f"{row.messages_reserved:,}", row.waiting)
        for row in found
    ]
    columns = ("quota", "entry", "at", "what", "used", "reserved", "waiting")
    settings.out.table("", columns, rows, f"nothing was ever sent with quota {name}")


@command("history", short_help="Show the messages of a quota's destinations by minute, and their usage.")
@click.argument("name", metavar="QUOTA_OR_DESTINATION")
@click.option("--since", "since_ms", type=MOMENT, help="Only what is later: '2 h' ago, or a time.")
def history(settings: CommandSettings, name: str, since_ms: int | None) -> None:
    """Show the usage history of the destinations that have a quota now, or of one destination: for each minute in which something
    changed, the messages sent, finished by consumers, expired and dropped, and the messages and bytes not finished at its end.
    `jmsq services` records it; it keeps 30 days.
    """
    from spark_jms.admin.quota import history as read

    found = read(settings.domain(), name, since_ms or 0)
    if settings.as_json:
        settings.out.document([asdict(row) for row in found])
        return
    columns = ("destination", "minute", "sent", "finished", "expired", "dropped", "used", "bytes")
    rows = [
        (
            row.destination,
            row.begins,
            _count(row.sent),
            _count(row.finished),
            _count(row.expired),
            _count(row.dropped),
            _count(row.messages_used),
            _count(row.bytes_used),
        )
        for row in found
    ]
    settings.out.table("", columns, rows, "no usage is recorded: does `jmsq services` run?")


def _count(number: int | None) -> str:
    return "" if number is None else f"{number:,}"


def _show(settings: CommandSettings, names: list[str]) -> list[QuotaRow]:
    from spark_jms.admin.quota import quotas

    found = quotas(settings.domain(), names)
    if settings.as_json:
        settings.out.document([asdict(row) for row in found])
        return found
    rows = [
        (
            row.quota,
            ", ".join(row.destinations) or "none",
            row.policy,
            _of(row.messages_used, row.messages_maximum),
            _of(row.bytes_used, row.bytes_maximum),
            f"{row.messages_reserved:,}",
            row.waiting,
        )
        for row in found
    ]
    columns = ("quota", "destinations", "policy", "messages", "bytes", "reserved", "waiting")
    settings.out.table("", columns, rows, "the domain has no quotas")
    return found


def _of(used: int, maximum: int) -> str:
    return f"{used:,}" if maximum < 0 else f"{used:,} of {maximum:,}"


for _command in (list_all, show, entries, history):
    quota.add_command(_command)
